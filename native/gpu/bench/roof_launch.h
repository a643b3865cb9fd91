// How the roofs of a unit are measured: the size of a launch that keeps every multiprocessor busy, and its time.
#pragma once

#include <algorithm>
#include <vector>

#include "cuda/check.h"
#include "cuda/stream.h"

namespace mnist::bench {

// kChains independent chains a thread hide the latency of an instruction.
inline constexpr int kBlock = 256, kBlocksPerProcessor = 8, kIterations = 4096, kChains = 8;

// Blocks of a launch on the selected GPU.
inline unsigned roof_blocks() {
  int device = 0, processors = 0;
  MNIST_CHECK(cudaGetDevice(&device));
  MNIST_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  return unsigned(processors * kBlocksPerProcessor);
}

// Median seconds of five runs after a warm-up.
template <class F>
double seconds(const cuda::Stream& stream, F&& queue) {
  cuda::Event start(0), stop(0);
  std::vector<double> times;
  for (int run = 0; run < 6; ++run) {
    start.record(stream.get());
    queue();
    stop.record(stream.get());
    if (run > 0) times.push_back(cuda::elapsed_ms(start, stop) / 1e3);
  }
  std::ranges::nth_element(times, times.begin() + 2);
  return times[2];
}

}  // namespace mnist::bench
