// The dgrad of whole images in 16 bits, by wgmma.
//
// Rows of a product are conv1's 32 channels at the outputs of plane 0, then of plane 1; columns the 8 slots of 7 image
// rows. Output columns x' = 2j and 2j + 1 need input columns 2j - 1, 2j, 2j + 1 and 2j + 2: four shifts of the
// input instead of three taps, in the first of which plane 1 and in the last plane 0 meets zeros in the filter.
#pragma once

#include "kernels/device/wgmma.cuh"
#include "kernels/fused/conv2_backward/whole_images/block.cuh"

namespace mnist::fused {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// da1 of 7 image rows, of which `dz` is the row above: d[4 n + i] is row n, channel g + i / 2 * 8 of the warp's 16,
// slot 2 t + i % 2 of its plane.
template <class P>
__device__ __forceinline__ void dgrad(const WholeImages<P>& images, float (&d)[28], std::uint32_t dz) {
  using Shared = WholeImagesShared<P>;
  const std::uint32_t filter =
      shared_address(images.block.shared) + Shared::kFilter + DgradFilter::kZeroBytes - DgradFilter::kTapBytes;
  const std::uint64_t pixels = wgmma_operand(dz, Shared::kDzChunkPitch, WholeImages<P>::kRowBytes);
  const std::uint64_t weights = wgmma_operand(filter, DgradFilter::kPieceBytes, 8 * 16);
  wgmma_fence();
#pragma unroll
  for (int u = 0; u < 3; ++u)
#pragma unroll
    for (int step = 0; step < Shared::kChunks2 / 2; ++step)
#pragma unroll
      for (int shift = 0; shift < 4; ++shift) {  // input column 2j - 1 + shift
        const int slot = shift == 0 ? 7 : shift == 1 ? 0 : shift == 2 ? 8 : 1;
        const int piece = u * Shared::kChunks2 + 2 * step;
        wgmma<typename P::T>(
            d, weights + (piece * DgradFilter::kPieceBytes + (3 - shift) * DgradFilter::kTapBytes) / 16,
            pixels + (u * WholeImages<P>::kRowBytes + slot * 16 + 2 * step * Shared::kDzChunkPitch) / 16,
            u + step + shift > 0);
      }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_results(d);
}

#endif

}  // namespace mnist::fused
