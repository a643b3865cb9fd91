// Products of conv2_backward on whole images in 16 bits, by wgmma: the dgrad and the routed taps. (The role of the
// weight gradient contains its own.) `Shared` is the layout of an image in shared memory: see whole_images.cuh.
#pragma once

#include "kernels/device/wgmma.cuh"
#include "kernels/fused/conv2_backward/make_dz2.cuh"
#include "kernels/fused/shared/routing.cuh"

namespace mnist::fused {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// d = da1 of 7 image rows; `dz` is the shared address of the row above. Rows of a product are conv1's 32 channels at
// the outputs of plane 0, then of plane 1; columns are the 8 slots of the 7 image rows. So d[4 n + i] is row n, channel
// g + i / 2 * 8 of the warp's 16, slot 2 t + i % 2 of its plane.
//
// Output columns x' = 2j and 2j + 1 need input columns 2j - 1 to 2j + 2: four shifts of the input instead of three
// taps. A piece of the turned filter holds zeros, tap 2, tap 1 and tap 0, 32 rows each; the next begins with zeros. So
// the 64 rows of a product are two neighbours there:
//
//   shift, input column   0, 2j - 1   1, 2j   2, 2j + 1   3, 2j + 2    which is slot_of(shift - 1) + j
//   rows for x' = 2j      tap 0       tap 1   tap 2       zeros
//   rows for x' = 2j + 1  zeros       tap 0   tap 1       tap 2
template <class Shared>
__device__ __forceinline__ void dgrad(float (&d)[28], std::uint32_t dz, std::uint32_t filter) {
  const std::uint64_t pixels = wgmma_operand(dz, Shared::kDzChunkPitch, Shared::kRowBytes);
  const std::uint64_t weights =
      wgmma_operand(filter + DgradFilter::kZeroBytes - DgradFilter::kTapBytes, DgradFilter::kPieceBytes, 8 * 16);
  wgmma_fence();
#pragma unroll
  for (int u = 0; u < 3; ++u)
#pragma unroll
    for (int step = 0; step < Shared::kChunks2 / 2; ++step)
#pragma unroll
      for (int shift = 0; shift < 4; ++shift) {
        const int piece = u * Shared::kChunks2 + 2 * step;
        wgmma<typename Shared::P::T>(
            d, weights + (piece * DgradFilter::kPieceBytes + (3 - shift) * DgradFilter::kTapBytes) / 16,
            pixels + (u * Shared::kRowBytes + slot_of(shift - 1) * 16 + 2 * step * Shared::kDzChunkPitch) / 16,
            u + step + shift > 0);
      }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_results(d);
}

// Adds the routed taps of 7 rows of cells, the first of which begins at `rows`; `da1` is what dgrad() returned, `route`
// the warp's words of the routing. A product's k are the slots of two rows of cells, and da1, packed, is its left
// operand:
//
//   rows of cells   0, -   1, 2   3, 4   5, 6      the first row goes alone, with zeros for its partner
//
// Columns are the lists of both planes (see PixelListRows), of which a warp needs those of its own. At dx = 0 and 1
// they are different lists, so these have sums of their own.
template <class Shared>
__device__ __forceinline__ void accumulate_routed_taps(float (&routed_taps)[2][12], const float (&da1)[28],
                                                       const std::uint32_t (&route)[7], std::uint32_t rows,
                                                       float to_stored) {
  using P = typename Shared::P;
  using Pixels = typename Shared::Pixels;
  constexpr int kInFlight = 3;  // with 4 ptxas runs out of registers and serializes the products
  const std::uint64_t pixels = wgmma_operand(rows, Pixels::kCellsBytes, 8 * Pixels::kRowBytes);
  std::uint32_t a[kInFlight][2][4], packed[14];  // packed: two slots of a row and a channel
  float2 rest[2] = {};
#pragma unroll
  for (int i = 0; i < 14; ++i)
    packed[i] = pack_da1<P>(da1[2 * i], da1[2 * i + 1], rest[i & 1], route[i / 2] >> 16 * (i & 1), to_stored);
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
    for (int dx = 0; dx < 2; ++dx)
      wgmma<typename P::T>(routed_taps[dx], a[slot][dx],
                           pixels + (first * Pixels::kCellsBytes + Pixels::columns_at(dy, dx)) / 16, true);
    wgmma_commit();
  }
  wgmma_wait<0>();
  wgmma_results(routed_taps[0]);
  wgmma_results(routed_taps[1]);
}

#endif

}  // namespace mnist::fused
