// What the rows of the histogram share: how pixels are dealt to threads, and counters that begin at 0.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/check.h"
#include "kernels/histogram/histogram.h"

namespace mnist::kernels {

inline constexpr int kHistogramBlock = 256;        // threads
inline constexpr int kHistogramEach = 16;          // pixels of a thread
static_assert(kHistogramBins == kHistogramBlock);  // a thread looks after one counter of its block

inline void clear_counters(int* count, std::int64_t pixel_count, cudaStream_t stream) {
  MNIST_REQUIRE(pixel_count > 0 && pixel_count < std::int64_t(1) << 31,
                "histogram: " << pixel_count << " pixels, expected at least 1 and fewer than 2^31");
  MNIST_CHECK(cudaMemsetAsync(count, 0, kHistogramBins * sizeof(int), stream));
}

}  // namespace mnist::kernels
