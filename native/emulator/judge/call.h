// How the judge's program calls a launcher whose type only its own file knows.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <type_traits>
#include <vector>

namespace judge {

// Arguments by kind, each kind in the launcher's order.
struct Arguments {
  std::vector<void*> arrays;
  std::vector<std::int64_t> sizes;
  std::vector<double> reals;
};

using Launcher = std::function<void(const Arguments&)>;

template <class... Types>
Launcher launcher(void (*run)(Types...)) {
  return [run](const Arguments& arguments) {
    auto array = arguments.arrays.begin();
    auto size = arguments.sizes.begin();
    auto real = arguments.reals.begin();
    const auto next = [&]<class T>(T*) -> T {
      if constexpr (std::is_same_v<T, cudaStream_t>)
        return nullptr;
      else if constexpr (std::is_pointer_v<T>)
        return static_cast<T>(*array++);
      else if constexpr (std::is_floating_point_v<T>)
        return T(*real++);
      else
        return T(*size++);
    };
    // Braces: first to last.
    struct Call {
      Call(void (*run)(Types...), Types... values) { run(values...); }
    };
    Call{run, next(static_cast<Types*>(nullptr))...};
  };
}

const std::vector<Launcher>& launchers();  // of the judged file

}  // namespace judge
