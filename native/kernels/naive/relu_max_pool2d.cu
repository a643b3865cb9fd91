// relu_max_pool2d: one thread a 2x2 window.
#include "cuda/check.h"
#include "kernels/naive/relu_max_pool2d.h"
#include "mnist/engine.h"

namespace mnist::kernels::naive {
namespace {

constexpr int kBlock = 64;
constexpr std::uint8_t kDead = Routing::kDead;

// blockIdx.x = plane. Windows do not overlap, so no two threads touch the same x.
__global__ void relu_max_pool2d_forward_kernel(float* __restrict__ y, std::uint8_t* __restrict__ route,
                                               const float* __restrict__ x, int side) {
  const std::int64_t plane = blockIdx.x;
  for (int window = int(threadIdx.x); window < side * side; window += kBlock) {
    const int p = window / side, q = window % side, row = 2 * side;
    const float* corner = x + plane * row * row + 2 * p * row + 2 * q;
    float best = corner[0];
    std::uint8_t where = 0;
    for (int k = 1; k < 4; ++k) {
      const float value = corner[(k / 2) * row + k % 2];
      if (value > best || (isnan(value) && !isnan(best))) {  // strictly greater: the first of equals stays
        best = value;
        where = std::uint8_t(k);
      }
    }
    const bool dead = best <= 0;
    y[plane * side * side + window] = dead ? 0 : best;
    route[plane * side * side + window] = dead ? kDead : where;
  }
}

__global__ void relu_max_pool2d_backward_kernel(float* __restrict__ dx, const float* __restrict__ dy,
                                                const std::uint8_t* __restrict__ route, int side) {
  const std::int64_t plane = blockIdx.x;
  for (int window = int(threadIdx.x); window < side * side; window += kBlock) {
    const int p = window / side, q = window % side, row = 2 * side;
    float* corner = dx + plane * row * row + 2 * p * row + 2 * q;
    const float d = dy[plane * side * side + window];
    const int where = route[plane * side * side + window];
    for (int k = 0; k < 4; ++k) corner[(k / 2) * row + k % 2] = k == where ? d : 0;
  }
}

void require_sizes(const char* what, std::int64_t planes, int side) {
  MNIST_REQUIRE(planes > 0 && side > 0,
                what << ": " << planes << " planes of side " << side << ", expected both at least 1");
}

}  // namespace

void relu_max_pool2d_forward(float* y, std::uint8_t* route, const float* x, std::int64_t planes, int side,
                             cudaStream_t stream) {
  require_sizes("relu_max_pool2d_forward", planes, side);
  relu_max_pool2d_forward_kernel<<<unsigned(planes), kBlock, 0, stream>>>(y, route, x, side);
  MNIST_CHECK_LAUNCH();
}

void relu_max_pool2d_backward(float* dx, const float* dy, const std::uint8_t* route, std::int64_t planes, int side,
                              cudaStream_t stream) {
  require_sizes("relu_max_pool2d_backward", planes, side);
  relu_max_pool2d_backward_kernel<<<unsigned(planes), kBlock, 0, stream>>>(dx, dy, route, side);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels::naive
