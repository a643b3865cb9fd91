// F1 for bf16 and tf32 on Hopper: as forward1.cuh, with conv2, and for large batches conv1, by wgmma.
//
// conv2 is transposed: a product's 64 rows are all of conv2's channels, its columns are pixels: the left or the right
// half of an image's columns, 8 a row (of the right half's the last two are padding and mean nothing), so that columns
// 2t, 2t + 1 of two rows, which are a pooling window, lie in the registers of one lane.
//
// a1 in shared memory: [chunk of channels][16 rows][16 columns][16 bytes], with a border of zeros: see wgmma.cuh.
// Filter: [tap][chunk][64 channels][16 bytes].
#pragma once

#include <algorithm>

#include "kernels/device/wgmma.cuh"
#include "kernels/fused/forward1.cuh"

namespace mnist::fused {

template <class P>
struct WgmmaOperands {
  static constexpr int kChunks = kConv1Channels / kChunk<P>, kSteps = kChunks / 2;
  // Chunks lie apart so that those of a pixel (bf16: of two) are in different banks. Padding columns may read past the
  // end of a chunk, and past that of the last one.
  static constexpr int kPlane = kSlotsOfImage * 16 + (sizeof(typename P::T) == 2 ? 32 : 16);
  static constexpr int kRow = 16 * 16;
  static constexpr int kA1Bytes = kChunks * kPlane;
  static constexpr int kFilterChunk = kConv2Channels * 16;
  static constexpr int kFilterBytes = kTaps * kChunks * kFilterChunk;
};

// conv1's operand by wgmma: the 4 x 4 pixels that a pooling window sees, [upper or lower half of them][row of windows]
// [plane][slot][16 bytes].
inline constexpr int kPatchRows = 2 * kPool1Side;  // of a plane's 8 slots
inline constexpr int kPatchHalf = kPatchRows * 8 * 16, kPatchBytes = 2 * kPatchHalf;

// Whether F1 leaves a1 and z2 chunked for B2: configure() sets State::b2_wgmma for just these.
template <class P, bool kWholeImages>
inline constexpr bool kChunked = kWholeImages && sizeof(typename P::T) == 2;

template <class P>
struct Forward1WgmmaShared {
  using Operands = WgmmaOperands<P>;
  // Of a stage: a1 and its routing, in the order of State::route1.
  static constexpr int kRoute = (Operands::kA1Bytes + 127) / 128 * 128, kStage = kRoute + kRoute1Words * 4;
  // Small batches.
  static constexpr int kFilter = kStage, kImage = kFilter + Operands::kFilterBytes;
  static constexpr int kWarpSums = kConvWarps * 2 * 16 * 4;  // where the image was
  static constexpr int kBytes = kImage + std::max(kImageBytes, kWarpSums);
  // Large batches: two stages, each with a copy of a1 as B2 wants it; two patches; and for each warpgroup of the second
  // role an image of z2 and e2 on its way out, with a cell for what is not wanted.
  static constexpr bool kCopies = kChunked<P, true>;
  static constexpr int kCopyBytes = kCopies ? Operands::kChunks * kChunkedImage : 0, kRolesStage = kStage + kCopyBytes;
  static constexpr int kRolesFilter = 2 * kRolesStage, kRolesImage = kRolesFilter + Operands::kFilterBytes;
  static constexpr int kPatches = kRolesImage + kImageBytes, kOutput = kPatches + 2 * kPatchBytes;
  static constexpr int kZ2Bytes = kConv2Channels / 8 * kChunkedImage, kE2Cell = kConv2Channels * 2;
  static constexpr int kOutputBytes = kCopies ? kZ2Bytes + (kCells2 + 1) * kE2Cell : 0;
  static constexpr int kRolesBytes = kOutput + 2 * kOutputBytes;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ __nv_bfloat162 firsts(__nv_bfloat162 a, __nv_bfloat162 b) { return __lows2bfloat162(a, b); }
__device__ __forceinline__ __nv_bfloat162 seconds(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __highs2bfloat162(a, b);
}
__device__ __forceinline__ float2 firsts(float2 a, float2 b) { return make_float2(a.x, b.x); }
__device__ __forceinline__ float2 seconds(float2 a, float2 b) { return make_float2(a.y, b.y); }

// Lane (g, t) has columns 2t and 2t + 1 of row g of an 8x8 matrix, and gets rows 2t and 2t + 1 of column g.
__device__ __forceinline__ __nv_bfloat162 transposed(__nv_bfloat162 pair) {
  const std::uint32_t turned = transpose_8x8(*reinterpret_cast<const std::uint32_t*>(&pair));
  return *reinterpret_cast<const __nv_bfloat162*>(&turned);
}

// Stores 8x8 matrices of 16-bit values, held as transposed() has them, column by column: lane 8 m + c says where column
// c of matrix m goes.
__device__ __forceinline__ void store_columns_x4(std::uint32_t to, const __nv_bfloat162 (&matrices)[4]) {
  const auto bits = [&](int i) { return *reinterpret_cast<const std::uint32_t*>(&matrices[i]); };
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(bits(0)),
               "r"(bits(1)), "r"(bits(2)), "r"(bits(3))
               : "memory");
}
__device__ __forceinline__ void store_columns_x2(std::uint32_t to, const __nv_bfloat162 (&matrices)[2]) {
  const auto bits = [&](int i) { return *reinterpret_cast<const std::uint32_t*>(&matrices[i]); };
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(to), "r"(bits(0)), "r"(bits(1))
               : "memory");
}

