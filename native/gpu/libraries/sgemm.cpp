// Loading cuBLAS itself.
#include "libraries/sgemm.h"

#include <stdexcept>

#include "libraries/cuda_libs.h"

namespace mnist::cublas {
namespace {

SgemmApi load() {
  const auto library = cuda::open_library("cublas", {"libcublas.so.13", "libcublas.so.12"}, "nvidia-cublas-cu12");
  SgemmApi api;
#define MNIST_ROW(name, result, parameters) library.bind(api.name, "cublas" #name "_v2");
  MNIST_SGEMM_FUNCTIONS(MNIST_ROW)
#undef MNIST_ROW
  return api;
}

}  // namespace

const SgemmApi& sgemm_api() {
  static const SgemmApi instance = load();  // a throw leaves it unset: the next call tries again
  return instance;
}

void throw_sgemm_error(int status, const char* expression, const char* file, int line) {
  throw std::runtime_error("cuBLAS: status " + std::to_string(status) + " from " + expression + " at " + file + ":" +
                           std::to_string(line));
}

}  // namespace mnist::cublas
