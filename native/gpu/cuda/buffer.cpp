// Allocation, with a sentence of its own where memory runs out.
#include "cuda/buffer.h"

#include <string>

#include "mnist/errors.h"

namespace mnist::cuda::detail {

static std::string mebibytes(std::size_t bytes) {
  return std::to_string((bytes + (std::size_t(1) << 20) - 1) >> 20) + " MiB";
}

void* allocate_device(std::size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // not sticky: the next call may succeed
    std::size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);
    throw OutOfMemoryError("GPU memory ran out: " + mebibytes(bytes) + " needed, " + mebibytes(free) + " free of " +
                           mebibytes(total) + "; a smaller batch needs less");
  }
  MNIST_CHECK(error);
  return data;
}

void* allocate_pinned(std::size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw OutOfMemoryError("page-locked host memory ran out: " + mebibytes(bytes) + " needed");
  }
  MNIST_CHECK(error);
  return data;
}

}  // namespace mnist::cuda::detail
