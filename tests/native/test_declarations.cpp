// Our own declarations of cuDNN, cuBLAS, cuBLASLt, cuFFT and NCCL against NVIDIA's headers. Compiling this file is the
// test; CMake builds it where it finds the headers; those of cuFFT and NCCL, of optional extras, may be missing.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cudnn.h>

#if __has_include(<cufft.h>)
#include <cufft.h>
#endif
#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

#include <type_traits>

#include "libraries/cublas.h"
#include "libraries/cudnn.h"
#include "libraries/cufft.h"
#include "libraries/nccl.h"
#include "testing.h"

namespace {

// Two parameters agree if they have the same size and are both pointers, both integers or enumerations, both
// structures, or both of the same other type.
template <class A, class B>
constexpr bool alike() {
  constexpr auto is_integer = []<class T>(T*) { return std::is_integral_v<T> || std::is_enum_v<T>; };
  if constexpr (std::is_pointer_v<A> || std::is_pointer_v<B>)
    return std::is_pointer_v<A> && std::is_pointer_v<B>;
  else if constexpr (std::is_void_v<A> || std::is_void_v<B>)
    return std::is_same_v<A, B>;
  else
    return sizeof(A) == sizeof(B) && ((is_integer(static_cast<A*>(nullptr)) && is_integer(static_cast<B*>(nullptr))) ||
                                      (std::is_class_v<A> && std::is_class_v<B>) || std::is_same_v<A, B>);
}

template <class Real, class Ours>
struct Same : std::false_type {};
template <class R, class... A, class S, class... B>
  requires(sizeof...(A) == sizeof...(B))
struct Same<R (*)(A...), S (*)(B...)> : std::bool_constant<alike<R, S>() && (alike<A, B>() && ...)> {};

#define MNIST_ROW(name, result, parameters) \
  static_assert(Same<decltype(&::cudnn##name), decltype(mnist::cudnn::Api::name)>::value, "cudnn" #name);
MNIST_CUDNN_FUNCTIONS(MNIST_ROW)
#undef MNIST_ROW
#define MNIST_ROW(name, result, parameters) \
  static_assert(Same<decltype(&::cublasLt##name), decltype(mnist::cublas::Api::name)>::value, "cublasLt" #name);
MNIST_CUBLAS_FUNCTIONS(MNIST_ROW)
#undef MNIST_ROW
#define MNIST_ROW(name, result, parameters) \
  static_assert(Same<decltype(&::cublas##name##_v2), decltype(mnist::cublas::SgemmApi::name)>::value, "cublas" #name);
MNIST_SGEMM_FUNCTIONS(MNIST_ROW)
#undef MNIST_ROW

#define MNIST_ROW(name, real, value) static_assert(int(real) == int(mnist::cudnn::name), #real);
MNIST_CUDNN_CONSTANTS(MNIST_ROW)
#undef MNIST_ROW
#define MNIST_ROW(name, real, value) static_assert(int(real) == int(mnist::cublas::name), #real);
MNIST_CUBLAS_CONSTANTS(MNIST_ROW)
#undef MNIST_ROW

#if __has_include(<cufft.h>)
#define MNIST_ROW(name, result, parameters) \
  static_assert(Same<decltype(&::cufft##name), decltype(mnist::cufft::Api::name)>::value, "cufft" #name);
MNIST_CUFFT_FUNCTIONS(MNIST_ROW)
#undef MNIST_ROW
#define MNIST_ROW(name, real, value) static_assert(int(real) == int(mnist::cufft::name), #real);
MNIST_CUFFT_CONSTANTS(MNIST_ROW)
#undef MNIST_ROW
#endif

#if __has_include(<nccl.h>)
#define MNIST_ROW(name, result, parameters) \
  static_assert(Same<decltype(&::nccl##name), decltype(mnist::nccl::Api::name)>::value, "nccl" #name);
MNIST_NCCL_FUNCTIONS(MNIST_ROW)
#undef MNIST_ROW
#define MNIST_ROW(name, real, value) static_assert(int(real) == int(mnist::nccl::name), #real);
MNIST_NCCL_CONSTANTS(MNIST_ROW)
#undef MNIST_ROW
#endif

static_assert(CUDNN_MAJOR == 9);
static_assert(sizeof(cudnnFraction_t) == sizeof(mnist::cudnn::Fraction));
static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(mnist::cublas::Algorithm));
static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == sizeof(mnist::cublas::HeuristicResult));
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) ==
              offsetof(mnist::cublas::HeuristicResult, workspace_bytes));
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, state) == offsetof(mnist::cublas::HeuristicResult, status));

}  // namespace

int main() {
  CHECK(CUDNN_MAJOR == 9);
  return testing::finish();
}
