// The routed taps of halves of images in fp16 terms, by wgmma.
#pragma once

#include "kernels/device/wgmma.cuh"
#include "kernels/fused/conv2_backward/fp16_halves/block.cuh"
#include "kernels/fused/shared/routing.cuh"

namespace mnist::fused {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The scale of da1 for each of a thread's two channels, by the largest value of its rows of a product, which four lanes
// hold. (da1 has no bound that would do: the largest possible sum of its 576 products is thousands of times what comes
// out, and where images are flat all of a channel's values would lose the same to terms too far below it.)
__device__ __forceinline__ void make_da1_scales(const float (&da1)[28], float (&scales)[2]) {
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 28; i += 4)
      largest = fmaxf(largest, fmaxf(fabsf(da1[i + 2 * upper]), fabsf(da1[i + 2 * upper + 1])));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    scales[upper] = power_of_two_scale<15>(largest);
  }
}

// As accumulate_routed_taps() of whole images, of terms of da1. The sums are in shared memory, 24 a thread.
template <class P>
__device__ __forceinline__ void accumulate_routed_taps(const Fp16Halves<P>&, float* routed_taps, const float (&da1)[28],
                                                       const std::uint32_t (&route)[7], std::uint32_t rows) {
  using Pixels = typename Fp16HalvesShared<P>::Pixels;
  const std::uint64_t pixels = wgmma_operand(rows, Pixels::kCellsBytes, 8 * Pixels::kRowBytes);
  float scales[2];
  make_da1_scales(da1, scales);
  const float inverse_scales[2] = {inverse_of(scales[0]), inverse_of(scales[1])};
  __half2 terms[P::kFp16Terms][14];
#pragma unroll
  for (int i = 0; i < 14; ++i) {
    __half2 two[P::kFp16Terms];
    split(da1[2 * i] * inverse_scales[i & 1], da1[2 * i + 1] * inverse_scales[i & 1], two);
#pragma unroll
    for (int term = 0; term < P::kFp16Terms; ++term) terms[term][i] = two[term];
  }
  // The products of two rows of cells at a time; their sums are then taken out of the tensor cores.
  float sum[2][12];
  std::uint32_t a[2][P::kFp16Terms][2][4];  // [dx][term][dy]
  const auto add = [&] {
#pragma unroll
    for (int dx = 0; dx < 2; ++dx) {
      wgmma_results(sum[dx]);
#pragma unroll
      for (int i = 0; i < 12; ++i) {
        float& total = routed_taps[(12 * dx + i) * kGroupThreads];
        total = fmaf(sum[dx][i], scales[i >> 1 & 1], total);
      }
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
        for (int term = 0; term < P::kFp16Terms; ++term)
          a[position % 2][term][position / 2][i] =
              pair == 0 && i >= 2 ? 0 : mask & *reinterpret_cast<const std::uint32_t*>(&terms[term][2 * row + (i & 1)]);
      }
    wgmma_fence();
#pragma unroll
    for (int term = P::kFp16Terms - 1; term >= 0; --term)
#pragma unroll
      for (int position = 0; position < 4; ++position) {
        const int dx = position % 2, dy = position / 2;
        const int at = first * Pixels::kCellsBytes + dx * 2 * Pixels::kListBytes + dy * Pixels::kRowBytes;
        const bool begins = term + 1 == P::kFp16Terms && dy == 0;
        wgmma_fp16(sum[dx], a[dx][term][dy], pixels + at / 16, !begins);
      }
    wgmma_commit();
  }
  wgmma_wait<0>();
  add();
}

#endif

}  // namespace mnist::fused
