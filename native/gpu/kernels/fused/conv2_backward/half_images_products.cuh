// Products of conv2_backward on half images in fp16 terms, by wgmma: the dgrad and the routed taps. (The role of the
// weight gradient contains its own.) `Shared` is the layout of an item in shared memory: see half_images.cuh.
#pragma once

#include "kernels/device/matrix.cuh"
#include "kernels/device/wgmma.cuh"
#include "kernels/fused/shared/layout.cuh"
#include "kernels/fused/shared/routing.cuh"
#include "kernels/fused/shared/scales.cuh"

namespace mnist::fused {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Adds da1 to d as dgrad() of whole images does, four shifts at a time. The filter has no zeros: taps of a row lie in
// the order 2, 1, 0, so that the second and third shift ("inner") find theirs for both planes in one piece. The first
// and the last ("outer"), in which one plane meets zeros, get their rows through registers, where zeros cost no memory.
// They come last, because such a product holds up its warps.
template <class Shared>
__device__ __forceinline__ void dgrad(float (&d)[28], std::uint32_t dz, std::uint32_t filter, int warp, int lane) {
  constexpr int kTerms = Shared::kFp16Terms;
  constexpr int kSteps = Shared::kChunks2 / 2, kFours = 3 * kSteps, kTap = kConv1Channels * 16, kPiece = 3 * kTap;
  const int plane = warp >> 1;
  const std::uint32_t own = filter + (lane >> 4) * kPiece + ((warp & 1) * 16 + (lane & 15)) * 16;
  const std::uint64_t weights = wgmma_operand(filter, kPiece, 8 * 16);
  const std::uint64_t pixels = wgmma_operand(dz, Shared::kChunkPitch, Shared::kRowBytes);
  float sum[28], small[28];
  std::uint32_t a[kTerms][2][4];
#pragma unroll kSteps  // by a row of taps: wholly unrolled, it spills registers
  for (int n = 0; n < kFours; ++n) {
    const int step = n % kSteps, u = n / kSteps;
    const auto piece = [&](int term) {
      return term * Shared::kFilterTerm + (u * Shared::kChunks2 + 2 * step) * kPiece;
    };
    const auto input = [&](int shift, int term) {  // column 2j - 1 + shift
      return pixels + (u * Shared::kRowBytes + slot_of(shift - 1) * 16 + 2 * step * Shared::kChunkPitch +
                       term * Shared::kDzTerm) /
                          16;
    };
    // Products of a left and a right term.
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
      for (int term = 0; term < kTerms; ++term) {
        std::uint32_t rows[4];
        load_matrix_x4(rows, own + piece(term) + (plane == 0 ? 2 * kTap : 0));
#pragma unroll
        for (int i = 0; i < 4; ++i) a[term][0][i] = plane == 0 ? rows[i] : 0, a[term][1][i] = plane == 0 ? 0 : rows[i];
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

// As accumulate_routed_taps() of whole images, with terms of da1.
template <class Shared>
__device__ __forceinline__ void accumulate_routed_taps(float (&routed_taps)[2][12], const float (&da1)[28],
                                                       const std::uint32_t (&route)[7], std::uint32_t rows) {
  constexpr int kTerms = Shared::kFp16Terms;
  using Pixels = typename Shared::Pixels;
  const std::uint64_t pixels = wgmma_operand(rows, Pixels::kCellsBytes, 8 * Pixels::kRowBytes);
  float scales[2];
  make_da1_scales(da1, scales);
  const float inverse_scales[2] = {inverse_of(scales[0]), inverse_of(scales[1])};
  __half2 terms[kTerms][14];
#pragma unroll
  for (int i = 0; i < 14; ++i) {
    __half2 two[kTerms];
    split(da1[2 * i] * inverse_scales[i & 1], da1[2 * i + 1] * inverse_scales[i & 1], two);
#pragma unroll
    for (int term = 0; term < kTerms; ++term) terms[term][i] = two[term];
  }
  // The sums leave the tensor cores after the products of two rows of cells.
  float sum[2][12];
  std::uint32_t a[2][kTerms][2][4];  // [dx][term][dy]
  const auto add = [&] {
#pragma unroll
    for (int dx = 0; dx < 2; ++dx) {
      wgmma_results(sum[dx]);
#pragma unroll
      for (int i = 0; i < 12; ++i) routed_taps[dx][i] = fmaf(sum[dx][i], scales[i >> 1 & 1], routed_taps[dx][i]);
    }
  };
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const int first = pair == 0 ? 0 : 2 * pair - 1;
    if (pair > 0) {
      wgmma_wait<0>();
      add();
    }
#pragma unroll
    for (int position = 0; position < 4; ++position)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first + i / 2;
        const std::uint32_t mask = routing_mask_16(route[row], position, i & 1);
#pragma unroll
        for (int term = 0; term < kTerms; ++term)
          a[position % 2][term][position / 2][i] =
              pair == 0 && i >= 2 ? 0 : mask & *reinterpret_cast<const std::uint32_t*>(&terms[term][2 * row + (i & 1)]);
      }
    wgmma_fence();
#pragma unroll
    for (int term = kTerms - 1; term >= 0; --term)
#pragma unroll
      for (int position = 0; position < 4; ++position) {
        const int dx = position % 2, dy = position / 2;
        const bool begins = term + 1 == kTerms && dy == 0;
        wgmma_fp16(sum[dx], a[dx][term][dy], pixels + (first * Pixels::kCellsBytes + Pixels::columns_at(dy, dx)) / 16,
                   !begins);
      }
    wgmma_commit();
  }
  wgmma_wait<0>();
  add();
}

#endif

}  // namespace mnist::fused
