// Scales: the powers of two that values are divided by where they become fp16, whose exponents are few. What tf32 and
// fp32 have in common of them; fp16_scales.cuh and fp16_terms.cuh say which tensors have one, and why it is enough.
#pragma once

#include "kernels/device/lane.cuh"
#include "kernels/fused/shared/policy.cuh"
#include "kernels/fused/state.h"

namespace mnist::fused {

__device__ __forceinline__ float inverse_of(float scale) {
  return __uint_as_float((254u << 23) - __float_as_uint(scale));
}

// The largest of kCount values, by a warp.
template <int kCount>
__device__ __forceinline__ float largest_of(const float* values, int lane) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < (kCount + 31) / 32; ++i)
    if (kCount % 32 == 0 || i * 32 + lane < kCount) largest = fmaxf(largest, values[i * 32 + lane]);
  return warp_max(largest);
}

// The scale that update will give conv2's weights, by a warp.
__device__ __forceinline__ void choose_conv2_scale(const State& s, int lane) {
  const float scale = weight_scale(largest_of<kConv2Values / 32>(s.conv2_max, lane));
  if (lane == 0) s.scales[kNextConv2Scale] = scale;
}

// a1's, by a warp.
__device__ __forceinline__ float a1_scale(const State& s, int lane) {
  return power_of_two_scale<15, -60>(warp_max(s.bn1.largest_a1(lane)));
}

}  // namespace mnist::fused
