// How a launcher is called whose type only its own file knows; for the one file that includes it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "judge/own.h"

namespace judge {

// By kind, each kind in the launcher's order.
struct Arguments {
  void* const* arrays;
  const std::int64_t* sizes;
  const double* reals;
  cudaStream_t stream;
};

using Launcher = std::function<void(Arguments)>;

template <class... Types>
Launcher launcher(void (*run)(Types...)) {
  return [run](Arguments arguments) {
    const auto next = [&]<class T>(T*) -> T {
      if constexpr (std::is_same_v<T, cudaStream_t>)
        return arguments.stream;
      else if constexpr (std::is_pointer_v<T>)
        return static_cast<T>(*arguments.arrays++);
      else if constexpr (std::is_floating_point_v<T>)
        return T(*arguments.reals++);
      else
        return T(*arguments.sizes++);
    };
    // Braces: first to last.
    struct Call {
      Call(void (*run)(Types...), Types... values) { run(values...); }
    };
    Call{run, next(static_cast<Types*>(nullptr))...};
  };
}

static const std::vector<Launcher>& launchers();  // of the user's file, in the file that includes this

}  // namespace judge

int mnist_own_launch(int number, int device, void* const* arrays, const std::int64_t* sizes, const double* reals,
                     void* stream, const char** why) {
  thread_local std::string sentence;
  int result = mnist::kOwnDone;
  (void)cudaSetDevice(device);  // a shared object has a CUDA runtime of its own
  try {
    judge::launchers().at(std::size_t(number))({arrays, sizes, reals, static_cast<cudaStream_t>(stream)});
  } catch (const std::exception& error) {
    sentence = error.what();
    result = mnist::kOwnThrew;
  } catch (...) {
    sentence = "an exception of an unknown type";
    result = mnist::kOwnThrew;
  }
  const cudaError_t error = cudaGetLastError();
  if (result == mnist::kOwnDone && error != cudaSuccess) {
    sentence = std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
    result = mnist::kOwnFailed;
  }
  *why = sentence.c_str();
  return result;
}
