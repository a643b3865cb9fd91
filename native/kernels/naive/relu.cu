// relu: one thread an element.
#include "cuda/check.h"
#include "kernels/naive/relu.h"

namespace mnist::kernels::naive {
namespace {

constexpr int kBlock = 256;

__global__ void relu_forward_kernel(float* __restrict__ y, std::uint8_t* __restrict__ pass, const float* __restrict__ x,
                                    std::int64_t count) {
  const std::int64_t k = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (k >= count) return;
  const bool passes = !(x[k] <= 0);
  pass[k] = passes;
  y[k] = passes ? x[k] : 0;
}

__global__ void relu_backward_kernel(float* __restrict__ dx, const float* __restrict__ dy,
                                     const std::uint8_t* __restrict__ pass, std::int64_t count) {
  const std::int64_t k = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (k < count) dx[k] = pass[k] ? dy[k] : 0;
}

unsigned blocks(const char* what, std::int64_t count) {
  MNIST_REQUIRE(count > 0, what << ": count is " << count << ", expected at least 1");
  return unsigned((count + kBlock - 1) / kBlock);
}

}  // namespace

void relu_forward(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  relu_forward_kernel<<<blocks("relu_forward", count), kBlock, 0, stream>>>(y, pass, x, count);
  MNIST_CHECK_LAUNCH();
}

void relu_backward(float* dx, const float* dy, const std::uint8_t* pass, std::int64_t count, cudaStream_t stream) {
  relu_backward_kernel<<<blocks("relu_backward", count), kBlock, 0, stream>>>(dx, dy, pass, count);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels::naive
