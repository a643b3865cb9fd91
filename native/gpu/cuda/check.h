// MNIST_CHECK: every CUDA runtime call goes through it; a failure becomes a typed exception with call, name and place.
#pragma once

#include <cuda_runtime.h>

#include "mnist/require.h"

namespace mnist::cuda {

[[noreturn]] void throw_cuda_error(cudaError_t error, const char* expression, const char* file, int line);

}  // namespace mnist::cuda

// Evaluates `expression` once.
#define MNIST_CHECK(expression)                                                                                    \
  do {                                                                                                             \
    const cudaError_t mnist_error = (expression);                                                                  \
    if (mnist_error != cudaSuccess) ::mnist::cuda::throw_cuda_error(mnist_error, #expression, __FILE__, __LINE__); \
  } while (false)

// After every launch: the configuration errors a <<<>>> cannot return.
#define MNIST_CHECK_LAUNCH() MNIST_CHECK(cudaGetLastError())
