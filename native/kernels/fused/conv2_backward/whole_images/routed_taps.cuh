// The routed taps of whole images in bf16, by wgmma.
#pragma once

#include "kernels/device/wgmma.cuh"
#include "kernels/fused/conv2_backward/whole_images/block.cuh"
#include "kernels/fused/shared/routing.cuh"

namespace mnist::fused {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Adds the routed taps of 7 rows of cells, the first of which begins at `rows`; `da1` as dgrad() returns it, `route`
// the warp's words of the routing. A product's k are the slots of two rows of cells, and da1, packed, is its left
// operand. Its columns are the lists of either plane; a warp wants those of its own. At dx = 0 and 1 they are different
// lists, so these have sums of their own. The first row goes alone.
__device__ __forceinline__ void accumulate_routed_taps(const WholeImages&, float (&routed_taps)[2][12],
                                                       const float (&da1)[28], const std::uint32_t (&route)[7],
                                                       std::uint32_t rows) {
  using Shared = WholeImagesShared;
  using Pixels = Shared::Pixels;
  constexpr int kInFlight = 3;  // with 4 ptxas serializes the products, for want of registers
  const std::uint64_t pixels = wgmma_operand(rows, Pixels::kCellsBytes, 8 * Pixels::kRowBytes);
  std::uint32_t a[kInFlight][2][4];
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const int pair = step / 2, dy = step % 2, first = pair == 0 ? 0 : 2 * pair - 1, slot = step % kInFlight;
    if (step >= kInFlight) wgmma_wait<kInFlight - 1>();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first + i / 2, at = 4 * row + 2 * (i & 1);
      if (pair == 0 && i >= 2) {
        a[slot][0][i] = a[slot][1][i] = 0;
        continue;
      }
      const __nv_bfloat162 slots = __floats2bfloat162_rn(da1[at], da1[at + 1]);
      const std::uint32_t packed = *reinterpret_cast<const std::uint32_t*>(&slots);
#pragma unroll
      for (int dx = 0; dx < 2; ++dx) a[slot][dx][i] = packed & routing_mask_16(route[row], 2 * dy + dx, i & 1);
    }
    wgmma_fence();
#pragma unroll
    for (int dx = 0; dx < 2; ++dx) {
      const int at = first * Pixels::kCellsBytes + dx * 2 * Pixels::kListBytes + dy * Pixels::kRowBytes;
      wgmma_bf16(routed_taps[dx], a[slot][dx], pixels + at / 16, true);
    }
    wgmma_commit();
  }
  wgmma_wait<0>();
  wgmma_results(routed_taps[0]);
  wgmma_results(routed_taps[1]);
}

#endif

}  // namespace mnist::fused
