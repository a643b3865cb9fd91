// AlignedArray: a host array that starts on a cache line, as every buffer of the cpu engine does.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

namespace mnist::cpu {

inline constexpr std::align_val_t kCacheLine{64};

// Owns `size` values, uninitialised until they are written.
template <class T>
class AlignedArray {
  static_assert(std::is_trivial_v<T>);

 public:
  AlignedArray() = default;
  explicit AlignedArray(std::size_t size)
      : data_(static_cast<T*>(::operator new(size * sizeof(T), kCacheLine))), size_(size) {}

  // Makes room for at least `size` values; growing loses the old ones.
  void reserve(std::size_t size) {
    if (size <= size_) return;
    data_.reset();
    *this = AlignedArray(size);
  }

  T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(T* p) const noexcept { ::operator delete(p, kCacheLine); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
};

}  // namespace mnist::cpu
