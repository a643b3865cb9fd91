// histogram: privatised; the lanes of a warp that see the background are counted by a vote.
#include "kernels/histogram/counters.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

__global__ void histogram_voted_kernel(int* __restrict__ count, const std::uint8_t* __restrict__ pixels,
                                       std::int64_t pixel_count) {
  __shared__ int own[kHistogramBins];
  const int t = int(threadIdx.x);
  own[t] = 0;
  __syncthreads();  // all counters are 0
  const std::int64_t first = std::int64_t(blockIdx.x) * kHistogramBlock * kHistogramEach;
  int background = 0;  // of the warp: each lane has the same
  for (int k = 0; k < kHistogramEach; ++k) {
    const std::int64_t n = first + k * kHistogramBlock + t;
    const int pixel = n < pixel_count ? pixels[n] : -1;
    background += __popc(__ballot_sync(0xffffffff, pixel == 0));
    if (pixel > 0) atomicAdd(&own[pixel], 1);
  }
  if (t % 32 == 0) atomicAdd(&own[0], background);
  __syncthreads();  // all pixels are counted
  if (own[t] > 0) atomicAdd(&count[t], own[t]);
}

}  // namespace

void histogram_voted(int* count, const std::uint8_t* pixels, std::int64_t pixel_count, cudaStream_t stream) {
  clear_counters(count, pixel_count, stream);
  const auto blocks = unsigned(ceil_div(pixel_count, kHistogramBlock * kHistogramEach));
  histogram_voted_kernel<<<blocks, kHistogramBlock, 0, stream>>>(count, pixels, pixel_count);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
