// batch_norm statistics, shuffle: two passes, sums handed from register to register.
#include "cuda/check.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/device/for_each_of_chunk.cuh"

namespace mnist::kernels {
namespace {

constexpr int kBlock = 256, kWarps = kBlock / 32;

__device__ float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffff, value, step);
  return value;
}

// partial[chunk,c] = sum of x, or of (x - mean[c])^2 where there is a mean.
__global__ void moment_kernel(float* __restrict__ partial, const float* __restrict__ x, const float* __restrict__ mean,
                              std::int64_t batch, int area) {
  __shared__ float of_warp[kWarps];
  const float centre = mean ? mean[blockIdx.x] : 0;
  float sum = 0;
  if (mean)
    device::for_each_of_chunk<kBlock>(batch, area, [&](std::int64_t k) { sum += (x[k] - centre) * (x[k] - centre); });
  else
    device::for_each_of_chunk<kBlock>(batch, area, [&](std::int64_t k) { sum += x[k]; });
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  sum = warp_sum(sum);
  if (lane == 0) of_warp[warp] = sum;
  __syncthreads();  // the sums of all warps are there
  if (warp > 0) return;
  sum = warp_sum(lane < kWarps ? of_warp[lane] : 0);
  if (lane == 0) partial[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

// One warp a channel: total[c] = per_value * sum over the chunks of partial[chunk,c].
__global__ void finish_kernel(float* __restrict__ total, const float* __restrict__ partial, float per_value,
                              int chunks) {
  float sum = 0;
  for (int chunk = int(threadIdx.x); chunk < chunks; chunk += 32) sum += partial[chunk * gridDim.x + blockIdx.x];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) total[blockIdx.x] = per_value * sum;
}

}  // namespace

void batch_norm_statistics_shuffle(float* mean, float* var, float* partial, const float* x, std::int64_t batch,
                                   int channels, int area, cudaStream_t stream) {
  const int chunks = int(naive::chunk_count(batch));
  const dim3 grid{unsigned(channels), unsigned(chunks)};
  const float per_value = float(1 / (double(batch) * area));
  for (float* total : {mean, var}) {
    moment_kernel<<<grid, kBlock, 0, stream>>>(partial, x, total == var ? mean : nullptr, batch, area);
    MNIST_CHECK_LAUNCH();
    finish_kernel<<<unsigned(channels), 32, 0, stream>>>(total, partial, per_value, chunks);
    MNIST_CHECK_LAUNCH();
  }
}

}  // namespace mnist::kernels
