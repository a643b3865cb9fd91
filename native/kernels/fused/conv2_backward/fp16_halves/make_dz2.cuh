// dz2 in fp16 terms from z2 and dy2, in shared memory, by three warpgroups.
#pragma once

#include "kernels/device/wgmma.cuh"
#include "kernels/fused/conv2_backward/fp16_halves/block.cuh"
#include "kernels/fused/conv2_backward/make_dz2.cuh"

namespace mnist::fused {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// dz2 over z2, and the image's pixels from its bytes. `bn` is divided by dz2's scale.
template <class P>
__device__ __forceinline__ void make_dz2(const Fp16Halves<P>& halves, int item, int thread) {
  using Shared = Fp16HalvesShared<P>;
  unsigned char* const here = halves.stage(item);
  const int half = halves.half_of(item);
  if (thread < 16 * 7) {  // 16 rows of the padded image
    const int row = thread / 7, y = kPool1Side * half + row - 1;
    if (y >= 0 && y < kImageSide)
      Shared::Pixels::store_word(
          here + Shared::kPixelLists, row, thread % 7,
          reinterpret_cast<const std::uint32_t*>(here + Shared::kImageBytesAt)[y * 7 + thread % 7]);
  }
  constexpr int kQuads = kConv2Channels / 4;  // of neighbouring channels
#pragma unroll 1
  for (int i = thread; i < Shared::kCells * kQuads; i += Fp16Halves<P>::kMakeDz2Threads) {  // whole warps
    const int quad = i % kQuads, cell = i / kQuads, cy = cell / kPool2Side, cx = cell % kPool2Side;
    unsigned char* const corner =
        here + Shared::kDz + (quad >> 1) * Shared::kChunkPitch + (2 * cy + 1 - half) * Shared::kRowBytes;
    const auto at = [&](int position) {
      return (position >> 1) * Shared::kRowBytes + slot_of(2 * cx + 1 + (position & 1)) * 16;
    };
    float z[4][4], dy2[4];
#pragma unroll
    for (int position = 0; position < 4; ++position)
      *reinterpret_cast<float4*>(z[position]) =
          *reinterpret_cast<const float4*>(corner + (quad & 1) * Shared::kDzTerm + at(position));
    *reinterpret_cast<float4*>(dy2) =
        *reinterpret_cast<const float4*>(here + Shared::kDy2 + (cell * kQuads + quad) * 16);
    if (halves.s.route2)
      report_routing<P>(halves.s, halves.bn, halves.image_of(item), half * 3 * kPool2Side + cell, quad, z);
    __syncwarp();  // what one lane overwrites another has read
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int channel = 4 * quad + c;
      const float alpha = halves.bn.alpha[channel], kappa = halves.bn.kappa[channel],
                  routed = halves.bn.scale[channel] * dy2[c];
      const float best = fmaxf(fmaxf(z[0][c], z[1][c]), fmaxf(z[2][c], z[3][c]));
      bool found = false;
#pragma unroll
      for (int position = 0; position < 4; ++position) {
        const bool here = !found && (position == 3 || z[position][c] == best);  // the first of equals wins
        found |= here;
        z[position][c] = fmaf(kappa, z[position][c], alpha) + (here ? routed : 0.f);
      }
    }
#pragma unroll
    for (int position = 0; position < 4; ++position) {
      __half2 low[P::kFp16Terms], high[P::kFp16Terms];
      split(z[position][0], z[position][1], low);
      split(z[position][2], z[position][3], high);
      unsigned char* const to = corner + at(position) + (quad & 1) * 8;
#pragma unroll
      for (int term = 0; term < P::kFp16Terms; ++term) {
        const __half2 four[2] = {low[term], high[term]};
        *reinterpret_cast<uint2*>(to + term * Shared::kDzTerm) = *reinterpret_cast<const uint2*>(four);
      }
    }
  }
  wgmma_publish();
  halves.arrive(halves.dz2_ready, item);
}

#endif

}  // namespace mnist::fused