// As store_a1(): row `row` of a padded image.
template <class P>
__device__ __forceinline__ void store_a1_chunks(unsigned char* row, int channel0, int plane, const float (&a)[4],
                                                int lane) {
  constexpr int kPlane = WgmmaOperands<P>::kPlane;
  const int g = lane >> 2, t = lane & 3;
  if constexpr (sizeof(typename P::T) == 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const __nv_bfloat162 pair = transposed(P::pack(a[2 * half], a[2 * half + 1]));
      if (g != (plane == 0 ? 0 : 7))
        *reinterpret_cast<__nv_bfloat162*>(row + (channel0 / 8 + half) * kPlane + (2 * g + plane) * 16 + t * 4) = pair;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int slot = 2 * t + (i & 1);
      if (slot != (plane == 0 ? 0 : 7))
        *reinterpret_cast<float*>(row + (channel0 / 4 + 2 * (i >> 1) + (g >> 2)) * kPlane + (2 * slot + plane) * 16 +
                                  (g & 3) * 4) = P::store(a[i]);
    }
  }
}

// a1 and its routing for B2, in whole 16-byte chunks: piece `piece` of the rows. (Who makes a1 does not store it to
// global memory at once: wgmma_publish() would wait for that.)
template <class P, int kThreads, int kPieces>
__device__ __forceinline__ void store_stage(const State& s, const unsigned char* stage, int image, int tid, int piece) {
  using Operands = WgmmaOperands<P>;
  constexpr int kRoutes = kRoute1Words / 4 / kPieces;
  if constexpr (kChunked<P, kPieces == 1>) {
    constexpr int kOfChunk = kChunkedImage / 16, kCount = Operands::kChunks * kOfChunk;
#pragma unroll 2  // registers are scarce
    for (int i = tid; i < kCount; i += kThreads) {
      const int chunk = i / kOfChunk, row = i % kOfChunk / 16, slot = i % 16, column = 2 * (slot % 8) + slot / 8;
      static_cast<uint4*>(s.a1)[std::size_t(image) * kCount + i] =
          *reinterpret_cast<const uint4*>(stage + chunk * Operands::kPlane + (row + 1) * Operands::kRow + column * 16);
    }
  } else {
    constexpr int kChunks = Operands::kChunks, kCount = kCells1 * kChunks / kPieces;
#pragma unroll 2
    for (int i = piece * kCount + tid; i < (piece + 1) * kCount; i += kThreads) {
      const int pixel = i / kChunks, at = (pixel / kPool1Side + 1) * 16 + pixel % kPool1Side + 1;
      static_cast<uint4*>(s.a1)[std::size_t(image) * kCells1 * kChunks + i] =
          *reinterpret_cast<const uint4*>(stage + i % kChunks * Operands::kPlane + at * 16);
    }
  }
#pragma unroll 2
  for (int i = piece * kRoutes + tid; i < (piece + 1) * kRoutes; i += kThreads)
    reinterpret_cast<uint4*>(s.route1)[std::size_t(image) * (kRoute1Words / 4) + i] =
        reinterpret_cast<const uint4*>(stage + Forward1WgmmaShared<P>::kRoute)[i];
}

