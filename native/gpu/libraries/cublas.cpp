// Loading cuBLASLt and cuBLAS, and one matmul with its choice of algorithm.
#include "libraries/cublas.h"

#include <stdexcept>

#include "libraries/cuda_libs.h"
#include "mnist/errors.h"

namespace mnist::cublas {
namespace {

Api load() {
  const auto library = cuda::open_library("cublasLt", {"libcublasLt.so.13", "libcublasLt.so.12"}, "nvidia-cublas-cu12");
  Api api;
  api.path = library.path();
  library.bind(api.GetVersion, "cublasLtGetVersion");
  const std::size_t version = api.GetVersion(), major = version / 10000;
  if (major != 12 && major != 13)
    throw UnavailableError(api.path + " is cuBLAS " + std::to_string(version) +
                           ", expected version 12 or 13; install it with `pip install nvidia-cublas-cu12`");
#define MNIST_ROW(name, result, parameters) library.bind(api.name, "cublasLt" #name);
  MNIST_CUBLAS_FUNCTIONS(MNIST_ROW)
#undef MNIST_ROW
  return api;
}

SgemmApi load_sgemm() {
  const auto library = cuda::open_library("cublas", {"libcublas.so.13", "libcublas.so.12"}, "nvidia-cublas-cu12");
  SgemmApi api;
#define MNIST_ROW(name, result, parameters) library.bind(api.name, "cublas" #name "_v2");
  MNIST_SGEMM_FUNCTIONS(MNIST_ROW)
#undef MNIST_ROW
  return api;
}

Owner<RawLayout> layout(int type, std::int64_t rows, std::int64_t columns) {
  Owner<RawLayout> result;
  MNIST_CUBLAS(MatrixLayoutCreate(result.put(), type, std::uint64_t(rows), std::uint64_t(columns), rows));
  return result;
}

}  // namespace

const Api& api() {
  static const Api instance = load();  // a throw leaves it unset: the next call tries again
  return instance;
}

void throw_error(int status, const char* expression, const char* file, int line) {
  throw std::runtime_error(std::string("cuBLASLt: ") + api().GetStatusName(status) + " from " + expression + " at " +
                           file + ":" + std::to_string(line));
}

Owner<RawContext> create_context() {
  Owner<RawContext> context;
  MNIST_CUBLAS(Create(context.put()));
  return context;
}

Matmul::Matmul(RawContext context, const MatmulShape& shape, std::int64_t workspace_bytes)
    : a_(layout(shape.input_type, shape.transpose_a ? shape.k : shape.m, shape.transpose_a ? shape.m : shape.k)),
      b_(layout(shape.input_type, shape.transpose_b ? shape.n : shape.k, shape.transpose_b ? shape.k : shape.n)),
      d_(layout(shape.output_type, shape.m, shape.n)),
      has_bias_(shape.epilogue != kPlain) {
  MNIST_CUBLAS(MatmulDescCreate(matmul_.put(), shape.compute_type, kFloat));
  const auto set = [&](int attribute, const auto& value) {
    MNIST_CUBLAS(MatmulDescSetAttribute(matmul_.get(), attribute, &value, sizeof value));
  };
  set(kTransposeA, int(shape.transpose_a ? kTranspose : kNoTranspose));
  set(kTransposeB, int(shape.transpose_b ? kTranspose : kNoTranspose));
  set(kEpilogue, shape.epilogue);

  Owner<RawPreference> preference;
  MNIST_CUBLAS(MatmulPreferenceCreate(preference.put()));
  const auto prefer = [&](int attribute, const auto& value) {
    MNIST_CUBLAS(MatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
  };
  prefer(kMaxWorkspaceBytes, std::uint64_t(workspace_bytes));
  prefer(kReductionSchemes, std::uint32_t(kReductionInPlace | kReductionComputeType));  // not in the output's type
  int count = 0;
  const int status = api().MatmulAlgoGetHeuristic(context, matmul_.get(), a_.get(), b_.get(), d_.get(), d_.get(),
                                                  preference.get(), 1, &choice_, &count);
  if (status != kSuccess || count < 1)
    throw UnavailableError("cuBLASLt has no algorithm for a matmul of " + std::to_string(shape.m) + " x " +
                           std::to_string(shape.n) + " x " + std::to_string(shape.k) + " (" +
                           api().GetStatusName(status) + ")");
}

void Matmul::run(RawContext context, void* d, const void* a, const void* b, const void* bias, bool add, void* workspace,
                 cudaStream_t stream) const {
  constexpr float kOne = 1, kZero = 0;
  if (has_bias_) MNIST_CUBLAS(MatmulDescSetAttribute(matmul_.get(), kBiasPointer, &bias, sizeof bias));
  MNIST_CUBLAS(Matmul(context, matmul_.get(), &kOne, a, a_.get(), b, b_.get(), add ? &kOne : &kZero, d, d_.get(), d,
                      d_.get(), &choice_.algorithm, workspace, choice_.workspace_bytes, stream));
}

const SgemmApi& sgemm_api() {
  static const SgemmApi instance = load_sgemm();  // a throw leaves it unset: the next call tries again
  return instance;
}

void throw_sgemm_error(int status, const char* expression, const char* file, int line) {
  throw std::runtime_error("cuBLAS: status " + std::to_string(status) + " from " + expression + " at " + file + ":" +
                           std::to_string(line));
}

}  // namespace mnist::cublas
