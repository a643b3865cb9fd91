// What every phase's kernel uses: which model its block works on, a step of SGD, and by its includes the wait for the
// phase before, images in shared memory, numbers, scales and trace points.
#pragma once

#include "kernels/device/dependent_launch.cuh"
#include "kernels/fused/shared/layout.cuh"
#include "kernels/fused/shared/scales.cuh"
#include "kernels/fused/shared/trace.cuh"

namespace mnist::fused {

// What a block of a launch works on, which is for one model or for several.
__device__ __forceinline__ const State& state_of_block(const State& s) { return s; }

__device__ __forceinline__ State state_of_block(const Pack& pack) {
  State s = pack.first;
  const std::int64_t offset = blockIdx.z * pack.stride;
  auto arrays = std::bit_cast<std::array<char*, sizeof(Arrays) / sizeof(char*)>>(static_cast<const Arrays&>(s));
#pragma unroll
  for (std::size_t i = 0; i < arrays.size(); ++i) arrays[i] += offset;
  static_cast<Arrays&>(s) = std::bit_cast<Arrays>(arrays);
  s.samples.order += offset / std::int64_t(sizeof(std::int32_t));
  return s;
}

// Of a weight of fc1 in State::fc1_copy, as fc reads it.
__device__ __forceinline__ constexpr int fc1_chunk_at(int unit, int feature) {
  const int cell = feature / kConv2Channels, channel = feature % kConv2Channels;
  return ((channel / 8 * kCells2 + cell) * kHidden + unit) * 8 + channel % 8;
}

// A step of stochastic gradient descent.
__device__ __forceinline__ float sgd(float value, float gradient, float rate) { return value - rate * gradient; }

}  // namespace mnist::fused
