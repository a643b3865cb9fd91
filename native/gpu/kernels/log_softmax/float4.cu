// log_softmax backward, float4: four elements a thread.
#include "cuda/check.h"
#include "kernels/log_softmax/log_softmax.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kBlock = 64;

__global__ void log_softmax_nll_backward_float4_kernel(float* __restrict__ dx, const float* __restrict__ log_p,
                                                       const std::uint8_t* __restrict__ labels, float scale,
                                                       std::int64_t count, int classes) {
  const std::int64_t n = std::int64_t(blockIdx.x) * kBlock + threadIdx.x, first = 4 * n;
  std::int64_t b = first / classes;
  int k = int(first % classes);
  const auto next = [&](float value) {
    const float gradient = scale * (expf(value) - float(k == labels[b]));
    if (++k == classes) {
      k = 0;
      ++b;
    }
    return gradient;
  };
  if (first + 3 < count) {
    const float4 v = reinterpret_cast<const float4*>(log_p)[n];
    reinterpret_cast<float4*>(dx)[n] = {next(v.x), next(v.y), next(v.z), next(v.w)};
    return;
  }
  for (std::int64_t rest = first; rest < count; ++rest) dx[rest] = next(log_p[rest]);
}

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % sizeof(float4) == 0; }

}  // namespace

void log_softmax_nll_backward_float4(float* dx, const float* log_p, const std::uint8_t* labels, double upstream,
                                     std::int64_t batch, int classes, cudaStream_t stream) {
  MNIST_REQUIRE(aligned(dx) && aligned(log_p),
                "log_softmax_nll_backward_float4: dx and log_p must be aligned to 16 bytes");
  const std::int64_t count = batch * classes, threads = (count + 3) / 4;
  log_softmax_nll_backward_float4_kernel<<<unsigned(ceil_div(threads, kBlock)), kBlock, 0, stream>>>(
      dx, log_p, labels, float(upstream / double(batch)), count, classes);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
