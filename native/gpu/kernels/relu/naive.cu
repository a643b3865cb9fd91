// relu: one thread an element.
#include "cuda/check.h"
#include "kernels/relu/naive_ops.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels::naive {
namespace {

constexpr int kBlock = 256;

template <class T>
__global__ void relu_forward_kernel(T* __restrict__ y, std::uint8_t* __restrict__ pass, const T* __restrict__ x,
                                    std::int64_t count) {
  const std::int64_t k = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (k >= count) return;
  const bool passes = !(x[k] <= 0);
  pass[k] = passes;
  y[k] = passes ? x[k] : 0;
}

template <class T>
__global__ void relu_backward_kernel(T* __restrict__ dx, const T* __restrict__ dy,
                                     const std::uint8_t* __restrict__ pass, std::int64_t count) {
  const std::int64_t k = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (k < count) dx[k] = pass[k] ? dy[k] : 0;
}

unsigned blocks(const char* what, std::int64_t count) {
  MNIST_REQUIRE(count > 0, what << ": count is " << count << ", expected at least 1");
  return unsigned(ceil_div(count, kBlock));
}

}  // namespace

template <class T>
void relu_forward(T* y, std::uint8_t* pass, const T* x, std::int64_t count, cudaStream_t stream) {
  relu_forward_kernel<<<blocks("relu_forward", count), kBlock, 0, stream>>>(y, pass, x, count);
  MNIST_CHECK_LAUNCH();
}

template <class T>
void relu_backward(T* dx, const T* dy, const std::uint8_t* pass, std::int64_t count, cudaStream_t stream) {
  relu_backward_kernel<<<blocks("relu_backward", count), kBlock, 0, stream>>>(dx, dy, pass, count);
  MNIST_CHECK_LAUNCH();
}

#define MNIST_INSTANTIATE(T)                                                           \
  template void relu_forward(T*, std::uint8_t*, const T*, std::int64_t, cudaStream_t); \
  template void relu_backward(T*, const T*, const std::uint8_t*, std::int64_t, cudaStream_t)
MNIST_INSTANTIATE(float);
MNIST_INSTANTIATE(double);

}  // namespace mnist::kernels::naive
