// state_of_block(): what a block of a launch works on, which is for one model or for several.
#pragma once

#include <array>
#include <bit>

#include "kernels/fused/state.h"

namespace mnist::fused {

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

}  // namespace mnist::fused
