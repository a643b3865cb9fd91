// MNIST_CHECK: every CUDA runtime call goes through it; a failure becomes a typed exception with call, name and place.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "mnist/errors.h"

namespace mnist::cuda {

[[noreturn]] inline void throw_cuda_error(cudaError_t error, const char* expression, const char* file, int line) {
  const std::string sentence = std::string("CUDA runtime: ") + cudaGetErrorName(error) + " (" +
                               cudaGetErrorString(error) + ") from " + expression + " at " + file + ":" +
                               std::to_string(line);
  (void)cudaGetLastError();  // so that the next check does not report this one again
  if (error == cudaErrorMemoryAllocation) throw OutOfMemoryError(sentence);
  throw std::runtime_error(sentence);
}

}  // namespace mnist::cuda

// Evaluates `expression` once.
#define MNIST_CHECK(expression)                                                                                    \
  do {                                                                                                             \
    const cudaError_t mnist_error = (expression);                                                                  \
    if (mnist_error != cudaSuccess) ::mnist::cuda::throw_cuda_error(mnist_error, #expression, __FILE__, __LINE__); \
  } while (false)

// After every launch: the configuration errors a <<<>>> cannot return.
#define MNIST_CHECK_LAUNCH() MNIST_CHECK(cudaGetLastError())