// The filter by the copy engine; only one thread calls this. `arrived` is an mbarrier of one arrival.
template <class P>
__device__ __forceinline__ void copy_filter(unsigned char* shared, const void* packed, std::uint64_t* arrived) {
  mbarrier_expect(arrived, WgmmaOperands<P>::kFilterBytes);
  copy_bulk(shared_address(shared), packed, WgmmaOperands<P>::kFilterBytes, arrived);
}

// conv1 by wgmma: rows of a product are channels, two positions of the pooling window each, columns are the slots of
// planes. So warp w of a warpgroup makes channels 8w .., and lane (g, t) has all positions of slots 2t and 2t + 1 of
// channel g. (mma.sync would come to stand in line between the products of conv2.)
template <class P>
struct Conv1Columns {
  static constexpr int kRows = 7;  // patch rows at a time
  std::uint32_t weight[2][4];      // A operands: of positions 0 and 1, and of 2 and 3
  float scale, shift;
  int warp, lane;

  __device__ __forceinline__ Conv1Columns(const State& s, int warp, int lane) : warp(warp), lane(lane) {
    const int t = lane & 3, channel = 8 * warp + (lane >> 2);
    const auto* words = static_cast<const std::uint32_t*>(s.conv1);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        weight[pair][r] = words[((2 * pair + (r & 1)) * kConv1Channels + channel) * 8 + t + (r >> 1) * 4];
    scale = s.bn1[channel] * s.bn1[64 + channel];
    shift = s.bn1[32 + channel];
  }

  __device__ __forceinline__ void start(float (&acc)[2][4 * kRows], std::uint32_t patches, int row) const {
    using namespace kernels::device;
    const std::uint64_t pixels = wgmma_operand(patches + row * 128, kPatchHalf, 128);
    wgmma_fence();
#pragma unroll
    for (int pair = 0; pair < 2; ++pair)
      if constexpr (std::is_same_v<typename P::Pixel, __half>)
        wgmma_fp16(acc[pair], weight[pair], pixels);
      else
        wgmma_bf16(acc[pair], weight[pair], pixels);
    wgmma_commit();
  }

  // bn1, relu and pooling of patch rows kRow .. of those that lie from `row` on; `row` is even. To a stage.
  template <int kRow>
  __device__ __forceinline__ void finish(const float (&acc)[2][4 * kRows], unsigned char* stage, int row) const {
    using Shared = Forward1WgmmaShared<P>;
    using Operands = WgmmaOperands<P>;
    const int g = lane >> 2, t = lane & 3;
    typename P::Pair a[kRows];
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const int plane = (kRow + n) & 1, cy = row / 2 + (kRow + n) / 2;
      float cell[2];
      unsigned route = 0;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float z[4] = {acc[0][4 * n + e], acc[0][4 * n + 2 + e], acc[1][4 * n + e], acc[1][4 * n + 2 + e]};
        const float best = fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3]));
        unsigned where = 0x10u << 8 * e;  // the first of equals wins
        where = z[2] == best ? 0x20u << 8 * e : where;
        where = z[1] == best ? 0x40u << 8 * e : where;
        where = z[0] == best ? 0x80u << 8 * e : where;
        const float value = fmaf(scale, best, shift);
        const bool dead = value <= 0.f || (plane == 0 ? t == 0 && e == 0 : t == 3 && e == 1);  // not NaN; padding
        cell[e] = dead ? 0.f : value;
        route |= dead ? 0u : where;
      }
      a[n] = P::pack(cell[0], cell[1]);
      // Word (cy, half of the channels, plane, lane), of which this is the lower or the upper half.
      reinterpret_cast<std::uint16_t*>(
          stage + Shared::kRoute)[(((cy * 2 + (warp >> 1)) * 2 + plane) * 32 + lane) * 2 + (warp & 1)] =
          std::uint16_t(route);
      if constexpr (sizeof(typename P::T) == 4)  // zeros go where zeros are
