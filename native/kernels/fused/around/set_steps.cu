// The inputs of a graph of steps, copied to where the graph looks for them.
#include <algorithm>

#include "cuda/check.h"
#include "kernels/fused/state.h"

namespace mnist::fused {
namespace {

constexpr int kBlock = 256;

// A row of blocks a model.
__global__ void set_steps_kernel(StepInputs in) {
  const std::int64_t model = blockIdx.y, first = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const auto there = [&](auto* array) {
    return reinterpret_cast<decltype(array)>(reinterpret_cast<char*>(array) + model * in.to_stride);
  };
  const std::int32_t* __restrict__ order = in.order + model * in.order_stride;
  std::int32_t* __restrict__ to_order = there(in.to_order);
  for (std::int64_t i = first; i < in.samples; i += std::int64_t(gridDim.x) * blockDim.x) to_order[i] = order[i];
  if (first < in.steps) there(in.to_rates)[first] = in.rates[model * in.rates_stride + first];
}

}  // namespace

void set_steps(const StepInputs& in, cudaStream_t stream) {
  MNIST_REQUIRE(in.steps <= kBlock, "set_steps: " << in.steps << " steps, expected at most " << kBlock);
  const auto blocks = std::clamp<std::int64_t>((in.samples + kBlock - 1) / kBlock, 1, 512);
  set_steps_kernel<<<dim3(unsigned(blocks), unsigned(in.models)), kBlock, 0, stream>>>(in);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::fused
