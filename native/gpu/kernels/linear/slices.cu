// linear: the pass that adds the slices of a summed index, and the sums over the batch of dbias.
#include "cuda/check.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/slices.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kBlock = 128;
constexpr int kColumns = 32, kParts = 32;  // of a block of linear_backward_bias

// One thread per output.
__global__ void linear_add_slices_kernel(float* __restrict__ y, const float* __restrict__ partial,
                                         const float* __restrict__ bias, std::int64_t count, int out, int slices) {
  const std::int64_t n = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (n >= count) return;
  float sum = 0;
#pragma unroll 16
  for (int slice = 0; slice < slices; ++slice) sum += partial[slice * count + n];
  y[n] = bias ? sum + bias[n % out] : sum;
}

// blockIdx.x = which 32 outputs; threadIdx.x = output, threadIdx.y = every 32nd row from which on.
__global__ void linear_backward_bias_kernel(float* __restrict__ dbias, const float* __restrict__ dy, std::int64_t batch,
                                            int out) {
  __shared__ float sums[kParts][kColumns];
  const int o = int(blockIdx.x) * kColumns + int(threadIdx.x);
  float sum = 0;
  if (o < out) {
#pragma unroll 8
    for (std::int64_t b = threadIdx.y; b < batch; b += kParts) sum += dy[b * out + o];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();  // the sums of all rows are there
  if (threadIdx.y > 0 || o >= out) return;
  for (int part = 1; part < kParts; ++part) sum += sums[part][threadIdx.x];
  dbias[o] = sum;
}

}  // namespace

void linear_add_slices(float* y, const float* partial, const float* bias, std::int64_t rows, int columns, int slices,
                       cudaStream_t stream) {
  const std::int64_t count = rows * columns;
  linear_add_slices_kernel<<<unsigned(ceil_div(count, kBlock)), kBlock, 0, stream>>>(y, partial, bias, count, columns,
                                                                                     slices);
  MNIST_CHECK_LAUNCH();
}

void linear_backward_bias(float* dbias, const float* dy, std::int64_t batch, int out, cudaStream_t stream) {
  const dim3 block(kColumns, kParts);
  linear_backward_bias_kernel<<<unsigned(ceil_div(out, kColumns)), block, 0, stream>>>(dbias, dy, batch, out);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
