// The part of cuBLAS 12 and 13 itself that the project uses: sgemm, for a row of the ladder of linear. The engines take
// cuBLASLt (cublas.h), which has epilogues and a say in the algorithm.
//
// tests/native/test_declarations.cpp holds every declaration below against NVIDIA's headers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "cuda/handle.h"

namespace mnist::cublas {

using RawSgemmContext = struct OpaqueSgemmContext*;

// The functions: name without `cublas` and `_v2`, result, parameters as in cuBLAS's reference (enumerations are ints).
#define MNIST_SGEMM_FUNCTIONS(X)                                                                               \
  X(Create, int, (RawSgemmContext*))                                                                           \
  X(Destroy, int, (RawSgemmContext))                                                                           \
  X(SetStream, int, (RawSgemmContext, cudaStream_t))                                                           \
  X(SetWorkspace, int, (RawSgemmContext, void* workspace, std::size_t bytes))                                  \
  X(Sgemm, int,                                                                                                \
    (RawSgemmContext, int transpose_a, int transpose_b, int m, int n, int k, const float* alpha, const float*, \
     int a_stride, const float* b, int b_stride, const float* beta, float* c, int c_stride))

struct SgemmApi {
#define MNIST_ROW(name, result, parameters) result(*name) parameters = nullptr;
  MNIST_SGEMM_FUNCTIONS(MNIST_ROW)
#undef MNIST_ROW
};

// Loads cuBLAS on the first call. Throws UnavailableError if it is missing.
const SgemmApi& sgemm_api();

[[noreturn]] void throw_sgemm_error(int status, const char* expression, const char* file, int line);

inline int destroy(RawSgemmContext raw) { return sgemm_api().Destroy(raw); }
using SgemmContext = cuda::Handle<static_cast<int (*)(RawSgemmContext)>(destroy)>;

}  // namespace mnist::cublas

// A cuBLAS call by its name without prefix and suffix: MNIST_SGEMM(SetStream(context, stream)).
#define MNIST_SGEMM(call)                                                                                        \
  do {                                                                                                           \
    const int mnist_status = ::mnist::cublas::sgemm_api().call;                                                  \
    if (mnist_status != 0) ::mnist::cublas::throw_sgemm_error(mnist_status, "cublas" #call, __FILE__, __LINE__); \
  } while (false)
