// Handle<Destroy>: move-only owner of anything with a create and a destroy call: streams, events, graphs, contexts.
#pragma once

#include <type_traits>
#include <utility>

namespace mnist::cuda {

namespace detail {
template <class Result, class Raw>
Raw argument_of(Result (*)(Raw));  // for its type alone
}

// `Destroy` is the C function that takes the raw handle, a pointer type; its result is ignored, because a destructor
// may run while the runtime is being shut down. A default-constructed handle is null.
//
//   Handle<cudaStreamDestroy> stream;
//   MNIST_CHECK(cudaStreamCreate(stream.put()));
template <auto Destroy>
class Handle {
 public:
  using Raw = decltype(detail::argument_of(Destroy));
  static_assert(std::is_pointer_v<Raw>, "Handle is for opaque pointers");

  Handle() = default;
  explicit Handle(Raw raw) noexcept : raw_(raw) {}
  ~Handle() { reset(); }
  Handle(Handle&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      raw_ = std::exchange(other.raw_, nullptr);
    }
    return *this;
  }

  Raw get() const noexcept { return raw_; }
  explicit operator bool() const noexcept { return raw_ != nullptr; }

  void reset() noexcept {
    if (raw_) (void)Destroy(raw_);
    raw_ = nullptr;
  }

  // Where a create call writes the new handle; what was held is destroyed first.
  Raw* put() noexcept {
    reset();
    return &raw_;
  }

 private:
  Raw raw_ = nullptr;
};

}  // namespace mnist::cuda
