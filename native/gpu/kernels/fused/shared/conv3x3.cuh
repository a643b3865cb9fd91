// A 3x3 convolution over padded 14x14 images in shared memory, by warps: forward of conv2, and its dgrad, which is
// the same sum over the flipped filter.
//
// Image: [16 rows][2 planes][8 slots][C values], pixel (y', x') at row y', plane x' & 1, slot x' >> 1 (see
// layout.cuh), `pitch` bytes from slot to slot; a border of zeros all round. Filter: [rows][9 taps][C], one row a
// column of the result. A warp makes R image rows of 16 outputs (two groups of 8) by 16 filter rows; an input row
// loaded for one output row serves its two neighbours too, so R + 2 loads feed 3R products. fp32 multiplies terms:
// operand_at() in layout.cuh says where they are.
#pragma once

#include "kernels/device/matrix.cuh"
#include "kernels/fused/shared/layout.cuh"

namespace mnist::fused {

// Adds the outputs of image row r to acc[r]. `image` is the shared address of the row above the first output
// row, `filter` of the warp's first filter row.
//   kPixelsFirst: acc[r][n] is the mma result with rows = the 16 outputs, columns = filter rows 8n..8n+7
//   otherwise:    acc[r][group], rows = the 16 filter rows, columns = the 8 outputs of a group
// The innermost 4 are an accumulator's fragment: see device/mma.cuh.
// kSteps: how many k-steps of 16 channels are summed, from the one at which both addresses point.
template <class P, int C, int R, class Shift, bool kPixelsFirst, int kSteps, int kRowsOfAcc>
__device__ __forceinline__ void conv3x3_rows(float (&acc)[kRowsOfAcc][2][4], std::uint32_t image, std::uint32_t filter,
                                             int lane) {
  constexpr int kPitch = kSlotPitch<P, C>, kRowBytes = kSlots * kPitch;
  constexpr int kTapBytes = C * int(sizeof(typename P::T));
  const int j = lane & 7, high = lane >> 4, low = lane >> 3 & 1;
  const int group = kPixelsFirst ? low : high, chunk = kPixelsFirst ? high : low;  // see a_lane_offset
  const std::uint32_t weights =
      filter + (kPixelsFirst ? b_lane_offset(lane, kFilterPitch<P, C>) : a_lane_offset(lane, kFilterPitch<P, C>));
  float partial[R][2][4];
  if constexpr (!P::kDrainAccumulators)
#pragma unroll
    for (int i = 0; i < 8 * R; ++i) partial[i / 8][i / 4 % 2][i % 4] = acc[i / 8][i / 4 % 2][i % 4];
  // Unrolled where registers allow, so that loads for one step are under way while another's products are made.
#pragma unroll(P::kDrainAccumulators || (sizeof(typename P::T) == 2 && !kPixelsFirst) ? 1 : 2)
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int v = 0; v < 3; ++v) {
      if constexpr (P::kDrainAccumulators) clear_accumulators(partial);
      const int slot = j + (group == 0 ? Shift::at(0, v) : Shift::at(1, v));
      const int first = operand_at<P>(16 * step);
      const std::uint32_t column = image + slot * kPitch + chunk * 16 + first;
      // Terms of the pixels times terms of the filter, the least first; small x small does not count.
#pragma unroll
      for (int term = kTerms<P> - 1; term >= 0; --term) {
        std::uint32_t pixels[R + 2][4];
#pragma unroll
        for (int r = 0; r < R + 2; ++r) load_matrix_x4(pixels[r], column + r * kRowBytes + term * kTermBytes);
#pragma unroll
        for (int of_filter = kTerms<P> - 1 - term; of_filter >= 0; --of_filter)
#pragma unroll
          for (int u = 0; u < 3; ++u) {
            std::uint32_t w[4];
            load_matrix_x4(w, weights + (3 * u + v) * kTapBytes + first + of_filter * kTermBytes);
#pragma unroll
            for (int r = 0; r < R; ++r) {
              const auto& p = pixels[r + u];
              if constexpr (kPixelsFirst) {
                Operand<P>::mma(partial[r][0], p, w[0], w[1]);
                Operand<P>::mma(partial[r][1], p, w[2], w[3]);
              } else {
                Operand<P>::mma(partial[r][0], w, p[0], p[1]);
                Operand<P>::mma(partial[r][1], w, p[2], p[3]);
              }
            }
            // The dgrad's sums leave after each big product: over a batch they nearly cancel, and where images are flat
            // all of them are cut off alike.
            if (P::kDrainAccumulators && !kPixelsFirst && term + of_filter == 0) {
              add_accumulators(acc, partial);
              clear_accumulators(partial);
            }
          }
      }
      if constexpr (P::kDrainAccumulators && kPixelsFirst) add_accumulators(acc, partial);
    }
  }
  if constexpr (!P::kDrainAccumulators)
#pragma unroll
    for (int i = 0; i < 8 * R; ++i) acc[i / 8][i / 4 % 2][i % 4] = partial[i / 8][i / 4 % 2][i % 4];
}

}  // namespace mnist::fused
