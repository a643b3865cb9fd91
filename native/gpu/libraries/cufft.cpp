// Loading cuFFT, and plans.
#include "libraries/cufft.h"

#include <stdexcept>
#include <string>

#include "libraries/cuda_libs.h"

namespace mnist::cufft {
namespace {

Api load() {
  const auto library = cuda::open_library("cufft", {"libcufft.so.12", "libcufft.so.11"}, "nvidia-cufft-cu12");
  Api api;
#define MNIST_ROW(name, result, parameters) library.bind(api.name, "cufft" #name);
  MNIST_CUFFT_FUNCTIONS(MNIST_ROW)
#undef MNIST_ROW
  return api;
}

void check(int status, const char* call) {
  if (status != kSuccess)
    throw std::runtime_error(std::string("cuFFT: status ") + std::to_string(status) + " from cufft" + call);
}

}  // namespace

const Api& api() {
  static const Api instance = load();  // a throw leaves it unset: the next call tries again
  return instance;
}

Plan::Plan(Constant direction, int side, int count) {
  check(api().Create(&plan_), "Create");
  int sizes[2] = {side, side};
  std::size_t bytes = 0;
  const int status = api().MakePlanMany(plan_, 2, sizes, nullptr, 1, 0, nullptr, 1, 0, direction, count, &bytes);
  if (status == kSuccess) return;
  (void)api().Destroy(plan_);
  check(status, "MakePlanMany");
}

Plan::~Plan() { (void)api().Destroy(plan_); }

void Plan::use(cudaStream_t stream) {
  if (stream == stream_) return;
  check(api().SetStream(plan_, stream), "SetStream");
  stream_ = stream;
}

void Plan::forward(float2* spectra, float* planes, cudaStream_t stream) {
  use(stream);
  check(api().ExecR2C(plan_, planes, spectra), "ExecR2C");
}

void Plan::inverse(float* planes, float2* spectra, cudaStream_t stream) {
  use(stream);
  check(api().ExecC2R(plan_, spectra, planes), "ExecC2R");
}

}  // namespace mnist::cufft
