// The inputs of a graph of steps, copied to where the graph looks for them.
#include <algorithm>

#include "cuda/check.h"
#include "kernels/fused/state.h"

namespace mnist::fused {
namespace {

constexpr int kBlock = 256;

__global__ void set_steps_kernel(std::int32_t* __restrict__ to_order, const std::int32_t* __restrict__ order,
                                 std::int64_t samples, float* __restrict__ to_rates, const float* __restrict__ rates,
                                 int steps) {
  const std::int64_t first = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  for (std::int64_t i = first; i < samples; i += std::int64_t(gridDim.x) * blockDim.x) to_order[i] = order[i];
  if (first < steps) to_rates[first] = rates[first];
}

}  // namespace

void set_steps(std::int32_t* to_order, const std::int32_t* order, std::int64_t samples, float* to_rates,
               const float* rates, int steps, cudaStream_t stream) {
  MNIST_REQUIRE(steps <= kBlock, "set_steps: " << steps << " steps, expected at most " << kBlock);
  const auto blocks = std::clamp<std::int64_t>((samples + kBlock - 1) / kBlock, 1, 512);
  set_steps_kernel<<<unsigned(blocks), kBlock, 0, stream>>>(to_order, order, samples, to_rates, rates, steps);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::fused
