// Sums that wgmma left in registers, to global memory.
#pragma once

#include "kernels/device/lane.cuh"
#include "kernels/fused/shared/layout.cuh"
#include "kernels/fused/state.h"

namespace mnist::fused {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The routed taps, from the sums of 4 kGroups warps, each of which has 16 channels, a plane and 7 rows. `partial` is
// free shared memory. PixelListRows says which tap a column is; lists that belong to the other plane do not count.
template <int kGroups>
__device__ __forceinline__ void store_routed_tap_sums(const State& s, float* partial, const float (&routed_taps)[2][12],
                                                      float scale) {
  constexpr int kValues = kConv1Channels * kRoutedTapColumns, kCount = kGroups * kGroupThreads;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, half = warp & 1, plane = warp >> 1 & 1;
  const auto [g, t] = fragment_place(lane);
#pragma unroll
  for (int dx = 0; dx < 2; ++dx)
#pragma unroll
    for (int k = 0; k < 12; ++k) {
      const int channel = half * 16 + g + (k >> 1 & 1) * 8, column = k / 4 * 8 + 2 * t + (k & 1);
      const int v = column / 4 - (dx == 0) - 2 * plane, u = column % 4;  // list dx + 2 plane + v
      const bool is_tap = v >= 0 && v < 3 && u < 3;
      if (is_tap || column == (dx == 0 ? 0 : 20))  // or the ones
        partial[(2 * (warp >> 1) + dx) * kValues + channel * kRoutedTapColumns + (is_tap ? 3 * u + v : kTaps)] =
            routed_taps[dx][k];
    }
  NamedBarrier<1, kCount>::sync();  // all sums are in shared memory
  for (int i = tid; i < kValues; i += kCount) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < 4 * kGroups; ++k) sum += partial[k * kValues + i];
    s.routed_tap_sums[std::size_t(blockIdx.x) * kValues + i] = i % kRoutedTapColumns <= kTaps ? scale * sum : 0.f;
  }
}

// A tap of conv2's weight gradient, by a warpgroup, in the order of conv2_backward_kernel(): tiles of 16 of conv2's
// channels by 8 of conv1's.
__device__ __forceinline__ void store_weight_sums(const State& s, int tap, const float (&dw)[16], int warp, int lane) {
  auto* to = reinterpret_cast<float4*>(s.conv2_sums + std::size_t(blockIdx.x) * kConv2Values) + tap * kConvThreads;
#pragma unroll
  for (int n = 0; n < 4; ++n)
    to[(warp + 4 * n) * 32 + lane] = make_float4(dw[4 * n], dw[4 * n + 1], dw[4 * n + 2], dw[4 * n + 3]);
}

#endif

}  // namespace mnist::fused
