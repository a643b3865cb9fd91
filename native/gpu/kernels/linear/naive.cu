// linear: one thread an output, a dot product inside it.
#include "cuda/check.h"
#include "kernels/linear/naive_ops.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels::naive {
namespace {

constexpr int kBlock = 128;

// blockIdx.x = b, blockIdx.y = which 128 outputs. A warp reads 32 rows of w at once: 32 sectors per load, and 4 of the
// 32 bytes of each.
template <class T>
__global__ void linear_forward_kernel(T* __restrict__ y, const T* __restrict__ x, const T* __restrict__ w,
                                      const T* __restrict__ bias, int in, int out) {
  const std::int64_t b = blockIdx.x;
  const int o = int(blockIdx.y * kBlock + threadIdx.x);
  if (o >= out) return;
  T sum = bias[o];
  for (int i = 0; i < in; ++i) sum += w[o * in + i] * x[b * in + i];
  y[b * out + o] = sum;
}

// blockIdx.x = b, blockIdx.y = which 128 inputs.
template <class T>
__global__ void linear_backward_x_kernel(T* __restrict__ dx, const T* __restrict__ dy, const T* __restrict__ w, int in,
                                         int out) {
  const std::int64_t b = blockIdx.x;
  const int i = int(blockIdx.y * kBlock + threadIdx.x);
  if (i >= in) return;
  T sum = 0;
  for (int o = 0; o < out; ++o) sum += dy[b * out + o] * w[o * in + i];
  dx[b * in + i] = sum;
}

// blockIdx.x = o, blockIdx.y = which 128 inputs.
template <class T>
__global__ void linear_backward_w_kernel(T* __restrict__ dw, const T* __restrict__ dy, const T* __restrict__ x,
                                         std::int64_t batch, int in, int out) {
  const int o = int(blockIdx.x), i = int(blockIdx.y * kBlock + threadIdx.x);
  if (i >= in) return;
  T sum = 0;
  for (std::int64_t b = 0; b < batch; ++b) sum += dy[b * out + o] * x[b * in + i];
  dw[o * in + i] = sum;
}

template <class T>
__global__ void linear_backward_bias_kernel(T* __restrict__ dbias, const T* __restrict__ dy, std::int64_t batch,
                                            int out) {
  const int o = int(blockIdx.x * kBlock + threadIdx.x);
  if (o >= out) return;
  T sum = 0;
  for (std::int64_t b = 0; b < batch; ++b) sum += dy[b * out + o];
  dbias[o] = sum;
}

unsigned blocks(int count) { return unsigned(ceil_div(count, kBlock)); }

void require_sizes(const char* what, std::int64_t batch, int in, int out) {
  MNIST_REQUIRE(batch > 0 && in > 0 && out > 0,
                what << ": batch " << batch << ", " << in << " to " << out << " features, expected all at least 1");
}

}  // namespace

template <class T>
void linear_forward(T* y, const T* x, const T* w, const T* bias, std::int64_t batch, int in, int out,
                    cudaStream_t stream) {
  require_sizes("linear_forward", batch, in, out);
  const dim3 grid(unsigned(batch), blocks(out));
  linear_forward_kernel<<<grid, kBlock, 0, stream>>>(y, x, w, bias, in, out);
  MNIST_CHECK_LAUNCH();
}

template <class T>
void linear_backward(T* dx, T* dw, T* dbias, const T* dy, const T* x, const T* w, std::int64_t batch, int in, int out,
                     cudaStream_t stream) {
  require_sizes("linear_backward", batch, in, out);
  const dim3 x_grid(unsigned(batch), blocks(in)), w_grid(unsigned(out), blocks(in));
  linear_backward_x_kernel<<<x_grid, kBlock, 0, stream>>>(dx, dy, w, in, out);
  MNIST_CHECK_LAUNCH();
  linear_backward_w_kernel<<<w_grid, kBlock, 0, stream>>>(dw, dy, x, batch, in, out);
  MNIST_CHECK_LAUNCH();
  linear_backward_bias_kernel<<<blocks(out), kBlock, 0, stream>>>(dbias, dy, batch, out);
  MNIST_CHECK_LAUNCH();
}

#define MNIST_INSTANTIATE(T)                                                                            \
  template void linear_forward(T*, const T*, const T*, const T*, std::int64_t, int, int, cudaStream_t); \
  template void linear_backward(T*, T*, T*, const T*, const T*, const T*, std::int64_t, int, int, cudaStream_t)
MNIST_INSTANTIATE(float);
MNIST_INSTANTIATE(double);

}  // namespace mnist::kernels::naive
