// conv2 by mma.sync: its filter's copies, z2, its window maxima and its channel sums.
//
// Channels are permuted in the filter so that a lane's 4 results of a pixel are neighbours in memory: filter row
// 8n + 2t + e of 16 is channel 4t + 2n + e.
#pragma once

#include "kernels/device/barriers.cuh"
#include "kernels/device/copies.cuh"
#include "kernels/device/lane.cuh"
#include "kernels/fused/shared/blocks.h"
#include "kernels/fused/shared/conv3x3.cuh"
#include "kernels/fused/shared/fp16_scales.cuh"
#include "kernels/fused/shared/values.cuh"
#include "kernels/fused/state.h"

namespace mnist::fused {

// Which of channels 4t .. 4t+3 of a quarter have a batch norm scale of 0, bit by bit.
__device__ __forceinline__ unsigned zero_scales(const State& s, int quarter, int lane) {
  unsigned zeros = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    zeros |= (s.parameters[kParameters[kBn2Weight].offset + quarter * 16 + 4 * (lane & 3) + i] == 0.f) << i;
  return zeros;
}

// The filter of all channels arrives in slices of 37 KB: slice p is kFilterSliceBytes bytes, four 16-byte chunks, of
// each tap.
template <class P>
inline constexpr int kFilterSlices = sizeof(typename P::T) / 2;
inline constexpr int kFilterSliceBytes = kConv1Channels * 2;

template <class P>
__device__ __forceinline__ void copy_filter_slice(unsigned char* shared, const void* packed, int slice) {
  constexpr int kTapBytes = kConv1Channels * int(sizeof(typename P::T));
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const auto copy = [&](int row, int tap) {
    const int at = tap * kTapBytes + slice * kFilterSliceBytes + (lane & 3) * 16;
    copy_async_16(shared_address(shared) + row * kFilterPitch<P, kConv1Channels> + at,
                  static_cast<const char*>(packed) + row * kTaps * kTapBytes + at);
  };
#pragma unroll
  for (int row = 0; row < kConv2Channels; row += kConvWarps) copy(row + warp, lane >> 2);
  if (tid < 4 * kConv2Channels) copy(tid >> 2, 8);  // the ninth tap
  copy_async_commit();
}

// For every warp of a block: its copies end, and a warp that is to make R = 2 or 4 image rows waits for those of all
// warps. These two kinds are in different places of the code, so each waits at a barrier of its own and only arrives at
// the other's; a warp that makes no rows, R = 0, only arrives, at both.
template <int R>
__device__ __forceinline__ void finish_copies() {
  copy_async_wait<0>();
  using OfKind = NamedBarrier<1, kConvThreads, 2>;
#pragma unroll
  for (int kind = 0; kind < 2; ++kind)
    if (kind != R / 2 - 1) OfKind::arrive(kind);
  if (R != 0) OfKind::sync(R / 2 - 1);
}

// R image rows (R/2 rows of pooling windows) of one image and 16 channels, by one warp. Where the filter has two
// slices, only the first need have arrived, and the block's other warps call finish_copies(), too. `acc_scale` is
// z2_acc_scale() in tf32.
template <class P, int R, int kSlices = 1>
__device__ __forceinline__ void conv2_rows(const State& s, float (&sum)[4], float (&squares)[4], std::uint32_t a1,
                                           std::uint32_t filter, unsigned zeros, int image, int quarter, int window_row,
                                           int lane, float acc_scale = 1.f) {
  using T = typename P::T;
  const auto [g, t] = fragment_place(lane);
  constexpr int kSteps = kConv1Channels / kStep<P> / kSlices;
  const std::uint32_t rows = a1 + 2 * window_row * kSlots * kSlotPitch<P, kConv1Channels>;
  float acc[R][2][4] = {};
  conv3x3_rows<P, kConv1Channels, R, ForwardShift, true, kSteps>(acc, rows, filter, lane);
  if constexpr (kSlices == 2) {
    finish_copies<R>();
    conv3x3_rows<P, kConv1Channels, R, ForwardShift, true, kSteps>(acc, rows + kFilterSliceBytes,
                                                                   filter + kFilterSliceBytes, lane);
  }
  if (g == 7) return;  // the eighth window of a row is padding
  T* const z2 = static_cast<T*>(s.z2) +
                (std::size_t(image) * kCells1 + 2 * window_row * kPool1Side + 2 * g) * kConv2Channels + quarter * 16 +
                4 * t;
  T* const pooled_z2 = static_cast<T*>(s.pooled_z2) +
                       (std::size_t(image) * kCells2 + window_row * kPool2Side + g) * kConv2Channels + quarter * 16 +
                       4 * t;
  float factor[4] = {};  // by channel
  if constexpr (P::kScaled)
#pragma unroll
    for (int i = 0; i < 4; ++i) factor[i] = z2_factor(s, acc_scale, image, quarter * 16 + 4 * t + i);
#pragma unroll
  for (int q = 0; q < R / 2; ++q) {
    Four<P> top, first;
#pragma unroll
    for (int position = 0; position < 4; ++position) {
      Four<P> z;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float* value = acc[2 * q + (position >> 1)][n] + (position & 1) * 2;
        z.pair[n] =
            P::kScaled ? P::pack(factor[2 * n] * value[0], factor[2 * n + 1] * value[1]) : P::pack(value[0], value[1]);
        const float2 x = P::unpack(z.pair[n]);
        sum[2 * n] += x.x;
        sum[2 * n + 1] += x.y;
        squares[2 * n] = fmaf(x.x, x.x, squares[2 * n]);
        squares[2 * n + 1] = fmaf(x.y, x.y, squares[2 * n + 1]);
        if (position == 0) first.pair[n] = z.pair[n];
        top.pair[n] = position == 0 ? z.pair[n] : P::max(top.pair[n], z.pair[n]);
      }
      z.store(z2 + ((2 * q + (position >> 1)) * kPool1Side + (position & 1)) * kConv2Channels);
    }
    if (zeros) {  // where the scale is 0 every position ties, and the first one wins
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (zeros >> i & 1) {
          if (i & 1)
            top.pair[i >> 1].y = first.pair[i >> 1].y;
          else
            top.pair[i >> 1].x = first.pair[i >> 1].x;
        }
    }
    top.store(pooled_z2 + q * kPool2Side * kConv2Channels);
  }
}

// Channel sums of a warp's 16 channels to shared memory: over the 8 windows of a lane group.
__device__ __forceinline__ void add_windows(float (*warp_sums)[2][16], float (&sum)[4], float (&squares)[4], int warp,
                                            int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int mask = 4; mask < 32; mask <<= 1) {
      sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], mask);
      squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], mask);
    }
    if (lane < 4) {
      warp_sums[warp][0][4 * lane + i] = sum[i];
      warp_sums[warp][1][4 * lane + i] = squares[i];
    }
  }
}

// A block's sums of z2, to which kGroups groups of 4 warps, 16 channels each, have added theirs.
template <int kGroups>
__device__ __forceinline__ void store_z2_sums(const State& s, const float (*warp_sums)[2][16], int tid) {
  if (tid >= 2 * kConv2Channels) return;
  const int which = tid / kConv2Channels, channel = tid % kConv2Channels;
  float total = 0;
#pragma unroll
  for (int k = 0; k < kGroups; ++k) total += warp_sums[4 * k + channel / 16][which][channel % 16];
  s.z2_sums[std::size_t(blockIdx.x) * 2 * kConv2Channels + tid] = total;
}

}  // namespace mnist::fused
