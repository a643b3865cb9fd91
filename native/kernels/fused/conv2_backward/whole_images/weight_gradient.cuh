// conv2's weight gradient of whole images in 16 bits, by wgmma.
//
// Rows are conv2's channels, columns conv1's, k the 16 slots of an image row. The slots of a1 that
// meet plane 0 and plane 1 of dz2 begin at AlignedShift::at(0, v) and at(1, v). Their distance is negative in taps
// v = 0 and 2, and there plane 1 comes first.
#pragma once

#include "kernels/device/matrix.cuh"
#include "kernels/device/wgmma.cuh"
#include "kernels/fused/conv2_backward/store_wgmma.cuh"
#include "kernels/fused/conv2_backward/whole_images/block.cuh"
#include "kernels/fused/shared/trace.cuh"

namespace mnist::fused {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <class P>
__device__ __forceinline__ void weight_gradient_role(const WholeImages<P>& images, int tid) {
  using Shared = WholeImagesShared<P>;
  const int lane = images.block.lane, warp = uniform(tid >> 5);
  const std::uint32_t column = Shared::kDz + (2 * warp + (lane >> 3 & 1)) * Shared::kDzChunkPitch;
  float dw[kTaps][16] = {};
  int stage = 0, parity = 0;
  for (int item = images.block.first_item(); item >= 0; item -= images.block.stride()) {
    images.wait_for_dz2(item, stage, parity);
    const std::uint32_t here = images.address_of(stage);
    const std::uint64_t apart = wgmma_operand(here + Shared::kA1, 8 * 16, Shared::kA1ChunkPitch);
    const std::uint64_t swapped = wgmma_operand(here + Shared::kA1, 7 * 16, Shared::kA1ChunkPitch);
    // Row d of dz2 lies at d % 2. Once for each order of the planes: moves would cost more than loads.
    std::uint32_t in_order[2][4], planes_swapped[2][4];
    const auto load = [&](int row) {
      const std::uint32_t slots = here + column + (row * kSlots + (lane & 7)) * Shared::kDzPitch;
      load_matrix_x4_trans(in_order[row & 1], slots + (lane >> 4) * 8 * Shared::kDzPitch);
      load_matrix_x4_trans(planes_swapped[row & 1], slots + (1 - (lane >> 4)) * 8 * Shared::kDzPitch);
    };
    const TracedItem traced(images.block.s, Phase::kConv2Backward, {.first = 48, .points = 4, .from = 8, .to = 12},
                            (images.block.first_item() - item) / images.block.stride(), tid == 0);
    traced(0);
    load(1);
#pragma unroll
    for (int row = 1; row <= kPool1Side; ++row) {
      wgmma_fence();
#pragma unroll
      for (int u = 0; u < 3; ++u) {
        const int in = row + u - 1;  // of a1
        if (in < 1 || in > kPool1Side) continue;
        const int at = in * WholeImages<P>::kRowBytes / 16;
        wgmma_columns<typename P::T>(dw[3 * u], planes_swapped[row & 1], swapped + at, true);
        wgmma_columns<typename P::T>(dw[3 * u + 1], in_order[row & 1], apart + at, true);
        wgmma_columns<typename P::T>(dw[3 * u + 2], planes_swapped[row & 1], swapped + at + 1, true);
      }
      wgmma_commit();
      if (row == kPool1Side) break;
      wgmma_wait<1>();
      load(row + 1);
    }
    wgmma_wait<0>();
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) wgmma_results(dw[tap]);
    traced(1);
    images.release(item, stage);
    stage ^= 1;
  }
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    if constexpr (P::kScaled)
      for (float& sum : dw[tap]) sum *= images.block.scales.weights;
    store_weight_sums(images.block.s, tap, dw[tap], warp, lane);
  }
  trace(images.block.s, Phase::kConv2Backward, 8, tid == 0);
}

#endif

}  // namespace mnist::fused
