// The products of conv2_backward by mma.sync, besides the dgrad of shared/conv3x3.cuh: conv2's weight gradient and the
// routed taps.
#pragma once

#include "kernels/device/matrix.cuh"
#include "kernels/fused/conv2_backward/make_dz2.cuh"
#include "kernels/fused/conv2_backward/pixel_lists.cuh"
#include "kernels/fused/shared/routing.cuh"

namespace mnist::fused {

// dw[tap] += dz2^T a1 over the rows of an item, for 16 of conv2's channels by 8 kColumns of conv1's. `dz` and `a1` are
// the shared addresses of these channels; a pixel of dz2 has kChannels.
//
// Row r of a1 meets rows r + 1, r and r - 1 of dz2 in the taps of filter rows u = 0, 1 and 2. In 16 bits these rows of
// dz2 stay in registers, so that every operand is loaded once:
//
//   row of a1        1        2        3     ...
//   rows of dz2    2 1 0    3 2 1    4 3 2   ...   for u = 0, 1, 2; only one is new
//
// fp32 has no registers for that. Its sums leave the tensor cores after the three products of a row's terms, and three
// taps are under way at a time.
template <class P, int kRows, int kChannels, int kColumns>
__device__ __forceinline__ void weight_gradient(float (&dw)[kTaps][kColumns][4], std::uint32_t dz, std::uint32_t a1,
                                                int lane) {
  constexpr int kDzPitch = kSlotPitch<P, kChannels>, kA1Pitch = kSlotPitch<P, kConv1Channels>;
  // Rows 0 and 15 of a whole image are padding. Half an image includes the neighbouring rows of a1, but not of dz2.
  constexpr int kFirst = kRows == 14 ? 1 : 0, kLast = kRows == 14 ? 14 : kRows + 1;
  const auto counts = [](int row) { return kRows == 14 || (row >= 1 && row <= kRows); };  // row of dz2
  const auto load_dz = [&](std::uint32_t (&a)[4], int row, int term = 0) {
    load_matrix_x4_trans(
        a, dz + (row * kSlots + (lane & 7) + (lane >> 4) * 8) * kDzPitch + (lane >> 3 & 1) * 16 + term * kTermBytes);
  };
  // Two columns of 8 channels; or one, of which the second pair of registers has the small term.
  const auto load_a1 = [&](std::uint32_t (&b)[2][2], int row, int v, int column = 0) {
    constexpr int kSecond = kTerms<P> == 1 ? 16 : kTermBytes;
    const int plane = lane >> 3 & 1;
    const int slot = (plane == 0 ? AlignedShift::at(0, v) : AlignedShift::at(1, v)) + (lane & 7);
    load_matrix_x4_trans(reinterpret_cast<std::uint32_t (&)[4]>(b),
                         a1 + (row * kSlots + slot) * kA1Pitch + (lane >> 4) * kSecond + column * 16);
  };
  if constexpr (kTerms<P> == 1) {
    static_assert(kColumns == 2);
    std::uint32_t a[3][4];  // row d of dz2 lies at d % 3
    if constexpr (kFirst > 0) {
      load_dz(a[kFirst - 1], kFirst - 1);
      load_dz(a[kFirst], kFirst);
    }
#pragma unroll
    for (int row = kFirst; row <= kLast; ++row) {  // of a1
      if (counts(row + 1)) load_dz(a[(row + 1) % 3], row + 1);
#pragma unroll
      for (int v = 0; v < 3; ++v) {
        std::uint32_t b[2][2];
        load_a1(b, row, v);
#pragma unroll
        for (int u = 0; u < 3; ++u) {
          if (!counts(row + 1 - u)) continue;
#pragma unroll
          for (int n = 0; n < 2; ++n) P::mma(dw[3 * u + v][n], a[(row + 1 - u) % 3], b[n][0], b[n][1]);
        }
      }
    }
  } else {
#pragma unroll
    for (int row = kFirst; row <= kLast; ++row)
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        std::uint32_t b[3][2][2];  // [v][term][]
#pragma unroll
        for (int v = 0; v < 3; ++v) load_a1(b[v], row, v, n);
#pragma unroll
        for (int u = 0; u < 3; ++u) {
          if (!counts(row + 1 - u)) continue;
          std::uint32_t a[2][4];
#pragma unroll
          for (int term = 0; term < 2; ++term) load_dz(a[term], row + 1 - u, term);
          float partial[3][4] = {};
#pragma unroll
          for (int product = 0; product < 3; ++product)  // big x small, small x big, big x big
#pragma unroll
            for (int v = 0; v < 3; ++v) {
              const auto& of_a1 = b[v][product == 0];
              Operand<P>::mma(partial[v], a[product == 1], of_a1[0], of_a1[1]);
            }
#pragma unroll
          for (int i = 0; i < 12; ++i) dw[3 * u + i / 4][n][i % 4] += partial[i / 4][i % 4];
        }
      }
  }
}

