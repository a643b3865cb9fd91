// batch_norm statistics, cub: `shuffle`'s two passes, the sum of a block by NVIDIA's own building block.
#include <cub/block/block_reduce.cuh>

#include "cuda/check.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/device/for_each_of_chunk.cuh"

namespace mnist::kernels {
namespace {

constexpr int kBlock = 256, kWarp = 32;

// partial[chunk,c] = sum of x, or of (x - mean[c])^2 where there is a mean.
__global__ void moment_kernel(float* __restrict__ partial, const float* __restrict__ x, const float* __restrict__ mean,
                              std::int64_t batch, int area) {
  using BlockReduce = cub::BlockReduce<float, kBlock>;
  __shared__ typename BlockReduce::TempStorage shared;
  const float centre = mean ? mean[blockIdx.x] : 0;
  float sum = 0;
  if (mean)
    device::for_each_of_chunk<kBlock>(batch, area, [&](std::int64_t k) { sum += (x[k] - centre) * (x[k] - centre); });
  else
    device::for_each_of_chunk<kBlock>(batch, area, [&](std::int64_t k) { sum += x[k]; });
  sum = BlockReduce(shared).Sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

// One warp a channel: total[c] = per_value * sum over the chunks of partial[chunk,c].
__global__ void finish_kernel(float* __restrict__ total, const float* __restrict__ partial, float per_value,
                              int chunks) {
  using BlockReduce = cub::BlockReduce<float, kWarp>;
  __shared__ typename BlockReduce::TempStorage shared;
  float sum = 0;
  for (int chunk = int(threadIdx.x); chunk < chunks; chunk += kWarp) sum += partial[chunk * gridDim.x + blockIdx.x];
  sum = BlockReduce(shared).Sum(sum);
  if (threadIdx.x == 0) total[blockIdx.x] = per_value * sum;
}

}  // namespace

void batch_norm_statistics_cub(float* mean, float* var, float* partial, const float* x, std::int64_t batch,
                               int channels, int area, cudaStream_t stream) {
  const int chunks = int(naive::chunk_count(batch));
  const dim3 grid{unsigned(channels), unsigned(chunks)};
  const float per_value = float(1 / (double(batch) * area));
  for (float* total : {mean, var}) {
    moment_kernel<<<grid, kBlock, 0, stream>>>(partial, x, total == var ? mean : nullptr, batch, area);
    MNIST_CHECK_LAUNCH();
    finish_kernel<<<unsigned(channels), kWarp, 0, stream>>>(total, partial, per_value, chunks);
    MNIST_CHECK_LAUNCH();
  }
}

}  // namespace mnist::kernels
