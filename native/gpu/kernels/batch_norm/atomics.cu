// batch_norm statistics, atomics: one pass, and two numbers a channel that every thread adds to.
#include "cuda/buffer.h"
#include "cuda/check.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/device/for_each_of_chunk.cuh"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kBlock = 256;

__global__ void add_kernel(float* __restrict__ sums, float* __restrict__ squares, const float* __restrict__ x,
                           std::int64_t batch, int area) {
  float sum = 0, square = 0;
  device::for_each_of_chunk<kBlock>(batch, area, [&](std::int64_t k) {
    sum += x[k];
    square += x[k] * x[k];
  });
  atomicAdd(&sums[blockIdx.x], sum);
  atomicAdd(&squares[blockIdx.x], square);
}

// In place: sum to mean, sum of squares to variance.
__global__ void finish_kernel(float* __restrict__ mean, float* __restrict__ var, float per_value, int channels) {
  const int c = int(blockIdx.x * kBlock + threadIdx.x);
  if (c >= channels) return;
  const float centre = mean[c] * per_value;
  mean[c] = centre;
  var[c] = fmaxf(0, var[c] * per_value - centre * centre);  // rounding can make it negative
}

}  // namespace

void batch_norm_statistics_atomics(float* mean, float* var, float*, const float* x, std::int64_t batch, int channels,
                                   int area, cudaStream_t stream) {
  const dim3 grid(unsigned(channels), unsigned(naive::chunk_count(batch)));
  cuda::fill_bytes(mean, 0, channels, stream);
  cuda::fill_bytes(var, 0, channels, stream);
  add_kernel<<<grid, kBlock, 0, stream>>>(mean, var, x, batch, area);
  MNIST_CHECK_LAUNCH();
  finish_kernel<<<unsigned(ceil_div(channels, kBlock)), kBlock, 0, stream>>>(
      mean, var, float(1 / (double(batch) * area)), channels);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
