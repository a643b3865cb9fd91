// Part of conv_forward by wgmma: conv2, its pooling and its channel sums.
//
// A product is transposed: its 64 rows are all of conv2's channels, its columns are pixels: the left or the right half
// of an image's columns, 8 a row (of the right half's the last two are padding and mean nothing), so that columns 2t,
// 2t + 1 of two rows, which are a pooling window, lie in the registers of one lane.
#pragma once

#include "kernels/device/lane.cuh"
#include "kernels/device/matrix.cuh"
#include "kernels/fused/conv_forward/wgmma_layout.cuh"
#include "kernels/fused/shared/values.cuh"

namespace mnist::fused {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// What a warpgroup makes of conv2 at a time: kRows rows from first_row on (those past the image's end mean nothing) of
// 8 columns.
template <class P, int kRows>
struct Conv2Columns {
  using T = typename P::T;
  using Pair = typename P::Pair;
  int first_row, side, quarter, lane;  // side: of the columns; quarter: of the channels, a warp each
  bool zero[2];                        // whether bn2's scale is 0 for the channels of rows g and g + 8
  float sum[2], squares[2];            // by channel, of all pixels so far
  float acc_scale;                     // of acc, in fp32's terms or in tf32, there as a multiple of z2's
  float image_scale[2];                // the same for an image, by channel
  float acc[4 * kRows];                // see wgmma_bf16()

  __device__ __forceinline__ Conv2Columns(const State& s, int first_row, int side, int quarter, int lane)
      : first_row(first_row), side(side), quarter(quarter), lane(lane), sum{}, squares{} {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      zero[i] = s.parameters[kParameters[kBn2Weight].offset + quarter * 16 + (lane >> 2) + 8 * i] == 0.f;
  }
  // Once update is done.
  __device__ __forceinline__ void load_scale(const State& s) {
    if constexpr (P::kFp16Terms > 0) acc_scale = a1_scale(s, lane) * s.scales[kConv2Scale];
    if constexpr (P::kScaled) acc_scale = z2_acc_scale(s, lane);
    if constexpr (P::kFp16Terms > 0 || P::kScaled) image_scale[0] = image_scale[1] = acc_scale;
  }

  // For this image from here on, in tf32.
  __device__ __forceinline__ void begin(const State& s, int image) {
    if constexpr (P::kScaled)
#pragma unroll
      for (int i = 0; i < 2; ++i) image_scale[i] = z2_factor(s, acc_scale, image, quarter * 16 + (lane >> 2) + 8 * i);
  }

  // Starts the products; wgmma_wait<0>() ends them.
  __device__ __forceinline__ void start(std::uint32_t a1, std::uint32_t filter) {
    using Operands = WgmmaOperands<P>;
    const std::uint64_t weights = wgmma_operand(filter, Operands::kFilterChunk, 128);
    const std::uint64_t pixels =
        wgmma_operand(a1 + first_row * Operands::kRow + side * 8 * 16, Operands::kPlane, Operands::kRow);
    wgmma_fence();
    constexpr int kFirst = P::kFp16Terms == 2 ? 0 : 2;
#pragma unroll
    for (int product = kFirst; product < 3; ++product)  // fp32: small x big, big x small, big x big, the least first
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap)
#pragma unroll
        for (int step = 0; step < Operands::kSteps; ++step) {
          const bool add = product > kFirst || tap + step > 0;
          const std::uint64_t a = weights + ((product == 0) * Operands::kFilterTerm +
                                             (tap * Operands::kChunks + 2 * step) * Operands::kFilterChunk) /
                                                16;
          const std::uint64_t b = pixels + ((product == 1) * Operands::kA1Term + tap / 3 * Operands::kRow +
                                            tap % 3 * 16 + 2 * step * Operands::kPlane) /
                                               16;
          wgmma<typename Operands::T>(acc, a, b, add);
        }
    wgmma_commit();
  }