#pragma unroll
        for (int e = 0; e < 2; ++e)
          *reinterpret_cast<float*>(stage + (cy + 1) * Operands::kRow + plane * 16 + (2 * t + e) * 32 +
                                    (2 * warp + (g >> 2)) * Operands::kPlane + (g & 3) * 4) = e == 0 ? a[n].x : a[n].y;
    }
    if constexpr (sizeof(typename P::T) == 2)
#pragma unroll
      for (int n = 0; n < kRows; n += 4) {
        __nv_bfloat162 matrices[4];
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          matrices[m] = a[n + m < kRows ? n + m : kRows - 1];  // the last one may come twice
        }
        const int slot = lane & 7, patch_row = row + kRow + min(n + (lane >> 3), kRows - 1);
        const int column = 2 * slot + (patch_row & 1);
        store_columns_x4(
            shared_address(stage) + warp * Operands::kPlane + (patch_row / 2 + 1) * Operands::kRow + column * 16,
            matrices);
        store_columns_x4(shared_address(stage) + Shared::kStage + warp * kChunkedImage + patch_row * 128 + slot * 16,
                         matrices);
      }
  }
};

// The patches of an image, by kRoleThreads threads. Slots that are padding repeat a neighbour.
__device__ __forceinline__ void gather_patches(unsigned char* patches, const unsigned char* image, int tid) {
#pragma unroll
  for (int i = tid; i < 2 * kPatchRows * 8; i += kRoleThreads) {
    const int lower = i / (kPatchRows * 8), row = i / 8 % kPatchRows, slot = i % 8, cy = row / 2, plane = row % 2;
    const int cx = plane == 0 ? (slot == 0 ? 1 : 2 * slot - 1) : (slot == 7 ? 12 : 2 * slot);
    const auto* from =
        reinterpret_cast<const std::uint32_t*>(image + ((2 * cy + 2 * lower) * kImagePitch + 2 * cx) * 2);
    reinterpret_cast<uint4*>(patches)[i] =
        make_uint4(from[0], from[1], from[kImagePitch / 2], from[kImagePitch / 2 + 1]);
  }
}

// What a warpgroup makes of conv2 at a time: kRows rows from first_row on (those past the image's end mean nothing) of
// 8 columns.
template <class P, int kRows>
struct Conv2Columns {
  using T = typename P::T;
  using Pair = typename P::Pair;
  int first_row, half, quarter, lane;  // half: of the columns; quarter: of the channels, a warp each
  bool zero[2];                        // whether bn2's scale is 0 for the channels of rows g and g + 8
  float sum[2], squares[2];            // by channel, of all pixels so far
  float acc[4 * kRows];                // see wgmma_bf16()

  __device__ __forceinline__ Conv2Columns(const State& s, int first_row, int half, int quarter, int lane)
      : first_row(first_row), half(half), quarter(quarter), lane(lane), sum{}, squares{} {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      zero[i] = s.parameters[kParameters[kBn2Weight].offset + quarter * 16 + (lane >> 2) + 8 * i] == 0.f;
  }

