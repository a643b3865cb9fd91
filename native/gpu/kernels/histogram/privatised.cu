// histogram: counters of each block in shared memory, and one addition per counter to those of all.
#include "kernels/histogram/counters.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

// A block takes 4096 pixels, a warp 32 neighbours at a time.
__global__ void histogram_privatised_kernel(int* __restrict__ count, const std::uint8_t* __restrict__ pixels,
                                            std::int64_t pixel_count) {
  __shared__ int own[kHistogramBins];
  const int t = int(threadIdx.x);
  own[t] = 0;
  __syncthreads();  // all counters are 0
  const std::int64_t first = std::int64_t(blockIdx.x) * kHistogramBlock * kHistogramEach;
  for (int k = 0; k < kHistogramEach; ++k) {
    const std::int64_t n = first + k * kHistogramBlock + t;
    if (n < pixel_count) atomicAdd(&own[pixels[n]], 1);
  }
  __syncthreads();  // all pixels are counted
  if (own[t] > 0) atomicAdd(&count[t], own[t]);
}

}  // namespace

void histogram_privatised(int* count, const std::uint8_t* pixels, std::int64_t pixel_count, cudaStream_t stream) {
  clear_counters(count, pixel_count, stream);
  const auto blocks = unsigned(ceil_div(pixel_count, kHistogramBlock * kHistogramEach));
  histogram_privatised_kernel<<<blocks, kHistogramBlock, 0, stream>>>(count, pixels, pixel_count);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
