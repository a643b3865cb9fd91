// DeviceBuffer and PinnedBuffer own memory; upload, download and copy move it. Nothing is copied but by name.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "cuda/check.h"

namespace mnist::cuda {

namespace detail {
void* allocate_device(std::size_t bytes);
void* allocate_pinned(std::size_t bytes);
}  // namespace detail

// `count` elements without a value; move-only. `Allocate` and `Free` say which memory.
template <class T, void* (*Allocate)(std::size_t), cudaError_t (*Free)(void*)>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  explicit Buffer(std::int64_t count) {
    if (count > 0) data_ = static_cast<T*>(Allocate(std::size_t(count) * sizeof(T)));
    size_ = count;
  }
  ~Buffer() {
    if (data_) (void)Free(data_);  // may run while the runtime is being shut down
  }
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  T* data() const { return data_; }
  std::int64_t size() const { return size_; }
  std::size_t bytes() const { return std::size_t(size_) * sizeof(T); }

  // Room for at least `count` elements; true if the memory is new, and its contents with it. The old memory is
  // freed first, so that both never stand side by side.
  bool reserve(std::int64_t count) {
    if (count <= size_) return false;
    *this = Buffer();
    *this = Buffer(count);
    return true;
  }

 private:
  T* data_ = nullptr;
  std::int64_t size_ = 0;
};

template <class T>
using DeviceBuffer = Buffer<T, detail::allocate_device, cudaFree>;
template <class T>
using PinnedBuffer = Buffer<T, detail::allocate_pinned, cudaFreeHost>;

// Host to device, in stream order. From pageable memory the call returns when `from` may be reused; from pinned
// memory `from` must stay unchanged until the stream has passed.
template <class T>
void upload(T* to, std::span<const std::type_identity_t<T>> from, cudaStream_t stream) {
  MNIST_CHECK(cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice, stream));
}

// From wherever `from` lies, the host or a GPU, to the device, in stream order; from the host as upload().
template <class T>
void bring(T* to, std::span<const std::type_identity_t<T>> from, cudaStream_t stream) {
  MNIST_CHECK(cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyDefault, stream));
}

// Device to host; returns when `to` holds the values.
template <class T>
void download(std::span<std::type_identity_t<T>> to, const T* from, cudaStream_t stream) {
  MNIST_CHECK(cudaMemcpyAsync(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost, stream));
  MNIST_CHECK(cudaStreamSynchronize(stream));
}

// Device to device, in stream order.
template <class T>
void copy(T* to, const T* from, std::int64_t count, cudaStream_t stream) {
  MNIST_CHECK(cudaMemcpyAsync(to, from, std::size_t(count) * sizeof(T), cudaMemcpyDeviceToDevice, stream));
}

// Rows of `count` elements, device to device or from and to the host, in stream order: `to_pitch` and `from_pitch`
// bytes from a row to the next.
template <class T>
void copy_rows(T* to, std::int64_t to_pitch, const T* from, std::int64_t from_pitch, std::int64_t count,
               std::int64_t rows, cudaStream_t stream) {
  MNIST_CHECK(cudaMemcpy2DAsync(to, std::size_t(to_pitch), from, std::size_t(from_pitch),
                                std::size_t(count) * sizeof(T), std::size_t(rows), cudaMemcpyDefault, stream));
}

// Every byte of `count` elements becomes `byte`, in stream order.
template <class T>
void fill_bytes(T* to, unsigned char byte, std::int64_t count, cudaStream_t stream) {
  MNIST_CHECK(cudaMemsetAsync(to, byte, std::size_t(count) * sizeof(T), stream));
}

}  // namespace mnist::cuda
