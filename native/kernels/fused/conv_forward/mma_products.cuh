// conv1 -> bn1 -> relu -> max_pool of one row of pooled cells by warps, from the bytes of the image.
//
// A cell's pooling window sees 4 x 4 pixels, just one k-step of an m16n8k16 product: 16 channels as rows, 8 pooled
// cells as columns, k = 4 * row + column of the patch. The filter at each of the window's 4 positions is an A operand
// of its own, shifted within zeros, so that one load of the pixels serves four products. Their results for a cell lie
// in the same lane: pooling never leaves the registers.
#pragma once

#include "kernels/device/barriers.cuh"
#include "kernels/device/copies.cuh"
#include "kernels/device/lane.cuh"
#include "kernels/device/matrix.cuh"
#include "kernels/device/shared_memory.cuh"
#include "kernels/fused/shared/blocks.h"
#include "kernels/fused/shared/conv3x3.cuh"
#include "kernels/fused/shared/fp16_scales.cuh"
#include "kernels/fused/shared/image.cuh"
#include "kernels/fused/shared/image_layout.cuh"
#include "kernels/fused/shared/policy.cuh"
#include "kernels/fused/shared/routing.cuh"
#include "kernels/fused/shared/values.cuh"
#include "kernels/fused/state.h"

namespace mnist::fused {

// One warp's share: 16 of the 32 channels.
template <class P>
struct Conv1 {
  std::uint32_t weight[P::kConv1Terms][4][4];  // A operands: of a term, at a position
  float scale[2], shift[2];                    // of channels g and g + 8

  __device__ __forceinline__ void load(const void* packed, Bn1Operand bn1, int channel0, int lane) {
    const auto [g, t] = fragment_place(lane);
    const auto* words = static_cast<const std::uint32_t*>(packed);
#pragma unroll
    for (int term = 0; term < P::kConv1Terms; ++term)
#pragma unroll
      for (int position = 0; position < 4; ++position)
#pragma unroll
        for (int r = 0; r < 4; ++r)
          weight[term][position][r] =
              words[((term * 4 + position) * kConv1Channels + channel0 + g + (r & 1) * 8) * 8 + t + (r >> 1) * 4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int channel = channel0 + g + 8 * i;
      scale[i] = bn1.scale(channel) * bn1.filter_scale(channel);
      shift[i] = bn1.shift(channel);
    }
  }

  // From here on a is divided by `divisor`, too.
  __device__ __forceinline__ void divide(float divisor) {
#pragma unroll
    for (int i = 0; i < 2; ++i) scale[i] /= divisor, shift[i] /= divisor;
  }

  // Row cy of pooled cells. Calls emit(plane, a, route) for each plane: a[0], a[1] are channel g at slots 2t and 2t+1,
  // a[2], a[3] channel g + 8; byte i of route is 0x80 >> the position that a[i] came from, or 0 where relu made a zero
  // and in padding slots, whose a[i] means nothing.
  template <class Emit>
  __device__ __forceinline__ void row(std::uint32_t image, int cy, int lane, Emit emit) const {
#pragma unroll
    for (int plane = 0; plane < 2; ++plane)
      half_row(image, cy, plane, lane, [&](const float (&a)[4], std::uint32_t route) { emit(plane, a, route); });
  }

  // One plane of it: calls emit(a, route).
  template <class Emit>
  __device__ __forceinline__ void half_row(std::uint32_t image, int cy, int plane, int lane, Emit emit) const {
    const auto [g, t] = fragment_place(lane);
    const int cx = plane == 0 ? (g == 0 ? 1 : 2 * g - 1) : (g == 7 ? 12 : 2 * g);  // padding repeats a neighbour
    const std::uint32_t patch = image + ((2 * cy + (t >> 1)) * kImagePitch + 2 * cx + 2 * (t & 1)) * 2;
    const std::uint32_t b[2] = {load_shared_32(patch), load_shared_32(patch + 2 * kImagePitch * 2)};
    float z[4][4];
#pragma unroll
    for (int position = 0; position < 4; ++position) {
#pragma unroll
      for (int i = 0; i < 4; ++i) z[position][i] = 0.f;
#pragma unroll
      for (int term = P::kConv1Terms - 1; term >= 0; --term) mma_fp16(z[position], weight[term][position], b[0], b[1]);
    }
    float a[4];
    std::uint32_t route = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float window[4] = {z[0][i], z[1][i], z[2][i], z[3][i]};
      a[i] = pooled(window, scale[i >> 1], shift[i >> 1], false, i, route);
    }
    if (plane == 0 ? t == 0 : t == 3) route &= plane == 0 ? 0xff00ff00u : 0x00ff00ffu;
    emit(a, route);
  }
};

// ==== conv_forward/a1.cuh
// How conv1's pooled cells, a1, get into shared memory, and from there to global memory for conv2_backward.

// An image's a1 in shared memory; a padding slot may read past its end.
template <class P>
inline constexpr int kA1Bytes = (kSlotsOfImage + 1) * kSlotPitch<P, kConv1Channels>;

// Writes four values of conv1's half_row() into an image row in shared memory: channel channel0 + g (+8), slots 2t and
// 2t+1 of a plane, but for those that are padding and stay 0. place(slot, channel) says where a value goes; where
// values have 16 bits the next channel of an even one goes behind it.
template <class P, class Place>
__device__ __forceinline__ void store_a1(const float (&a)[4], int channel0, int plane, int lane, Place place) {
  const auto [g, t] = fragment_place(lane);
  const int padding = plane == 0 ? 0 : 7;
  if constexpr (sizeof(typename P::T) == 2) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const auto pair = transposed(P::pack(a[2 * upper], a[2 * upper + 1]));
      if (g != padding) *reinterpret_cast<typename P::Pair*>(place(g, channel0 + upper * 8 + 2 * t)) = pair;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int slot = 2 * t + (i & 1);
      if (slot != padding) *reinterpret_cast<float*>(place(slot, channel0 + (i >> 1) * 8 + g)) = P::store(a[i]);
    }
  }
}

// A place in a row of a padded image as above.
template <class P>
struct A1Place {
  unsigned char* row;
  int plane;
  __device__ __forceinline__ unsigned char* operator()(int slot, int channel) const {
    return row + (plane * 8 + slot) * kSlotPitch<P, kConv1Channels> + channel * int(sizeof(typename P::T));
  }
};

// a1 for conv2_backward, in whole 16-byte chunks: piece `piece` of the rows.
template <class P, int kThreads, int kPieces>
__device__ __forceinline__ void store_image_a1(const State& s, const unsigned char* a1, int image, int tid, int piece) {
  constexpr int kChunks = kConv1Channels * int(sizeof(typename P::T)) / 16, kCount = kCells1 * kChunks / kPieces;
  for (int i = piece * kCount + tid; i < (piece + 1) * kCount; i += kThreads) {
    const int pixel = i / kChunks, at = (pixel / kPool1Side + 1) * kSlots + slot_of(pixel % kPool1Side + 1);
    reinterpret_cast<uint4*>(s.a1)[std::size_t(image) * kCells1 * kChunks + i] =
        *reinterpret_cast<const uint4*>(a1 + at * kSlotPitch<P, kConv1Channels> + i % kChunks * 16);
  }
}

// ==== conv_forward/conv2.cuh
// conv2 by mma.sync: its filter's copies, z2, its window maxima and its channel sums.
//
// Channels are permuted in the filter so that a lane's 4 results of a pixel are neighbours in memory: filter row
// 8n + 2t + e of 16 is channel 4t + 2n + e.

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
