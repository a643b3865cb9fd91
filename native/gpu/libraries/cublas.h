// The part of cuBLASLt 12 and 13 that the project uses: own declarations, bound at run time, and a chosen matmul; and
// cuBLAS's own sgemm, for a row of the ladder of linear. cuBLASLt has epilogues and a say in the algorithm.
//
// tests/native/test_declarations.cpp holds every declaration and number below against NVIDIA's headers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/handle.h"

namespace mnist::cublas {

using RawContext = struct OpaqueContext*;
using RawMatmul = struct OpaqueMatmul*;
using RawLayout = struct OpaqueLayout*;
using RawPreference = struct OpaquePreference*;

struct Algorithm {
  std::uint64_t data[8];
};
struct HeuristicResult {
  Algorithm algorithm;
  std::size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};

// The numbers of cuBLAS's enumerations: ours, NVIDIA's, the value.
#define MNIST_CUBLAS_CONSTANTS(X)                                     \
  X(kSuccess, CUBLAS_STATUS_SUCCESS, 0)                               \
  X(kFloat, CUDA_R_32F, 0)                                            \
  X(kBfloat16, CUDA_R_16BF, 14)                                       \
  X(kNoTranspose, CUBLAS_OP_N, 0)                                     \
  X(kTranspose, CUBLAS_OP_T, 1)                                       \
  X(kComputeFloat, CUBLAS_COMPUTE_32F, 68)                            \
  X(kComputeFloatPedantic, CUBLAS_COMPUTE_32F_PEDANTIC, 69)           \
  X(kComputeTf32, CUBLAS_COMPUTE_32F_FAST_TF32, 77)                   \
  X(kTransposeA, CUBLASLT_MATMUL_DESC_TRANSA, 3)                      \
  X(kTransposeB, CUBLASLT_MATMUL_DESC_TRANSB, 4)                      \
  X(kEpilogue, CUBLASLT_MATMUL_DESC_EPILOGUE, 7)                      \
  X(kBiasPointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8)               \
  X(kMaxWorkspaceBytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)  \
  X(kReductionSchemes, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3) \
  X(kReductionInPlace, CUBLASLT_REDUCTION_SCHEME_INPLACE, 1)          \
  X(kReductionComputeType, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2) \
  X(kPlain, CUBLASLT_EPILOGUE_DEFAULT, 1)                             \
  X(kBias, CUBLASLT_EPILOGUE_BIAS, 4)                                 \
  X(kReluBias, CUBLASLT_EPILOGUE_RELU_BIAS, 6)                        \
  X(kBiasGradientB, CUBLASLT_EPILOGUE_BGRADB, 512)

enum Constant : int {
#define MNIST_ROW(name, real, value) name = value,
  MNIST_CUBLAS_CONSTANTS(MNIST_ROW)
#undef MNIST_ROW
};

// The functions: name without `cublasLt`, result, parameters as in cuBLAS's reference (enumerations are ints).
#define MNIST_CUBLAS_FUNCTIONS(X)                                                                                    \
  X(GetVersion, std::size_t, ())                                                                                     \
  X(GetStatusName, const char*, (int status))                                                                        \
  X(Create, int, (RawContext*))                                                                                      \
  X(Destroy, int, (RawContext))                                                                                      \
  X(MatmulDescCreate, int, (RawMatmul*, int compute_type, int scale_type))                                           \
  X(MatmulDescDestroy, int, (RawMatmul))                                                                             \
  X(MatmulDescSetAttribute, int, (RawMatmul, int attribute, const void* value, std::size_t bytes))                   \
  X(MatrixLayoutCreate, int, (RawLayout*, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t stride)) \
  X(MatrixLayoutDestroy, int, (RawLayout))                                                                           \
  X(MatmulPreferenceCreate, int, (RawPreference*))                                                                   \
  X(MatmulPreferenceDestroy, int, (RawPreference))                                                                   \
  X(MatmulPreferenceSetAttribute, int, (RawPreference, int attribute, const void* value, std::size_t bytes))         \
  X(MatmulAlgoGetHeuristic, int,                                                                                     \
    (RawContext, RawMatmul, RawLayout a, RawLayout b, RawLayout c, RawLayout d, RawPreference, int room,             \
     HeuristicResult*, int* count))                                                                                  \
  X(Matmul, int,                                                                                                     \
    (RawContext, RawMatmul, const void* alpha, const void* a, RawLayout, const void* b, RawLayout, const void* beta, \
     const void* c, RawLayout, void* d, RawLayout, const Algorithm*, void* workspace, std::size_t workspace_bytes,   \
     cudaStream_t))

struct Api {
#define MNIST_ROW(name, result, parameters) result(*name) parameters = nullptr;
  MNIST_CUBLAS_FUNCTIONS(MNIST_ROW)
#undef MNIST_ROW
  std::string path;
};

// Loads cuBLASLt on the first call. Throws UnavailableError if it is missing or neither version 12 nor 13.
const Api& api();

[[noreturn]] void throw_error(int status, const char* expression, const char* file, int line);

inline int destroy(RawContext raw) { return api().Destroy(raw); }
inline int destroy(RawMatmul raw) { return api().MatmulDescDestroy(raw); }
inline int destroy(RawLayout raw) { return api().MatrixLayoutDestroy(raw); }
inline int destroy(RawPreference raw) { return api().MatmulPreferenceDestroy(raw); }

template <class Raw>
using Owner = cuda::Handle<static_cast<int (*)(Raw)>(destroy)>;

Owner<RawContext> create_context();

// d (m,n) = op(a) op(b), column-major, no padding between columns.
struct MatmulShape {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
  int input_type, output_type;  // kFloat or kBfloat16
  int compute_type;
  int epilogue;
};

// A matmul whose algorithm the heuristics chose. They are asked once, and never measure, so that every process takes
// the same algorithm. Sums that are split over thread blocks are added in a fixed order, in float32.
class Matmul {
 public:
  Matmul() = default;
  // Throws UnavailableError if cuBLASLt has no algorithm for it.
  Matmul(RawContext context, const MatmulShape& shape, std::int64_t workspace_bytes);

  // `bias` is what the epilogue reads (kBias, kReluBias: m values) or writes (kBiasGradientB: n values); else null.
  // `add`: to what is in `d`.
  void run(RawContext context, void* d, const void* a, const void* b, const void* bias, bool add, void* workspace,
           cudaStream_t stream) const;

 private:
  Owner<RawMatmul> matmul_;
  Owner<RawLayout> a_, b_, d_;
  HeuristicResult choice_{};
  bool has_bias_ = false;
};

// ---- cuBLAS itself --------------------------------------------------------------------------------------------------

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

// A cuBLASLt call by its name without the prefix: MNIST_CUBLAS(Create(&context)).
#define MNIST_CUBLAS(call)                                                              \
  do {                                                                                  \
    const int mnist_status = ::mnist::cublas::api().call;                               \
    if (mnist_status != ::mnist::cublas::kSuccess)                                      \
      ::mnist::cublas::throw_error(mnist_status, "cublasLt" #call, __FILE__, __LINE__); \
  } while (false)

// A cuBLAS call by its name without prefix and suffix: MNIST_SGEMM(SetStream(context, stream)).
#define MNIST_SGEMM(call)                                                                                        \
  do {                                                                                                           \
    const int mnist_status = ::mnist::cublas::sgemm_api().call;                                                  \
    if (mnist_status != 0) ::mnist::cublas::throw_sgemm_error(mnist_status, "cublas" #call, __FILE__, __LINE__); \
  } while (false)
