// The dgrad of halves of images in fp16 terms, by wgmma.
#pragma once

#include "kernels/device/matrix.cuh"
#include "kernels/device/wgmma.cuh"
#include "kernels/fused/conv2_backward/fp16_halves/block.cuh"

namespace mnist::fused {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// As dgrad() of whole images, four shifts at a time. In the filter, taps of a row lie in the order 2, 1, 0, so
// that the second and the third shift find theirs for both planes in one piece. The other two, which want zeros for
// one of the planes, get their rows through registers, where zeros cost no memory: they come last, because such a
// product holds up its warps. `zeros` is the address of 16 bytes of them.
template <class P>
__device__ __forceinline__ void dgrad(const Fp16Halves<P>& halves, float (&d)[28], std::uint32_t dz,
                                      std::uint32_t zeros, int warp) {
  using Shared = Fp16HalvesShared<P>;
  constexpr int kSteps = Shared::kChunks2 / 2, kFours = 3 * kSteps, kTap = kConv1Channels * 16, kPiece = 3 * kTap;
  const int plane = warp >> 1;
  const std::uint32_t filter = shared_address(halves.shared) + Shared::kFilter;
  const std::uint32_t own = filter + (halves.lane >> 4) * kPiece + ((warp & 1) * 16 + (halves.lane & 15)) * 16;
  const std::uint64_t weights = wgmma_operand(filter, kPiece, 8 * 16);
  const std::uint64_t pixels = wgmma_operand(dz, Shared::kChunkPitch, Shared::kRowBytes);
  float sum[28], small[28];
  std::uint32_t a[P::kFp16Terms][2][4];
#pragma unroll
  for (int n = 0; n < kFours; ++n) {
    const int step = n % kSteps, u = n / kSteps;
    const auto piece = [&](int term) {
      return term * Shared::kFilterTerm + (u * Shared::kChunks2 + 2 * step) * kPiece;
    };
    const auto input = [&](int shift, int term) {  // column 2j - 1 + shift
      const int slot = shift == 0 ? 7 : shift == 1 ? 0 : shift == 2 ? 8 : 1;
      return pixels +
             (u * Shared::kRowBytes + slot * 16 + 2 * step * Shared::kChunkPitch + term * Shared::kDzTerm) / 16;
    };
    // Left and right terms of the second and third shift's products, or of the first and last one's.
    const auto multiply_inner = [&](float (&to)[28], int left, int right, bool first_adds) {
      wgmma_fp16(to, weights + (piece(left) + kTap) / 16, input(1, right), first_adds);
      wgmma_fp16(to, weights + piece(left) / 16, input(2, right), true);
    };
    const auto multiply_outer = [&](float (&to)[28], int left, int right, bool first_adds) {
      wgmma_fp16(to, a[left][0], input(0, right), first_adds);
      wgmma_fp16(to, a[left][1], input(3, right), true);
    };
    const auto load_outer = [&] {
#pragma unroll
      for (int term = 0; term < P::kFp16Terms; ++term) {
        load_matrix_x4(a[term][0], plane == 0 ? own + piece(term) + 2 * kTap : zeros);
        load_matrix_x4(a[term][1], plane == 0 ? zeros : own + piece(term));
      }
    };
    // Big products leave the tensor cores two at a time, while small ones run.
    const auto take = [&] {
      wgmma_wait<1>();
      wgmma_results(sum);
#pragma unroll
      for (int i = 0; i < 28; ++i) d[i] += sum[i];
      wgmma_results(d);
    };
    wgmma_fence();
    multiply_inner(sum, 0, 0, false);
    wgmma_commit();
    wgmma_fence();
    multiply_inner(small, 1, 0, n > 0);
    multiply_inner(small, 0, 1, true);
    wgmma_commit();
    take();
    load_outer();
    wgmma_fence();
    multiply_outer(sum, 0, 0, false);
    wgmma_commit();
    wgmma_fence();
    multiply_outer(small, 1, 0, true);
    multiply_outer(small, 0, 1, true);
    wgmma_commit();
    take();
  }
  wgmma_wait<0>();
  wgmma_results(d);
  wgmma_results(small);
#pragma unroll
  for (int i = 0; i < 28; ++i) d[i] += small[i];
}

#endif

}  // namespace mnist::fused
