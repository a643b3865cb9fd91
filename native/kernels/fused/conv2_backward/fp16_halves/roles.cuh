// The roles of halves of images in fp16 terms: dgrad with the routed taps, and the weight gradient with dz2.
#pragma once

#include "kernels/device/barriers.cuh"
#include "kernels/device/lane.cuh"
#include "kernels/device/matrix.cuh"
#include "kernels/device/wgmma.cuh"
#include "kernels/fused/conv2_backward/fp16_halves/dgrad.cuh"
#include "kernels/fused/conv2_backward/fp16_halves/make_dz2.cuh"
#include "kernels/fused/conv2_backward/fp16_halves/routed_taps.cuh"
#include "kernels/fused/conv2_backward/store_wgmma.cuh"
#include "kernels/fused/shared/trace.cuh"

namespace mnist::fused {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <class P>
__device__ __forceinline__ void dgrad_role(const Fp16Halves<P>& halves, float dz2_scale, float conv2_scale,
                                           MBarrier* filter_arrived) {
  using Shared = Fp16HalvesShared<P>;
  const int warp = uniform(threadIdx.x >> 5), half = warp & 1, plane = warp >> 1;
  auto* const routed_taps = reinterpret_cast<float*>(halves.shared + Shared::kPartial) + threadIdx.x;
  for (int i = 0; i < Shared::kRoutedTapSums; ++i) routed_taps[i * kGroupThreads] = 0.f;
  filter_arrived->wait(0);
  for (int item = 0; halves.image_of(item) >= 0; ++item) {
    halves.dz2_ready.wait(item);
    const std::uint32_t here = shared_address(halves.stage(item));
    const TracedItem traced(halves.s, Phase::kConv2Backward, {.first = 16, .points = 4, .from = 8, .to = 12}, item,
                            threadIdx.x == 0);
    traced(0);
    float da1[28] = {};
    dgrad(halves, da1, here + Shared::kDz, here, warp);
    traced(1);
    std::uint32_t route[7];
#pragma unroll
    for (int row = 0; row < 7; ++row)
      route[row] = load_shared_32(here + Shared::kRoute + ((row * 2 + half) * 64 + plane * 32 + halves.lane) * 4);
    accumulate_routed_taps(halves, routed_taps, da1, route, here + Shared::kPixelLists);
    traced(2);
    halves.arrive(halves.done, item);
  }
  trace(halves.s, Phase::kConv2Backward, 4, threadIdx.x == 0);
  float sums[2][12];
#pragma unroll
  for (int i = 0; i < Shared::kRoutedTapSums; ++i) sums[i / 12][i % 12] = routed_taps[i * kGroupThreads];
  NamedBarrier<1, kGroupThreads>::sync();  // no warp reads the filter any more
  store_routed_tap_sums<1>(halves.s, reinterpret_cast<float*>(halves.shared + Shared::kFilter), sums,
                           dz2_scale * conv2_scale);
  trace(halves.s, Phase::kConv2Backward, 7, threadIdx.x == 0);
}

// Rows are conv2's channels, columns conv1's, k the 16 columns of an image row in their order. Tap row `u`.
template <class P>
__device__ __forceinline__ void weight_gradient_role(const Fp16Halves<P>& halves, int u, float scale_of_sums) {
  using Shared = Fp16HalvesShared<P>;
  const int thread = threadIdx.x - kGroupThreads, warp = uniform(threadIdx.x >> 5 & 3);
  const std::uint32_t own = Shared::kDz + (2 * warp + (halves.lane >> 3 & 1)) * Shared::kChunkPitch +
                            slot_of((halves.lane >> 4) * 8 + (halves.lane & 7)) * 16;
  halves.arrived.wait(0);
  make_dz2(halves, 0, thread);
  float sums[3][16] = {};
  const auto add = [&](float (&dw)[3][16]) {
#pragma unroll
    for (int i = 0; i < 48; ++i) {
      if (i % 16 == 0) wgmma_results(dw[i / 16]);
      sums[i / 16][i % 16] += dw[i / 16][i % 16];
      if (i % 16 == 15) wgmma_results(sums[i / 16]);
    }
  };
  for (int item = 0; halves.image_of(item) >= 0; ++item) {
    halves.dz2_ready.wait(item);
    const std::uint32_t here = shared_address(halves.stage(item));
    const std::uint64_t a1 =
        wgmma_operand(here + Shared::kA1 - 16 + u * Shared::kRowBytes, 8 * 16, Shared::kChunkPitch);
    const TracedItem traced(halves.s, Phase::kConv2Backward, {.first = 32, .points = 8, .from = 8, .to = 12}, item,
                            threadIdx.x == 384);
    traced(0);
    float dw[3][16];
    std::uint32_t dz[2][4];  // terms of a row
    const auto load = [&](int row, int term) {
      load_matrix_x4_trans(dz[term], here + own + (row + 1) * Shared::kRowBytes + term * Shared::kDzTerm);
    };
    const auto multiply = [&](int row, int term, int term_of_a1, bool adds) {
#pragma unroll
      for (int v = 0; v < 3; ++v)
        wgmma_fp16_columns(dw[v], dz[term], a1 + (row * Shared::kRowBytes + term_of_a1 * Shared::kA1Term) / 16 + v,
                           adds);
    };
    // Each row's two small products and its big one; then the sums leave the tensor cores, which truncate as they add.
#pragma unroll
    for (int row = 0; row < Shared::kRows; ++row) {
      if (row > 0) {
        wgmma_wait<0>();
        add(dw);
      }
      for (int term = 0; term < 2; ++term) load(row, term);
      wgmma_fence();
      multiply(row, 0, 1, false);
      multiply(row, 1, 0, true);
      multiply(row, 0, 0, true);
      wgmma_commit();
    }
    wgmma_wait<0>();
    traced(1);
    halves.arrive(halves.done, item);
    add(dw);
    traced(2);
    if (halves.image_of(item + 1) >= 0) {
      halves.arrived.wait(item + 1);
      traced(3);
      make_dz2(halves, item + 1, thread);
      traced(4);
    }
    if (u == 2 && halves.image_of(item + 2) >= 0) {
      halves.done.wait(item);
      traced(5);
      wgmma_publish();  // what was written there before comes before
      if (threadIdx.x == kConvThreads - 32) halves.copy_gradient(item + 2);
      halves.copy_forward(item + 2);
      __syncwarp();
    }
  }
#pragma unroll
  for (int i = 0; i < 48; ++i) sums[i / 16][i % 16] *= scale_of_sums;
#pragma unroll
  for (int v = 0; v < 3; ++v) store_weight_sums(halves.s, 3 * u + v, sums[v], warp, halves.lane);
  trace(halves.s, Phase::kConv2Backward, 8, thread == 0);
}

#endif

}  // namespace mnist::fused
