// relu_max_pool2d: one thread a 2x2 window.
#include "cuda/check.h"
#include "kernels/relu_max_pool2d/naive_ops.h"
#include "mnist/step.h"

namespace mnist::kernels::naive {
namespace {

constexpr int kBlock = 64;

// blockIdx.x = plane. Windows do not overlap, so no two threads touch the same x.
template <class T>
__global__ void relu_max_pool2d_forward_kernel(T* __restrict__ y, std::uint8_t* __restrict__ route,
                                               const T* __restrict__ x, int side) {
  const std::int64_t plane = blockIdx.x;
  for (int window = int(threadIdx.x); window < side * side; window += kBlock) {
    const int p = window / side, q = window % side, row = 2 * side;
    const T* corner = x + plane * row * row + 2 * p * row + 2 * q;
    T best = corner[0];
    std::uint8_t where = 0;
    for (int k = 1; k < 4; ++k) {
      const T value = corner[(k / 2) * row + k % 2];
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

template <class T>
__global__ void relu_max_pool2d_backward_kernel(T* __restrict__ dx, const T* __restrict__ dy,
                                                const std::uint8_t* __restrict__ route, int side) {
  const std::int64_t plane = blockIdx.x;
  for (int window = int(threadIdx.x); window < side * side; window += kBlock) {
    const int p = window / side, q = window % side, row = 2 * side;
    T* corner = dx + plane * row * row + 2 * p * row + 2 * q;
    const T d = dy[plane * side * side + window];
    const int where = route[plane * side * side + window];
    for (int k = 0; k < 4; ++k) corner[(k / 2) * row + k % 2] = k == where ? d : 0;
  }
}

// The same with the decisions given.
template <class T>
__global__ void relu_max_pool2d_forward_routed_kernel(T* __restrict__ y, const T* __restrict__ x,
                                                      const std::uint8_t* __restrict__ route, int side) {
  const std::int64_t plane = blockIdx.x;
  for (int window = int(threadIdx.x); window < side * side; window += kBlock) {
    const int p = window / side, q = window % side, row = 2 * side;
    const int where = route[plane * side * side + window];
    const T* corner = x + plane * row * row + 2 * p * row + 2 * q;
    y[plane * side * side + window] = where == kDead ? 0 : corner[(where / 2) * row + where % 2];
  }
}

void require_sizes(const char* what, std::int64_t planes, int side) {
  MNIST_REQUIRE(planes > 0 && side > 0,
                what << ": " << planes << " planes of side " << side << ", expected both at least 1");
}

}  // namespace

template <class T>
void relu_max_pool2d_forward(T* y, std::uint8_t* route, const T* x, std::int64_t planes, int side,
                             cudaStream_t stream) {
  require_sizes("relu_max_pool2d_forward", planes, side);
  relu_max_pool2d_forward_kernel<<<unsigned(planes), kBlock, 0, stream>>>(y, route, x, side);
  MNIST_CHECK_LAUNCH();
}

template <class T>
void relu_max_pool2d_forward_routed(T* y, const T* x, const std::uint8_t* route, std::int64_t planes, int side,
                                    cudaStream_t stream) {
  require_sizes("relu_max_pool2d_forward_routed", planes, side);
  relu_max_pool2d_forward_routed_kernel<<<unsigned(planes), kBlock, 0, stream>>>(y, x, route, side);
  MNIST_CHECK_LAUNCH();
}

template <class T>
void relu_max_pool2d_backward(T* dx, const T* dy, const std::uint8_t* route, std::int64_t planes, int side,
                              cudaStream_t stream) {
  require_sizes("relu_max_pool2d_backward", planes, side);
  relu_max_pool2d_backward_kernel<<<unsigned(planes), kBlock, 0, stream>>>(dx, dy, route, side);
  MNIST_CHECK_LAUNCH();
}

#define MNIST_INSTANTIATE(T)                                                                                        \
  template void relu_max_pool2d_forward(T*, std::uint8_t*, const T*, std::int64_t, int, cudaStream_t);              \
  template void relu_max_pool2d_forward_routed(T*, const T*, const std::uint8_t*, std::int64_t, int, cudaStream_t); \
  template void relu_max_pool2d_backward(T*, const T*, const std::uint8_t*, std::int64_t, int, cudaStream_t)
MNIST_INSTANTIATE(float);
MNIST_INSTANTIATE(double);

}  // namespace mnist::kernels::naive