  // Starts the products; wgmma_wait<0>() ends them.
  __device__ __forceinline__ void start(std::uint32_t a1, std::uint32_t filter) {
    using namespace kernels::device;
    using Operands = WgmmaOperands<P>;
    const std::uint64_t weights = wgmma_operand(filter, Operands::kFilterChunk, 128);
    const std::uint64_t pixels =
        wgmma_operand(a1 + first_row * Operands::kRow + half * 8 * 16, Operands::kPlane, Operands::kRow);
    wgmma_fence();
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap)
#pragma unroll
      for (int step = 0; step < Operands::kSteps; ++step) {
        const std::uint64_t a = weights + (tap * Operands::kChunks + 2 * step) * Operands::kFilterChunk / 16;
        const std::uint64_t b = pixels + (tap / 3 * Operands::kRow + tap % 3 * 16 + 2 * step * Operands::kPlane) / 16;
        if constexpr (sizeof(typename P::T) == 2)
          wgmma_bf16(acc, a, b, tap + step > 0);
        else
          wgmma_tf32(acc, a, b, tap + step > 0);
      }
    wgmma_commit();
  }

  // Sums of z2, and calls z2(q, z) for row q of windows, z[row][i] being columns 2t and 2t + 1 of channel g + 8 i, and
  // e2(q, top) for rows q and q + 1, top[i] being window t of both.
  template <class Z2, class E2>
  __device__ __forceinline__ void finish(Z2 z2, E2 e2) {
    const bool padding = half == 1 && (lane & 3) == 3;
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
            z[r][i] = padding ? Pair{} : P::pack(from[0], from[1]);
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
      e2(q, top);
    }
  }

  // To global memory.
  template <bool kChunks>
  __device__ __forceinline__ void store(const State& s, int image) {
    const int g = lane >> 2, t = lane & 3;
    if constexpr (sizeof(T) == 2) {
      // Neighbouring lanes swap, so that each has four channels in one piece: even t the first eight's, odd t the
      // others'.
      const bool odd = t & 1;
      const auto four = [&](const Pair(&pair)[2]) {
        const Pair low = transposed(pair[0]), high = transposed(pair[1]),
                   got = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
        return Four<P>{odd ? got : low, odd ? high : got};
      };
      const int x = half * 8 + g, channel = quarter * 16 + 8 * odd + 4 * (t >> 1);
      T* const z2 = static_cast<T*>(s.z2) +
                    (kChunks  // padding is stored, too; column 16 does not exist, but 0 does
                         ? (std::size_t(image) * (kConv2Channels / 8) + channel / 8) * (kChunkedImage / 2) +
                               first_row * (kChunkedRow / 2) + slot_of((x + 1) % 16) * 8 + channel % 8
                         : (std::size_t(image) * kCells1 + first_row * kPool1Side + x) * kConv2Channels + channel);
      constexpr int kRow = kChunks ? kChunkedRow / 2 : kPool1Side * kConv2Channels;
      const int window_row = first_row / 2 + (g & 1), window_column = half * 4 + (g >> 1);
      T* const e2 = static_cast<T*>(s.e2) +
                    (std::size_t(image) * kCells2 + window_row * kPool2Side + window_column) * kConv2Channels + channel;
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
              values.store(e2 + q * kPool2Side * kConv2Channels);
          });
    } else {  // eight lanes have eight channels of a pixel: whole sectors
      const int x = half * 8 + 2 * t, channel = quarter * 16 + g, window_column = half * 4 + t;
      T* const z2 = static_cast<T*>(s.z2) +
                    (std::size_t(image) * kCells1 + first_row * kPool1Side + x) * kConv2Channels + channel;
      T* const e2 = static_cast<T*>(s.e2) +
                    (std::size_t(image) * kCells2 + first_row / 2 * kPool2Side + window_column) * kConv2Channels +
                    channel;
      finish(
          [&](int q, const Pair(&z)[2][2]) {
            if (x >= kPool1Side) return;
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
              for (int i = 0; i < 2; ++i) {
                T* const to = z2 + (2 * q + r) * kPool1Side * kConv2Channels + i * 8;
                to[0] = z[r][i].x;
                to[kConv2Channels] = z[r][i].y;
              }
          },
          [&](int q, const Pair(&top)[2]) {
            if (window_column >= kPool2Side) return;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              T* const to = e2 + q * kPool2Side * kConv2Channels + i * 8;
              to[0] = top[i].x;
              if (q + 1 < kRows / 2 && first_row / 2 + q + 1 < kPool2Side) to[kPool2Side * kConv2Channels] = top[i].y;
            }
          });
    }
  }

  // To shared memory, z2 chunked and e2 behind it, for a whole image in bf16.
  __device__ __forceinline__ void stage(std::uint32_t output) {
    using Shared = Forward1WgmmaShared<P>;
    const int matrix = lane >> 3, column = lane & 7;
    const std::uint32_t z2 = output + (quarter * 2 + (matrix & 1)) * kChunkedImage + (matrix >> 1) * kChunkedRow +
                             slot_of((half * 8 + column + 1) % 16) * 16;
    const int cell = (column & 1) * kPool2Side + half * 4 + (column >> 1);
    const std::uint32_t e2 = output + Shared::kZ2Bytes + (quarter * 2 + (matrix & 1)) * 16;
    finish(
        [&](int q, const Pair(&z)[2][2]) {
          store_columns_x4(z2 + 2 * q * kChunkedRow, {z[0][0], z[0][1], z[1][0], z[1][1]});
        },
        [&](int q, const Pair(&top)[2]) {
          const bool wanted = half * 4 + (column >> 1) < kPool2Side && q + (column & 1) < kPool2Side;
          store_columns_x2(e2 + (wanted ? cell + q * kPool2Side : kCells2) * Shared::kE2Cell, top);
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

// A block's sums of z2, warpgroup by warpgroup.
template <int kWarpgroups>
__device__ __forceinline__ void store_z2_sums(const State& s, const float (*warp_sums)[2][16], int tid) {
  if (tid >= 2 * kConv2Channels) return;
  const int which = tid / kConv2Channels, channel = tid % kConv2Channels;
  float total = 0;
#pragma unroll
  for (int k = 0; k < kWarpgroups; ++k) total += warp_sums[4 * k + channel / 16][which][channel % 16];
  s.z2_sums[std::size_t(blockIdx.x) * 2 * kConv2Channels + tid] = total;
}

#endif

// Small batches: as forward1_kernel(). A warpgroup makes 8 rows (or the last 6) of half of the columns.
template <class P, int kHalves>
__global__ void __launch_bounds__(kConvThreads, 1) forward1_wgmma_kernel(State s, int slot) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using namespace kernels::device;
  using Shared = Forward1WgmmaShared<P>;
  using Operands = WgmmaOperands<P>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ std::uint64_t arrived;
  const int tid = threadIdx.x, lane = tid & 31, warp = uniform(tid >> 5);
  const int image = kHalves == 1 ? blockIdx.x / 2 : blockIdx.x, half = kHalves == 1 ? blockIdx.x & 1 : 0;
  unsigned char *const a1 = shared, *const filter = shared + Shared::kFilter, *const pixels = shared + Shared::kImage;
  auto* const routes = reinterpret_cast<std::uint32_t*>(shared + Shared::kRoute);

  std::uint32_t word = 0;
  if (tid < kImageWords) {
    const auto index = s.samples.order[std::size_t(slot) * s.batch + image];
    word = reinterpret_cast<const std::uint32_t*>(s.samples.images + std::size_t(index) * kImagePixels)[tid];
  }
  Conv2Columns<P, 8> conv2(s, kHalves == 1 ? 8 * half : warp / 8 * 8, warp >> 2 & 1, warp & 3, lane);
  if (tid == 0) mbarrier_init(&arrived, 1);
  for (int i = tid; i < Operands::kA1Bytes / 16; i += kConvThreads)
    reinterpret_cast<uint4*>(a1)[i] = make_uint4(0, 0, 0, 0);
  clear_images<P>(pixels, 1);
  __syncthreads();
  if (tid < kImageWords) store_image_word<P>(pixels, tid, word);

  wait_for_predecessor();  // U: filters and bn1
  if (tid == 0) copy_filter<P>(filter, s.conv2_forward, &arrived);
  Conv1<P> conv1;
  const int channel0 = (warp & 1) * 16;
  conv1.load(s.conv1, s.bn1, channel0, lane);
  __syncthreads();
  const int first_row = 7 * half, rows = kHalves == 2 ? kPool1Side : half == 0 ? 9 : 7;
#pragma unroll 1
  for (int i = warp >> 1; i < 2 * rows; i += kConvWarps / 2) {
    const int cy = first_row + i / 2, plane = i & 1;
    conv1.half_row(shared_address(pixels), cy, plane, lane, [&](const float (&a)[4], std::uint32_t route) {
      store_a1_chunks<P>(a1 + (cy + 1) * Operands::kRow, channel0, plane, a, lane);
      routes[(cy * 2 + (warp & 1)) * 64 + plane * 32 + lane] = route;
    });
  }
  wgmma_publish();
  __syncthreads();

  auto* warp_sums = reinterpret_cast<float (*)[2][16]>(pixels);
  if (kHalves == 2 || warp < kRoleThreads / 32) {
    mbarrier_wait(&arrived, 0);
    conv2.start(shared_address(a1), shared_address(filter));
    if (kHalves == 2) store_stage<P, kConvThreads, 1>(s, shared, image, tid, 0);
    wgmma_wait<0>();
    wgmma_results(conv2.acc);
    conv2.template store<kChunked<P, kHalves == 2>>(s, image);
    conv2.add_columns(warp_sums[warp]);
  } else {
    store_stage<P, kRoleThreads, 2>(s, shared, image, tid - kRoleThreads, half);
  }
  __syncthreads();
  store_z2_sums<2 * kHalves>(s, warp_sums, tid);
#endif
}

// Large batches: as forward1_roles_kernel(). The first role makes an image's patches while conv1's products of the one
// before run. The second role's two warpgroups take turns, and an image's a1 leaves while conv2's products of it run.
template <class P>
__global__ void __launch_bounds__(kConvThreads, 1) forward1_wgmma_roles_kernel(State s, int slot) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using namespace kernels::device;
  using Shared = Forward1WgmmaShared<P>;
  // Barriers; where there are two they are neighbours.
  enum { kRole = 1, kFull = 2, kFree = 4, kSecondRole = 6, kEnd = 7, kOutput = 8 };
  constexpr int kGroupThreads = 128,
                kTurnThreads = kRoleThreads + kGroupThreads;    // the first role and a warpgroup of the second
  constexpr int kFirstRegisters = 104, kSecondRegisters = 152;  // 256 together
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ std::uint64_t arrived;
  const int lane = threadIdx.x & 31, tid = threadIdx.x % kRoleThreads, warp = uniform(tid >> 5);
  const bool first_role = uniform(threadIdx.x / kRoleThreads) == 0;
  unsigned char *const filter = shared + Shared::kRolesFilter, *const pixels = shared + Shared::kRolesImage,
                       *const patches = shared + Shared::kPatches;

  // An image: a word a thread, fetched ahead.
  std::uint32_t word = 0;
  const auto fetch = [&](int image) {
    if (first_role && tid < kImageWords && image < s.batch) {
      const auto index = s.samples.order[std::size_t(slot) * s.batch + image];
      word = reinterpret_cast<const std::uint32_t*>(s.samples.images + std::size_t(index) * kImagePixels)[tid];
    }
  };
  fetch(blockIdx.x);
  if (threadIdx.x == 0) mbarrier_init(&arrived, 1);
  for (int i = threadIdx.x; i < 2 * Shared::kRolesStage / 16; i += kConvThreads)
    reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
  clear_images<P>(pixels, 1);
  wgmma_publish();  // zeros around a1, by both roles
  __syncthreads();
  const auto store_image = [&](int next) {
    if (tid < kImageWords) store_image_word<P>(pixels, tid, word);
    fetch(next);
  };
  if (first_role) {
    store_image(blockIdx.x + gridDim.x);
    barrier_sync<kRoleThreads>(kRole);
    gather_patches(patches, pixels, tid);
    wgmma_publish();
  }

  wait_for_predecessor();                                        // U: filters and bn1
  auto* warp_sums = reinterpret_cast<float (*)[2][16]>(pixels);  // of the second role, at the end; reach into `patches`
  if (first_role) {
    give_registers<kFirstRegisters>();
    const Conv1Columns<P> conv1(s, warp & 3, lane);
    const int first_row = warp / 4 * kPool1Side;  // of patches
    int stage = 0;
    for (int image = blockIdx.x; image < s.batch; image += gridDim.x, stage ^= 1) {
      unsigned char* const here = shared + stage * Shared::kRolesStage;
      const std::uint32_t own_patches = shared_address(patches + stage * kPatchBytes);
      barrier_sync<kRoleThreads>(kRole);  // the patches are complete and nobody reads the image any more
      store_image(image + 2 * gridDim.x);
      if (image >= 2 * int(gridDim.x)) barrier_sync<kTurnThreads>(kFree + stage);
      float acc[2][4 * Conv1Columns<P>::kRows];
      conv1.start(acc, own_patches, first_row);
      barrier_sync<kRoleThreads>(kRole);
      int thread = tid;  // opaque to the compiler, which would keep all addresses, and spill them
      asm volatile("" : "+r"(thread));
      gather_patches(patches + (stage ^ 1) * kPatchBytes, pixels, thread);
      wgmma_wait<0>();
      wgmma_results(acc[0]), wgmma_results(acc[1]);
      conv1.template finish<0>(acc, here, first_row);
      conv1.start(acc, own_patches, first_row + Conv1Columns<P>::kRows);
      wgmma_wait<0>();
      wgmma_results(acc[0]), wgmma_results(acc[1]);
      conv1.template finish<Conv1Columns<P>::kRows>(acc, here, first_row);
      wgmma_publish();
      barrier_arrive<kTurnThreads>(kFull + stage);
    }
    barrier_arrive<kConvThreads>(kEnd);  // nobody reads the image or patches any more
  } else {
    // Its warpgroups take turns, an image each, so that one's products run while the other stores.
    take_registers<kSecondRegisters>();
    if (tid == 0) copy_filter<P>(filter, s.conv2_forward, &arrived);
    const int group = warp >> 2;
    Conv2Columns<P, kPool1Side> left(s, 0, 0, warp & 3, lane), right(s, 0, 1, warp & 3, lane);
    mbarrier_wait(&arrived, 0);
    unsigned char* const stage = shared + group * Shared::kRolesStage;
    const int thread = tid % kGroupThreads;
    const std::uint32_t output = shared_address(shared) + Shared::kOutput + group * Shared::kOutputBytes;
    for (int image = blockIdx.x + group * gridDim.x; image < s.batch; image += 2 * gridDim.x) {
      const auto part_of = [&](void* tensor, int bytes) {
        return static_cast<char*>(tensor) + std::size_t(image) * bytes;
      };
      barrier_sync<kTurnThreads>(kFull + group);
      if (Shared::kCopies && thread == 0) {
        store_bulk(part_of(s.a1, Shared::kCopyBytes), shared_address(stage) + Shared::kStage, Shared::kCopyBytes);
        store_bulk(part_of(s.route1, kRoute1Words * 4), shared_address(stage) + Shared::kRoute, kRoute1Words * 4);
        store_bulk_commit();
      }
      left.start(shared_address(stage), shared_address(filter));
      right.start(shared_address(stage), shared_address(filter));
      if constexpr (!Shared::kCopies) store_stage<P, kGroupThreads, 1>(s, stage, image, thread, 0);
      wgmma_wait<0>();
      if (Shared::kCopies && thread == 0) store_bulk_wait_read();  // of this stage, and of the output before
      if (image + 2 * int(gridDim.x) < s.batch) barrier_arrive<kTurnThreads>(kFree + group);
      wgmma_results(left.acc);
      wgmma_results(right.acc);
      if constexpr (Shared::kCopies) {
        barrier_sync<kGroupThreads>(kOutput + group);
        left.stage(output);
        right.stage(output);
        wgmma_publish();
        barrier_sync<kGroupThreads>(kOutput + group);
        if (thread == 0) {
          store_bulk(part_of(s.z2, Shared::kZ2Bytes), output, Shared::kZ2Bytes);
          store_bulk(part_of(s.e2, kCells2 * Shared::kE2Cell), output + Shared::kZ2Bytes, kCells2 * Shared::kE2Cell);
          store_bulk_commit();
        }
      } else {
        left.template store<false>(s, image);
        right.template store<false>(s, image);
      }
    }
    if (Shared::kCopies && thread == 0) store_bulk_wait();
    barrier_sync<kConvThreads>(kEnd);
    left.add_columns(warp_sums[8 * group + (warp & 3)]);
    right.add_columns(warp_sums[8 * group + 4 + (warp & 3)]);
    barrier_sync<kRoleThreads>(kSecondRole);
    store_z2_sums<4>(s, warp_sums, tid);
  }
#endif
}

}  // namespace mnist::fused
