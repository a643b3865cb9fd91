// The routed taps of whole images in 16 bits, by wgmma.
#pragma once

#include "kernels/device/wgmma.cuh"
#include "kernels/fused/conv2_backward/carry.cuh"
#include "kernels/fused/conv2_backward/whole_images/block.cuh"
#include "kernels/fused/shared/routing.cuh"

namespace mnist::fused {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Adds the routed taps of 7 rows of cells, the first of which begins at `rows`; `da1` as dgrad() returns it, `route`
// the warp's words of the routing. A product's k are the slots of two rows of cells, and da1, packed, is its left
// operand. Its columns are the lists of either plane; a warp wants those of its own. At dx = 0 and 1 they are different
// lists, so these have sums of their own. The first row goes alone.
template <class P>
__device__ __forceinline__ void accumulate_routed_taps(const WholeImages<P>& images, float (&routed_taps)[2][12],
                                                       const float (&da1)[28], const std::uint32_t (&route)[7],
                                                       std::uint32_t rows) {
  using Shared = WholeImagesShared<P>;
  using Pixels = typename Shared::Pixels;
  const float to_stored = inverse_of(images.block.scales.da1);
  constexpr int kInFlight = 3;  // with 4 ptxas serializes the products, for want of registers
  const std::uint64_t pixels = wgmma_operand(rows, Pixels::kCellsBytes, 8 * Pixels::kRowBytes);
  std::uint32_t a[kInFlight][2][4], packed[14];  // packed: two slots of a row and a channel
  float2 rest[2] = {};
#pragma unroll
  for (int i = 0; i < 14; ++i) {
    const float x = da1[2 * i], y = da1[2 * i + 1];
    if constexpr (P::kScaled) {
      const std::uint32_t alive = route[i / 2] >> 16 * (i & 1);
      packed[i] = pack_carrying<P>(to_stored * x, to_stored * y, rest[i & 1], alive & 0xffu, alive & 0xff00u);
    } else {
      const auto pair = P::pack(x, y);
      packed[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
  }
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const int pair = step / 2, dy = step % 2, first = pair == 0 ? 0 : 2 * pair - 1, slot = step % kInFlight;
    if (step >= kInFlight) wgmma_wait<kInFlight - 1>();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first + i / 2;
      if (pair == 0 && i >= 2) {
        a[slot][0][i] = a[slot][1][i] = 0;
        continue;
      }
#pragma unroll
      for (int dx = 0; dx < 2; ++dx)
        a[slot][dx][i] = packed[2 * row + (i & 1)] & routing_mask_16(route[row], 2 * dy + dx, i & 1);
    }
    wgmma_fence();
#pragma unroll
    for (int dx = 0; dx < 2; ++dx) {
      const int at = first * Pixels::kCellsBytes + dx * 2 * Pixels::kListBytes + dy * Pixels::kRowBytes;
      wgmma<typename P::T>(routed_taps[dx], a[slot][dx], pixels + at / 16, true);
    }
    wgmma_commit();
  }
  wgmma_wait<0>();
  wgmma_results(routed_taps[0]);
  wgmma_results(routed_taps[1]);
}

#endif

}  // namespace mnist::fused