// Adds the routed taps of one image row and 16 channels: the gradient `da1` (rows: channels; columns: the slots of a
// plane) times the pixels under the position that `route` names. There is one product for each position, in which the
// gradients of all other windows are masked to 0. Bit 7 - p of byte i of route[plane] says that value i goes to
// position p; shifted to the top of its byte, it becomes a mask in one instruction.
//
//   column      0    1    2    3    4    5    6    7    8    9     10 - 15
//   tap (u, v)  0,0  0,1  0,2  1,0  1,1  1,2  2,0  2,1  2,2  ones  zeros
//
// Column 9 is the plain sum, bn1's d beta. `pixel_lists` is the address of the row's pixels, `rest` the rounding errors
// of the rows before, in tf32; `to_stored` multiplies da1 before it is rounded, in fp32 by channel. With kSums = 4 each
// position has sums of its own, so that no product waits for the one before; they cost registers.
template <class P, int kSums>
__device__ __forceinline__ void accumulate_routed_taps(float (&routed_taps)[kSums][2][4], const float (&da1)[2][4],
                                                       const std::uint32_t (&route)[2], std::uint32_t pixel_lists,
                                                       int lane, float2 (&rest)[4], const float (&to_stored)[2]) {
  using Q = PixelLists<Operand<P>>;
  const auto [g, t] = fragment_place(lane);
  const std::uint32_t tap = pixel_lists + g % 3 * Q::kListBytes + g / 3 * Q::kRowBytes + t * 4,
                      last_tap = pixel_lists + 2 * Q::kListBytes + 2 * Q::kRowBytes + t * 4;
  const auto at = [](int plane, int position) {
    return (2 * plane + (position & 1)) * Q::kListBytes + (position >> 1) * Q::kRowBytes;
  };
  const std::uint32_t ones = g == 1 ? Operand<P>::kOnes : 0u;
  std::uint32_t packed[kTerms<P>][4];  // pairs of neighbouring slots
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* two = da1[i >> 1] + 2 * (i & 1);
    if constexpr (kTerms<P> == 1) {
      packed[0][i] = pack_da1<P>(two[0], two[1], rest[i], route[i >> 1] >> 16 * (i & 1), to_stored[0]);
    } else {
      __half2 terms[kTerms<P>];
      split(two[0] * to_stored[i & 1], two[1] * to_stored[i & 1], terms);
#pragma unroll
      for (int term = 0; term < kTerms<P>; ++term)
        packed[term][i] = reinterpret_cast<const std::uint32_t&>(terms[term]);
    }
  }
  // The terms of both positions with the same dx, the small ones first.
#pragma unroll
  for (int dx = 0; dx < 2; ++dx) {
    std::uint32_t b[2][2][2];  // [dy][columns 0-7 or 8-15][plane]
#pragma unroll
    for (int dy = 0; dy < 2; ++dy)
#pragma unroll
      for (int plane = 0; plane < 2; ++plane) {
        b[dy][0][plane] = load_shared_32(tap + at(plane, 2 * dy + dx));
        const std::uint32_t last = load_shared_32(last_tap + at(plane, 2 * dy + dx));
        b[dy][1][plane] = g == 0 ? last : ones;
      }
#pragma unroll
    for (int term = kTerms<P> - 1; term >= 0; --term)
#pragma unroll
      for (int dy = 0; dy < 2; ++dy) {
        const int position = 2 * dy + dx;
        std::uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = packed[term][i] & routing_mask_16(route[i >> 1], position, i & 1);
#pragma unroll
        for (int n = 0; n < 2; ++n) Operand<P>::mma(routed_taps[position % kSums][n], a, b[dy][n][0], b[dy][n][1]);
      }
  }
}

// A sum over all positions.
template <int kSums>
__device__ __forceinline__ float sum_of(const float (&routed_taps)[kSums][2][4], int n, int i) {
  if constexpr (kSums == 1)
    return routed_taps[0][n][i];
  else
    return (routed_taps[0][n][i] + routed_taps[1][n][i]) + (routed_taps[2][n][i] + routed_taps[3][n][i]);
}

}  // namespace mnist::fused
