// normalize: one thread a pixel.
#include "cuda/check.h"
#include "kernels/normalize.h"
#include "mnist/ceil_div.h"
#include "mnist/model.h"

namespace mnist::kernels::naive {
namespace {

constexpr int kBlock = 256;

template <class T>
__global__ void normalize_forward_kernel(T* __restrict__ x, const std::uint8_t* __restrict__ u, std::int64_t count) {
  constexpr T kScale = T(1 / (255 * kPixelStd)), kShift = T(-kPixelMean / kPixelStd);
  const std::int64_t k = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (k < count) x[k] = kScale * T(u[k]) + kShift;
}

}  // namespace

template <class T>
void normalize_forward(T* x, const std::uint8_t* u, std::int64_t count, cudaStream_t stream) {
  MNIST_REQUIRE(count > 0, "normalize_forward: count is " << count << ", expected at least 1");
  normalize_forward_kernel<<<unsigned(ceil_div(count, kBlock)), kBlock, 0, stream>>>(x, u, count);
  MNIST_CHECK_LAUNCH();
}

#define MNIST_INSTANTIATE(T) template void normalize_forward(T*, const std::uint8_t*, std::int64_t, cudaStream_t)
MNIST_INSTANTIATE(float);
MNIST_INSTANTIATE(double);

}  // namespace mnist::kernels::naive