  // Sums of z2, and calls z2(q, z) for row q of windows, z[row][i] being columns 2t and 2t + 1 of channel g + 8 i, and
  // pooled_z2(q, top) for rows q and q + 1, top[i] being window t of both.
  template <class Z2, class PooledZ2>
  __device__ __forceinline__ void finish(Z2 z2, PooledZ2 pooled_z2) {
    const bool padding = side == 1 && (lane & 3) == 3;
#pragma unroll
    for (int q = 0; q < kRows / 2; q += 2) {
      Pair first[2][2] = {}, best[2][2] = {};  // [row of windows][channel]
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (q + e >= kRows / 2 || first_row + 2 * (q + e) >= kPool1Side) continue;
        Pair z[2][2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float* from = acc + 4 * (2 * (q + e) + r) + 2 * i;
            const float scale = P::kFp16Terms > 0 || P::kScaled ? image_scale[i] : 1.f;
            z[r][i] = padding ? Pair{} : P::pack(scale * from[0], scale * from[1]);
            const float2 x = P::unpack(z[r][i]);
            sum[i] += x.x + x.y;
            squares[i] = fmaf(x.y, x.y, fmaf(x.x, x.x, squares[i]));
          }
#pragma unroll
        for (int i = 0; i < 2; ++i) first[e][i] = z[0][i], best[e][i] = P::max(z[0][i], z[1][i]);
        z2(q + e, z);
      }
      Pair top[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)  // where the scale is 0 every position ties, and the first one wins
        top[i] = zero[i] ? firsts(first[0][i], first[1][i])
                         : P::max(firsts(best[0][i], best[1][i]), seconds(best[0][i], best[1][i]));
      pooled_z2(q, top);
    }
  }

  // To global memory.
  template <bool kChunks>
  __device__ __forceinline__ void store(const State& s, int image) {
    const auto [g, t] = fragment_place(lane);
    if constexpr (sizeof(T) == 2) {
      // Neighbouring lanes swap, so that each has four channels in one piece: even t the first eight's, odd t the
      // others'.
      const bool odd = t & 1;
      const auto four = [&](const Pair(&pair)[2]) {
        const Pair low = transposed(pair[0]), high = transposed(pair[1]),
                   got = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
        return Four<P>{odd ? got : low, odd ? high : got};
      };
      const int x = side * 8 + g, channel = quarter * 16 + 8 * odd + 4 * (t >> 1);
      T* const z2 = static_cast<T*>(s.z2) +
                    (kChunks  // padding is stored, too; column 16 does not exist, but 0 does
                         ? (std::size_t(image) * (kConv2Channels / 8) + channel / 8) * (kChunkedImage / 2) +
                               first_row * (kChunkedRow / 2) + slot_of((x + 1) % 16) * 8 + channel % 8
                         : (std::size_t(image) * kCells1 + first_row * kPool1Side + x) * kConv2Channels + channel);
      constexpr int kRow = kChunks ? kChunkedRow / 2 : kPool1Side * kConv2Channels;
      const int window_row = first_row / 2 + (g & 1), window_column = side * 4 + (g >> 1);
      T* const pooled_z2 = static_cast<T*>(s.pooled_z2) +
                           (std::size_t(image) * kCells2 + window_row * kPool2Side + window_column) * kConv2Channels +
                           channel;
      finish(
          [&](int q, const Pair(&z)[2][2]) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              const Four<P> values = four(z[r]);
              if (kChunks || x < kPool1Side) values.store(z2 + (2 * q + r) * kRow);
            }
          },
          [&](int q, const Pair(&top)[2]) {
            const Four<P> values = four(top);
            if (q + (g & 1) < kRows / 2 && window_row + q < kPool2Side && window_column < kPool2Side)
              values.store(pooled_z2 + q * kPool2Side * kConv2Channels);
          });
    } else {  // four lanes have four pixels of a chunk: whole sectors
      static_assert(kChunks);
      constexpr int kOfChunk = kChunk<P>, kChunkValues = kChunkedImage / 4, kRow = kChunkedRow / 4;
      const int x = side * 8 + 2 * t, channel = quarter * 16 + g, window_column = side * 4 + t;
      T* const z2 = static_cast<T*>(s.z2) +
                    (std::size_t(image) * (kConv2Channels / kOfChunk) + channel / kOfChunk) * kChunkValues +
                    first_row * kRow + channel % kOfChunk;
      // Padding is stored, too; column 16 does not exist, but 0 does.
      const int left = slot_of(x + 1) * kOfChunk, right = slot_of((x + 2) % 16) * kOfChunk;
      T* const pooled_z2 =
          static_cast<T*>(s.pooled_z2) +
          (std::size_t(image) * kCells2 + first_row / 2 * kPool2Side + window_column) * kConv2Channels + channel;
      finish(
          [&](int q, const Pair(&z)[2][2]) {
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
              for (int i = 0; i < 2; ++i) {
                T* const to = z2 + (2 * q + r) * kRow + i * (8 / kOfChunk * kChunkValues);
                to[left] = z[r][i].x;
                to[right] = z[r][i].y;
              }
          },
          [&](int q, const Pair(&top)[2]) {
            if (window_column >= kPool2Side) return;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              T* const to = pooled_z2 + q * kPool2Side * kConv2Channels + i * 8;
              to[0] = top[i].x;
              if (q + 1 < kRows / 2 && first_row / 2 + q + 1 < kPool2Side) to[kPool2Side * kConv2Channels] = top[i].y;
            }
          });
    }
  }

  // To shared memory, z2 chunked and pooled_z2 behind it, for a whole image in 16 bits.
  __device__ __forceinline__ void store_shared(std::uint32_t output) {
    using Shared = ConvForwardWgmmaShared<P>;
    const int matrix = lane >> 3, column = lane & 7;
    const std::uint32_t z2 = output + (quarter * 2 + (matrix & 1)) * kChunkedImage + (matrix >> 1) * kChunkedRow +
                             slot_of((side * 8 + column + 1) % 16) * 16;
    const int cell = (column & 1) * kPool2Side + side * 4 + (column >> 1);
    const std::uint32_t pooled_z2 = output + Shared::kZ2Bytes + (quarter * 2 + (matrix & 1)) * 16;
    finish(
        [&](int q, const Pair(&z)[2][2]) {
          store_columns_x4(z2 + 2 * q * kChunkedRow, {z[0][0], z[0][1], z[1][0], z[1][1]});
        },
        [&](int q, const Pair(&top)[2]) {
          const bool wanted = side * 4 + (column >> 1) < kPool2Side && q + (column & 1) < kPool2Side;
          store_columns_x2(pooled_z2 + (wanted ? cell + q * kPool2Side : kCells2) * Shared::kPooledZ2Cell, top);
        });
  }

  // Sums over the warpgroup's pixels: warp_sums[][channel of the quarter].
  __device__ __forceinline__ void add_columns(float (&warp_sums)[2][16]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float total[2] = {sum[i], squares[i]};
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        total[which] += __shfl_xor_sync(0xffffffffu, total[which], 1);
        total[which] += __shfl_xor_sync(0xffffffffu, total[which], 2);
        if ((lane & 3) == 0) warp_sums[which][(lane >> 2) + 8 * i] = total[which];
      }
    }
  }
};

#endif

}  // namespace mnist::fused
