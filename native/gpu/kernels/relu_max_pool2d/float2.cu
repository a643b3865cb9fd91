// relu_max_pool2d, float2: a window is two loads of 8 bytes; backward, two stores.
#include "cuda/check.h"
#include "kernels/relu_max_pool2d/relu_max_pool2d.h"
#include "mnist/ceil_div.h"
#include "mnist/step.h"

namespace mnist::kernels {
namespace {

constexpr int kBlock = 256;

__device__ void consider(float value, std::uint8_t k, float& best, std::uint8_t& where) {
  if (value > best || (isnan(value) && !isnan(best))) {
    best = value;
    where = k;
  }
}

// Rows of windows follow one another across planes: window n is column n % side of row n / side, and row r of
// windows is rows 2r and 2r+1 of all planes stacked.
__global__ void relu_max_pool2d_forward_float2_kernel(float* __restrict__ y, std::uint8_t* __restrict__ route,
                                                      const float2* __restrict__ x, std::int64_t count, int side) {
  const std::int64_t n = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (n >= count) return;
  const std::int64_t row = n / side;
  const float2 upper = x[n + row * side], lower = x[n + (row + 1) * side];
  float best = upper.x;
  std::uint8_t where = 0;
  consider(upper.y, 1, best, where);
  consider(lower.x, 2, best, where);
  consider(lower.y, 3, best, where);
  const bool dead = best <= 0;
  y[n] = dead ? 0 : best;
  route[n] = dead ? kDead : where;
}

__global__ void relu_max_pool2d_backward_float2_kernel(float2* __restrict__ dx, const float* __restrict__ dy,
                                                       const std::uint8_t* __restrict__ route, std::int64_t count,
                                                       int side) {
  const std::int64_t n = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (n >= count) return;
  const std::int64_t row = n / side;
  const float d = dy[n];
  const int where = route[n];
  dx[n + row * side] = make_float2(where == 0 ? d : 0, where == 1 ? d : 0);
  dx[n + (row + 1) * side] = make_float2(where == 2 ? d : 0, where == 3 ? d : 0);
}

}  // namespace

void relu_max_pool2d_forward_float2(float* y, std::uint8_t* route, const float* x, std::int64_t planes, int side,
                                    cudaStream_t stream) {
  MNIST_REQUIRE(reinterpret_cast<std::uintptr_t>(x) % sizeof(float2) == 0,
                "relu_max_pool2d_forward_float2: x must be aligned to 8 bytes");
  const std::int64_t count = planes * side * side;
  relu_max_pool2d_forward_float2_kernel<<<unsigned(ceil_div(count, kBlock)), kBlock, 0, stream>>>(
      y, route, reinterpret_cast<const float2*>(x), count, side);
  MNIST_CHECK_LAUNCH();
}

void relu_max_pool2d_backward_float2(float* dx, const float* dy, const std::uint8_t* route, std::int64_t planes,
                                     int side, cudaStream_t stream) {
  MNIST_REQUIRE(reinterpret_cast<std::uintptr_t>(dx) % sizeof(float2) == 0,
                "relu_max_pool2d_backward_float2: dx must be aligned to 8 bytes");
  const std::int64_t count = planes * side * side;
  relu_max_pool2d_backward_float2_kernel<<<unsigned(ceil_div(count, kBlock)), kBlock, 0, stream>>>(
      reinterpret_cast<float2*>(dx), dy, route, count, side);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
