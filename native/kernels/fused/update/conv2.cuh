// conv2.weight: sums of conv2_backward's blocks, SGD, and its repacked copies.
#pragma once

#include "kernels/device/dependent_launch.cuh"
#include "kernels/fused/shared/trace.cuh"
#include "kernels/fused/update/pack.cuh"
#include "kernels/fused/update/shares.cuh"

namespace mnist::fused {

template <class P, class Models>
__device__ void update_conv2(const State& s, float4 (&partial)[kConv2Groups][kConv2Columns], int block) {
  constexpr int kValues = 4 * kConv2Columns;
  const int tid = threadIdx.x, column = tid % kConv2Columns, group = tid / kConv2Columns;
  // conv2_backward's order: tiles of 16 of conv2's channels by 8 of conv1's, each as a warp holds an mma result.
  // Threads from kValues on repeat others, and stop before they store.
  const int e = block * kValues + tid % kValues, value = e & 3, thread = e / 4 % 512, tap = e / (4 * 512);
  const int warp = thread / 32, lane = thread % 32;
  const int out = (warp & 3) * 16 + (value >> 1) * 8 + (lane >> 2);
  const int in = (warp >> 2) * 8 + 2 * (lane & 3) + (value & 1);
  const auto at = kParameters[kConv2Weight].offset + (out * kConv1Channels + in) * kTaps + tap;
  const float old = s.parameters[at], learning_rate = *s.learning_rate;
  wait_for_predecessor();  // conv2_backward: conv2_sums, bn2's update and the scale
  trace(s, Phase::kUpdate, 1, tid == 0);
  const bool scaled = P::kScaled || (P::kFp16Terms > 0 && s.wgmma);
  const float scale = scaled ? s.scales[kNextConv2Scale] : 1.f;
  const float old_sign = s.bn2_sign[out];
  const float sign = s.parameters[kParameters[kBn2Weight].offset + out] < 0 ? -1.f : 1.f;
  if (group < kConv2Groups)  // but for the last warp
    partial[group][column] = sum_rows<kConv2Groups, kUpdateLoads<Models>.conv2>(
        s.conv2_sums, s.conv2_backward_blocks, kConv2Values, block * kConv2Columns + column, group);
  __syncthreads();
  trace(s, Phase::kUpdate, 2, tid == 0);
  if (tid >= kValues) return;
  const float dw = old_sign * sum_groups(partial, tid);
  const float w = old - learning_rate * dw;
  s.parameters[at] = w;
  if (s.gradients) s.gradients[at] = dw;
  pack_conv2<P>(s, sign * w, tap, out, in, inverse_of(scale));
  if (scaled) {
    if (block == 0 && tid == 0) {
      s.scales[kConv2Scale] = scale;
      if constexpr (P::kScaled) s.scales[kFc1Scale] = s.scales[kNextFc1Scale];
    }
    const float largest = warp_max(fabsf(w));
    if (tid % 32 == 0) s.conv2_max[(block * kValues + tid) / 32] = largest;
  }
}

}  // namespace mnist::fused
