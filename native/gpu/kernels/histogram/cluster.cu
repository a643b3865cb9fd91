// histogram: privatised; a cluster of blocks adds up its counters through distributed shared memory.
#include <cooperative_groups.h>

#include "kernels/histogram/counters.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kCluster = 8;                        // blocks
constexpr int kShare = kHistogramBins / kCluster;  // counters that a block adds up

__global__ void __cluster_dims__(kCluster)
    histogram_cluster_kernel(int* __restrict__ count, const std::uint8_t* __restrict__ pixels,
                             std::int64_t pixel_count) {
  __shared__ int own[kHistogramBins];
  const auto cluster = cooperative_groups::this_cluster();
  const int t = int(threadIdx.x);
  own[t] = 0;
  __syncthreads();  // all counters of the block are 0
  const std::int64_t first = std::int64_t(blockIdx.x) * kHistogramBlock * kHistogramEach;
  for (int k = 0; k < kHistogramEach; ++k) {
    const std::int64_t n = first + k * kHistogramBlock + t;
    if (n < pixel_count) atomicAdd(&own[pixels[n]], 1);
  }
  cluster.sync();  // all pixels of the cluster are counted
  if (t < kShare) {
    const int bin = int(cluster.block_rank()) * kShare + t;
    int sum = 0;
    for (int block = 0; block < kCluster; ++block) sum += *cluster.map_shared_rank(&own[bin], block);
    if (sum > 0) atomicAdd(&count[bin], sum);
  }
  cluster.sync();  // nobody reads the counters of a block that has ended
}

}  // namespace

void histogram_cluster(int* count, const std::uint8_t* pixels, std::int64_t pixel_count, cudaStream_t stream) {
  clear_counters(count, pixel_count, stream);
  // Whole clusters: the last blocks may have no pixel.
  const auto clusters = ceil_div(pixel_count, std::int64_t(kCluster) * kHistogramBlock * kHistogramEach);
  histogram_cluster_kernel<<<unsigned(clusters * kCluster), kHistogramBlock, 0, stream>>>(count, pixels, pixel_count);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
