// state_of_block(): what a block of a launch works on, which is for one model or for several.
#pragma once

#include <type_traits>

#include "kernels/fused/state.h"

namespace mnist::fused {

__device__ __forceinline__ const State& state_of_block(const State& s) { return s; }

// Without the arrays of a probe, which several models do not have.
__device__ __forceinline__ State state_of_block(const Pack& pack) {
  State s = pack.first;
  const std::int64_t offset = blockIdx.z * pack.stride;
  const auto move = [&]<class... T>(T*&... arrays) {
    const auto moved = [&]<class U>(U* array) {
      using Byte = std::conditional_t<std::is_const_v<U>, const char, char>;
      return reinterpret_cast<U*>(reinterpret_cast<Byte*>(array) + offset);
    };
    ((arrays = moved(arrays)), ...);
  };
  move(s.samples.order, s.parameters, s.learning_rate, s.results);
  move(s.conv2_forward, s.conv2_dgrad, s.conv2_dgrad_wgmma, s.scales, s.conv2_max, s.fc1, s.conv1, s.bn1.values,
       s.bn2.values, s.bn2_sign, s.moments);
  move(s.a1, s.route1, s.z2, s.pooled_z2, s.z2_sums, s.h_slices, s.h, s.logits, s.dh, s.head_sums, s.dy2, s.dy2_sums,
       s.dy2_max, s.conv2_sums, s.routed_tap_sums, s.moment_sums);
  return s;
}

}  // namespace mnist::fused
