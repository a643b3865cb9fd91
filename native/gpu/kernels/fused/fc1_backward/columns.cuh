// What both kernels of fc1_backward do for their block's 32 columns of fc1.weight besides the products: the constants
// of a2, and the sums of dy2.
#pragma once

#include "kernels/fused/shared/phase.cuh"

namespace mnist::fused {

// bn2's scale and shift for the wgrad role's chunk of a2, divided by a2's scale, which is returned.
template <class P>
__device__ __forceinline__ float load_a2_operand(const State& s, int column0, int chunk, float (&scale)[kChunk<P>],
                                                 float (&shift)[kChunk<P>]) {
#pragma unroll
  for (int i = 0; i < kChunk<P>; ++i) {
    scale[i] = s.bn2.scale(column0 % kConv2Channels + chunk * kChunk<P> + i);
    shift[i] = s.bn2.shift(column0 % kConv2Channels + chunk * kChunk<P> + i);
  }
  if constexpr (!P::kScaled) return 1;
  const float a2_scale = s.scales[kA2Scale];
#pragma unroll
  for (int i = 0; i < kChunk<P>; ++i) scale[i] *= inverse_of(a2_scale), shift[i] *= inverse_of(a2_scale);
  return a2_scale;
}

// The end of the dgrad role: a lane's sums of dy2 and dy2 * (z2 - mean) in the columns column(i), the same for the
// lanes of equal t, and its largest |dy2|. A warp leaves its sums in warp_sums[group]; `Role` is the barrier of the
// role.
template <class P, class Role, int kValues, int kGroups, class Column>
__device__ __forceinline__ void store_dy2_sums(const State& s, float (&warp_sums)[kGroups][2][32], int group,
                                               float (&sum)[kValues], float (&sum_xhat)[kValues], Column column,
                                               float largest, float dy2_scale, const float (&inv_sigma)[32],
                                               int column0, int warp, int lane) {
  const int tid = threadIdx.x, g = fragment_place(lane).g;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
#pragma unroll
    for (int mask = 4; mask < 32; mask <<= 1) {
      sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], mask);
      sum_xhat[i] += __shfl_xor_sync(0xffffffffu, sum_xhat[i], mask);
    }
    if (g == 0) {
      warp_sums[group][0][column(i)] = sum[i];
      warp_sums[group][1][column(i)] = sum_xhat[i];
    }
  }
  if constexpr (P::kFp16Terms > 0 || P::kScaled) {
    static_assert(kGradientWarps == kRoleThreads / 32);
    largest = warp_max(largest);
    if constexpr (P::kScaled) largest *= dy2_scale;
    if (lane == 0) s.dy2_max[blockIdx.x * kGradientWarps + warp] = largest;
  }
  Role::sync();  // the warps' sums are complete
  if (tid < 64) {
    const int which = tid >> 5;
    float total = 0;
#pragma unroll
    for (int k = 0; k < kGroups; ++k) total += warp_sums[k][which][lane];
    if constexpr (P::kScaled) total *= dy2_scale;
    s.dy2_sums[which * kFeatures + column0 + lane] = which == 0 ? total : total * inv_sigma[lane];
  }
}

}  // namespace mnist::fused
