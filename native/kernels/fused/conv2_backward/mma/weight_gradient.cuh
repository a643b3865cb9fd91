// conv2's weight gradient over the rows of one item in shared memory, by mma.sync.
#pragma once

#include "kernels/device/lane.cuh"
#include "kernels/device/matrix.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/shared_memory.cuh"
#include "kernels/fused/shared/layout.cuh"

namespace mnist::fused {

// dw[tap] += dz2^T a1 over the rows of one item: 16 of conv2's channels by 16 of conv1's. Row r of a1 meets rows r + 1,
// r and r - 1 of dz2 in the taps of filter rows 0, 1 and 2; rows of dz2 stay in registers for the three rows of a1 that
// they meet, so that every operand is loaded once. fp32 has no registers for that: it loads more and drains its
// accumulators after every 16 products.
// dw has 16 of conv2's channels by 8 kColumns of conv1's; dz2 in shared memory has kChannels.
template <class P, int kRows, int kChannels, int kColumns>
__device__ __forceinline__ void weight_gradient(float (&dw)[kTaps][kColumns][4], std::uint32_t dz, std::uint32_t a1,
                                                int lane) {
  constexpr int kDzPitch = kSlotPitch<P, kChannels>, kA1Pitch = kSlotPitch<P, kConv1Channels>;
  constexpr bool kHalf = sizeof(typename P::T) == 2;
  constexpr int kPlanes = kHalf ? 1 : 2;  // products a row: 16 slots, or 8
  // Rows 0 and 15 of a whole image are padding. Half an image adds the neighbouring rows of a1, but not of dz2.
  constexpr int kFirst = kRows == 14 ? 1 : 0, kLast = kRows == 14 ? 14 : kRows + 1;
  const auto [g, t] = fragment_place(lane);
  const auto counts = [](int row) { return kRows == 14 || (row >= 1 && row <= kRows); };  // of dz2
  const auto load_dz = [&](std::uint32_t (&a)[kPlanes][4], int row) {
    if constexpr (kHalf) {
      load_matrix_x4_trans(a[0], dz + (row * kSlots + (lane & 7) + (lane >> 4) * 8) * kDzPitch + (lane >> 3 & 1) * 16);
    } else {
#pragma unroll
      for (int plane = 0; plane < 2; ++plane)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          a[plane][i] =
              load_shared_32(dz + (row * kSlots + plane * 8 + 2 * t + (i >> 1)) * kDzPitch + g * 4 + (i & 1) * 32);
    }
  };
  const auto load_a1 = [&](std::uint32_t (&b)[kPlanes][kColumns][2], int row, int v) {  // [][columns 0-7 or 8-15][]
    if constexpr (kHalf) {
      static_assert(kColumns == 2);
      const int plane = lane >> 3 & 1;
      const int slot = (plane == 0 ? AlignedShift::at(0, v) : AlignedShift::at(1, v)) + (lane & 7);
      std::uint32_t r[4];
      load_matrix_x4_trans(r, a1 + (row * kSlots + slot) * kA1Pitch + (lane >> 4) * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) b[0][i >> 1][i & 1] = r[i];
    } else {
#pragma unroll
      for (int plane = 0; plane < 2; ++plane)
#pragma unroll
        for (int i = 0; i < 2 * kColumns; ++i)
          b[plane][i >> 1][i & 1] = load_shared_32(
              a1 + (row * kSlots + AlignedShift::at(plane, v) + 2 * t + (i & 1)) * kA1Pitch + g * 4 + (i >> 1) * 32);
    }
  };
  std::uint32_t a[kHalf ? 3 : 1][kPlanes][4];  // row d of dz2 lies at d % 3
  if constexpr (kHalf && kFirst > 0) {
    load_dz(a[kFirst - 1], kFirst - 1);
    load_dz(a[kFirst], kFirst);
  }
#pragma unroll(kHalf ? kRows + 2 : 1)
  for (int row = kFirst; row <= kLast; ++row) {  // of a1
    if constexpr (kHalf) {
      if (counts(row + 1)) load_dz(a[(row + 1) % 3], row + 1);
#pragma unroll
      for (int v = 0; v < 3; ++v) {
        std::uint32_t b[kPlanes][kColumns][2];
        load_a1(b, row, v);
#pragma unroll
        for (int u = 0; u < 3; ++u) {
          if (!counts(row + 1 - u)) continue;
#pragma unroll
          for (int plane = 0; plane < kPlanes; ++plane)
#pragma unroll
            for (int n = 0; n < kColumns; ++n)
              P::mma(dw[3 * u + v][n], a[(row + 1 - u) % 3][plane], b[plane][n][0], b[plane][n][1]);
        }
      }
    } else {
#pragma unroll
      for (int u = 0; u < 3; ++u) {
        if (!counts(row + 1 - u)) continue;
        load_dz(a[0], row + 1 - u);
#pragma unroll
        for (int v = 0; v < 3; ++v) {
          std::uint32_t b[kPlanes][kColumns][2];
          load_a1(b, row, v);
          float partial[kColumns][4] = {};
#pragma unroll
          for (int plane = 0; plane < kPlanes; ++plane)
#pragma unroll
            for (int n = 0; n < kColumns; ++n) P::mma(partial[n], a[0][plane], b[plane][n][0], b[plane][n][1]);
          add_accumulators(dw[3 * u + v], partial);
        }
      }
    }
  }
}

}  // namespace mnist::fused
