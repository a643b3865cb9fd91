// relu, float4: four elements a thread, the simplest form of coarsening.
#include "cuda/check.h"
#include "kernels/relu/relu.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kBlock = 256;

__device__ float keep(float x, bool passes) { return passes ? x : 0; }

__global__ void relu_forward_float4_kernel(float* __restrict__ y, std::uint8_t* __restrict__ pass,
                                           const float* __restrict__ x, std::int64_t count) {
  const std::int64_t n = std::int64_t(blockIdx.x) * kBlock + threadIdx.x, first = 4 * n;
  if (first + 3 < count) {
    const float4 v = reinterpret_cast<const float4*>(x)[n];
    const bool a = !(v.x <= 0), b = !(v.y <= 0), c = !(v.z <= 0), d = !(v.w <= 0);
    reinterpret_cast<float4*>(y)[n] = make_float4(keep(v.x, a), keep(v.y, b), keep(v.z, c), keep(v.w, d));
    reinterpret_cast<uchar4*>(pass)[n] = make_uchar4(a, b, c, d);
    return;
  }
  for (std::int64_t k = first; k < count; ++k) {
    pass[k] = !(x[k] <= 0);
    y[k] = keep(x[k], pass[k]);
  }
}

bool aligned(const void* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

}  // namespace

void relu_forward_float4(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  MNIST_REQUIRE(aligned(x, 16) && aligned(y, 16) && aligned(pass, 4),
                "relu_forward_float4: x and y must be aligned to 16 bytes, pass to 4");
  const std::int64_t threads = (count + 3) / 4;
  relu_forward_float4_kernel<<<unsigned(ceil_div(threads, kBlock)), kBlock, 0, stream>>>(y, pass, x, count);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
