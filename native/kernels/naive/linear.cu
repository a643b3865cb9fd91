// linear: one thread an output, a dot product inside it.
#include "cuda/check.h"
#include "kernels/naive/linear.h"

namespace mnist::kernels::naive {
namespace {

constexpr int kBlock = 128;

// blockIdx.x = b, blockIdx.y = which 128 outputs.
__global__ void linear_forward_kernel(float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ w,
                                      const float* __restrict__ bias, int in, int out) {
  const std::int64_t b = blockIdx.x;
  const int o = int(blockIdx.y * kBlock + threadIdx.x);
  if (o >= out) return;
  float sum = bias[o];
  for (int i = 0; i < in; ++i) sum += w[o * in + i] * x[b * in + i];
  y[b * out + o] = sum;
}

// blockIdx.x = b, blockIdx.y = which 128 inputs.
__global__ void linear_backward_x_kernel(float* __restrict__ dx, const float* __restrict__ dy,
                                         const float* __restrict__ w, int in, int out) {
  const std::int64_t b = blockIdx.x;
  const int i = int(blockIdx.y * kBlock + threadIdx.x);
  if (i >= in) return;
  float sum = 0;
  for (int o = 0; o < out; ++o) sum += dy[b * out + o] * w[o * in + i];
  dx[b * in + i] = sum;
}

// blockIdx.x = o, blockIdx.y = which 128 inputs.
__global__ void linear_backward_w_kernel(float* __restrict__ dw, const float* __restrict__ dy,
                                         const float* __restrict__ x, std::int64_t batch, int in, int out) {
  const int o = int(blockIdx.x), i = int(blockIdx.y * kBlock + threadIdx.x);
  if (i >= in) return;
  float sum = 0;
  for (std::int64_t b = 0; b < batch; ++b) sum += dy[b * out + o] * x[b * in + i];
  dw[o * in + i] = sum;
}

__global__ void linear_backward_bias_kernel(float* __restrict__ dbias, const float* __restrict__ dy, std::int64_t batch,
                                            int out) {
  const int o = int(blockIdx.x * kBlock + threadIdx.x);
  if (o >= out) return;
  float sum = 0;
  for (std::int64_t b = 0; b < batch; ++b) sum += dy[b * out + o];
  dbias[o] = sum;
}

unsigned blocks(int count) { return unsigned((count + kBlock - 1) / kBlock); }

void require_sizes(const char* what, std::int64_t batch, int in, int out) {
  MNIST_REQUIRE(batch > 0 && in > 0 && out > 0,
                what << ": batch " << batch << ", " << in << " to " << out << " features, expected all at least 1");
}

}  // namespace

void linear_forward(float* y, const float* x, const float* w, const float* bias, std::int64_t batch, int in, int out,
                    cudaStream_t stream) {
  require_sizes("linear_forward", batch, in, out);
  const dim3 grid(unsigned(batch), blocks(out));
  linear_forward_kernel<<<grid, kBlock, 0, stream>>>(y, x, w, bias, in, out);
  MNIST_CHECK_LAUNCH();
}

void linear_backward(float* dx, float* dw, float* dbias, const float* dy, const float* x, const float* w,
                     std::int64_t batch, int in, int out, cudaStream_t stream) {
  require_sizes("linear_backward", batch, in, out);
  const dim3 x_grid(unsigned(batch), blocks(in)), w_grid(unsigned(out), blocks(in));
  linear_backward_x_kernel<<<x_grid, kBlock, 0, stream>>>(dx, dy, w, in, out);
  MNIST_CHECK_LAUNCH();
  linear_backward_w_kernel<<<w_grid, kBlock, 0, stream>>>(dw, dy, x, batch, in, out);
  MNIST_CHECK_LAUNCH();
  linear_backward_bias_kernel<<<blocks(out), kBlock, 0, stream>>>(dbias, dy, batch, out);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels::naive
