// The products of conv_forward by wgmma: conv1 with bn1, relu and pooling, conv2 with z2's window maxima and channel
// sums; and how their operands lie in shared memory. No barriers here: wgmma.cuh has them.
#pragma once

#include "kernels/device/wgmma.cuh"
#include "kernels/fused/conv_forward/mma_products.cuh"

namespace mnist::fused {

// conv2's operands in shared memory: a1 is [chunk of channels][16 rows][16 columns][16 bytes] with a border of zeros,
// the filter [tap][chunk][64 channels][16 bytes] (see device/wgmma.cuh), in fp32 two of each (see scales.cuh).
template <class P>
struct WgmmaOperands {
  using T = typename Operand<P>::T;
  static constexpr int kFp16Terms = kTerms<P>;
  static constexpr int kOfChunk = 8;  // values, of 16 bits
  static constexpr int kChunks = kConv1Channels / kOfChunk, kSteps = kChunks / 2;
  // Chunks lie apart so that those of two pixels are in different banks. Padding columns may read past the end of a
  // chunk, and past that of the last one.
  static constexpr int kPlane = kSlotsOfImage * 16 + 32, kRow = 16 * 16;
  static constexpr int kA1Term = kChunks * kPlane, kA1Bytes = kFp16Terms * kA1Term;
  static constexpr int kFilterChunk = kConv2Channels * 16;
  static constexpr int kFilterTerm = kTaps * kChunks * kFilterChunk, kFilterBytes = kFp16Terms * kFilterTerm;
};

// conv1's operand: the 4 x 4 pixels of each pooling window, [upper or lower half of them][patch row: row of windows,
// plane][slot][16 bytes].
inline constexpr int kPatchRows = 2 * kPool1Side, kPatchHalf = kPatchRows * 8 * 16, kPatchBytes = 2 * kPatchHalf;

template <class P>
struct ConvForwardWgmmaShared;  // where things lie in shared memory: wgmma.cuh
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ __nv_bfloat162 firsts(__nv_bfloat162 a, __nv_bfloat162 b) { return __lows2bfloat162(a, b); }
__device__ __forceinline__ __nv_bfloat162 seconds(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __highs2bfloat162(a, b);
}
__device__ __forceinline__ __half2 firsts(__half2 a, __half2 b) { return __lows2half2(a, b); }
__device__ __forceinline__ __half2 seconds(__half2 a, __half2 b) { return __highs2half2(a, b); }
__device__ __forceinline__ float2 firsts(float2 a, float2 b) { return make_float2(a.x, b.x); }
__device__ __forceinline__ float2 seconds(float2 a, float2 b) { return make_float2(a.y, b.y); }

// ---- conv1 ----------------------------------------------------------------------------------------------------------

// The place for store_a1() in a row of an image in chunks.
template <class P>
struct A1ChunkPlace {
  using Operands = WgmmaOperands<P>;
  static constexpr int kTerm = Operands::kA1Term;
  unsigned char* row;
  int plane;
  __device__ __forceinline__ unsigned char* operator()(int slot, unsigned channel) const {
    return row + channel / Operands::kOfChunk * Operands::kPlane + (2 * slot + plane) * 16 +
           channel % Operands::kOfChunk * 2;
  }
};

// conv1 by wgmma: rows of a product are channels, two positions of the pooling window each, columns are the slots of
// planes. So warp w of a warpgroup makes channels 8w .., and lane (g, t) has all positions of slots 2t and 2t + 1 of
// channel 8w + g. (Products by mma.sync would wait in line between those of conv2.)
//
// In bf16 the sums are fp16, as in Conv1. In the other precisions they are float, and fewer rows come at a time.
template <class P>
struct Conv1Columns {
  static constexpr int kTerms = P::kConv1Terms;
  static constexpr bool kPairs = kTerms == 1;
  static constexpr int kRows = kPairs ? kPool1Side : P::kScaled ? 4 : kPool1Side / 2;  // patch rows at a time
  using Pair = typename Operand<P>::Pair;
  using Sums = std::conditional_t<kPairs, std::uint32_t[2 * kRows], float[4 * kRows]>;  // of positions 0, 1 or 2, 3
  std::uint32_t weight[kTerms][2][4];  // A operands: of a term, of positions 0 and 1 or of 2 and 3
  float scale, shift;
  int warp, lane;

  __device__ __forceinline__ Conv1Columns(const State& s, int warp, int lane) : warp(warp), lane(lane) {
    const auto [g, t] = fragment_place(lane);
    const int channel = 8 * warp + g;
    const auto* words = static_cast<const std::uint32_t*>(s.conv1);
#pragma unroll
    for (int i = 0; i < 2 * kTerms; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        weight[i / 2][i % 2][r] = words[((2 * i + (r & 1)) * kConv1Channels + channel) * 8 + t + (r >> 1) * 4];
    scale = s.bn1.scale(channel) * s.bn1.filter_scale(channel);
    shift = s.bn1.shift(channel);
    if constexpr (kHasScales<P>) {
      const float inverse_scale = inverse_of(a1_scale(s, lane));
      scale *= inverse_scale, shift *= inverse_scale;
    }
  }

  __device__ __forceinline__ void start(Sums (&acc)[2], std::uint32_t patches, int row) const {
    const std::uint64_t pixels = wgmma_operand(patches + row * 128, kPatchHalf, 128);
    wgmma_fence();
#pragma unroll
    for (int term = kTerms - 1; term >= 0; --term)
#pragma unroll
      for (int pair = 0; pair < 2; ++pair)
        if constexpr (kPairs)
          wgmma_fp16_sums(acc[pair], weight[term][pair], pixels);
        else
          wgmma_fp16(acc[pair], weight[term][pair], pixels, term < kTerms - 1);
    wgmma_commit();
  }

  // bn1, relu and pooling of patch row `row` + n, whose slots 2t and 2t + 1 this lane has; the terms and two bytes.
  __device__ __forceinline__ std::uint16_t pool(const Sums (&acc)[2], int n, int plane,
                                                Pair (&terms)[WgmmaOperands<P>::kFp16Terms]) const {
    const int t = fragment_place(lane).t;
    if constexpr (kPairs) {
      const std::uint32_t bits[4] = {acc[0][2 * n], acc[0][2 * n + 1], acc[1][2 * n], acc[1][2 * n + 1]};
      std::uint16_t route;
      terms[0] =
          pooled_pair<P>(reinterpret_cast<const __half2(&)[4]>(bits), scale, shift, cells_inside(plane, t), route);
      return route;
    } else {
      float cell[2];
      std::uint32_t route = 0;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float z[4] = {acc[0][4 * n + e], acc[0][4 * n + 2 + e], acc[1][4 * n + e], acc[1][4 * n + 2 + e]};
        const bool padding = plane == 0 ? t == 0 && e == 0 : t == 3 && e == 1;
        cell[e] = pooled(z, scale, shift, padding, e, route);
      }
      split(cell[0], cell[1], terms);
      return std::uint16_t(route);
    }
  }

  // Pools kRows patch rows, from row + kRow on, into a stage; `row` is even.
  template <int kRow>
  __device__ __forceinline__ void finish(const Sums (&acc)[2], unsigned char* stage, int row) const {
    using Shared = ConvForwardWgmmaShared<P>;
    using Operands = WgmmaOperands<P>;
#pragma unroll
    for (int n = 0; n < kRows; n += 4) {
      Pair matrices[Operands::kFp16Terms][4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        if (n + m >= kRows) {  // the last may come twice
#pragma unroll
          for (int term = 0; term < Operands::kFp16Terms; ++term) matrices[term][m] = matrices[term][m - 1];
          continue;
        }
        const int plane = (kRow + n + m) & 1, cy = row / 2 + (kRow + n + m) / 2;
        Pair terms[Operands::kFp16Terms];
        const std::uint16_t route = pool(acc, n + m, plane, terms);
#pragma unroll
        for (int term = 0; term < Operands::kFp16Terms; ++term) matrices[term][m] = terms[term];
        // Word (cy, half of the channels, plane, lane), of which this is the lower or the upper half.
        reinterpret_cast<std::uint16_t*>(
            stage + Shared::kRoute)[(((cy * 2 + (warp >> 1)) * 2 + plane) * 32 + lane) * 2 + (warp & 1)] = route;
      }
      const int slot = lane & 7, patch_row = row + kRow + min(n + (lane >> 3), kRows - 1);
      const int column = 2 * slot + (patch_row & 1);
      const std::uint32_t to = shared_address(stage);
#pragma unroll
      for (int term = 0; term < Operands::kFp16Terms; ++term) {
        store_columns_x4(to + term * Operands::kA1Term + warp * Operands::kPlane +
                             (patch_row / 2 + 1) * Operands::kRow + column * 16,
                         matrices[term]);
        if constexpr (Shared::kCopies)
          store_columns_x4(to + Shared::kStage + warp * kChunkedImage + patch_row * 128 + slot * 16, matrices[term]);
      }
    }
  }
};

// Gathers the patches of an image, by kThreads threads. Padding slots repeat a neighbour.
template <int kThreads = kRoleThreads>
__device__ __forceinline__ void gather_patches(unsigned char* patches, const unsigned char* image, int tid) {
#pragma unroll
  for (int i = tid; i < 2 * kPatchRows * 8; i += kThreads) {
    const int lower = i / (kPatchRows * 8), row = i / 8 % kPatchRows, slot = i % 8, cy = row / 2, plane = row % 2;
    const int cx = plane == 0 ? (slot == 0 ? 1 : 2 * slot - 1) : (slot == 7 ? 12 : 2 * slot);
    const auto* from =
        reinterpret_cast<const std::uint32_t*>(image + ((2 * cy + 2 * lower) * kImagePitch + 2 * cx) * 2);
    reinterpret_cast<uint4*>(patches)[i] =
        make_uint4(from[0], from[1], from[kImagePitch / 2], from[kImagePitch / 2 + 1]);
  }
}

// ---- conv2 ----------------------------------------------------------------------------------------------------------

// What a warpgroup makes of conv2 at a time: kRows rows from first_row on (those past the image's end mean nothing) of
// 8 columns.
//
// A product is transposed: its 64 rows are all of conv2's channels, and its columns are pixels of the left or the right
// half of an image, 8 from each image row. (The last two of the right half are padding and mean nothing.) So a pooling
// window, columns 2t and 2t + 1 of two image rows, lies in the registers of one lane:
//
//   acc[4 * r + 2 * i + e]   image row first_row + r, column 8 * side + 2t + e, channel 16 * quarter + g + 8 * i
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
      zero[i] = s.parameters[kParameters[kBn2Weight].offset + quarter * 16 + fragment_place(lane).g + 8 * i] == 0.f;
  }
  // Once update is done.
  __device__ __forceinline__ void load_scale(const State& s) {
    if constexpr (kHasScales<P>) acc_scale = image_scale[0] = image_scale[1] = z2_acc_scale<P>(s, lane);
  }

  // Sets image_scale for an image, in tf32.
  __device__ __forceinline__ void begin(const State& s, int image) {
    if constexpr (P::kScaled)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        image_scale[i] = z2_factor(s, acc_scale, image, quarter * 16 + fragment_place(lane).g + 8 * i);
  }

  // Starts the products; wgmma_wait<0>() ends them.
  __device__ __forceinline__ void start(std::uint32_t a1, std::uint32_t filter) {
    using Operands = WgmmaOperands<P>;
    const std::uint64_t weights = wgmma_operand(filter, Operands::kFilterChunk, 128);
    const std::uint64_t pixels =
        wgmma_operand(a1 + first_row * Operands::kRow + side * 8 * 16, Operands::kPlane, Operands::kRow);
    wgmma_fence();
    constexpr int kFirst = P::kFp16Terms == 2 ? 0 : 2;
#pragma unroll 1  // unrolled, the descriptors take more uniform registers than there are
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

  // Adds z2 to the sums, and calls z2(q, z) for row q of windows, z[row][i] being columns 2t and 2t + 1 of channel g +
  // 8 i, and pooled_z2(q, top) for rows q and q + 1, top[i] being window t of both.
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
            const float scale = kHasScales<P> ? image_scale[i] : 1.f;
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

  // z2 and pooled_z2 to global memory.
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
      T* const z2 = static_cast<T*>(s.z2) +  // padding is stored, too; column 16 does not exist, but 0 does
                    (std::size_t(image) * (kConv2Channels / 8) + channel / 8) * (kChunkedImage / 2) +
                    first_row * (kChunkedRow / 2) + slot_of((x + 1) % 16) * 8 + channel % 8;
      const int window_row = first_row / 2 + (g & 1), window_column = side * 4 + (g >> 1);
      T* const pooled_z2 = static_cast<T*>(s.pooled_z2) +
                           (std::size_t(image) * kCells2 + window_row * kPool2Side + window_column) * kConv2Channels +
                           channel;
      finish(
          [&](int q, const Pair(&z)[2][2]) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              const Four<P> values = four(z[r]);
              values.store(z2 + (2 * q + r) * (kChunkedRow / 2));
            }
          },
          [&](int q, const Pair(&top)[2]) {
            const Four<P> values = four(top);
            if (q + (g & 1) < kRows / 2 && window_row + q < kPool2Side && window_column < kPool2Side)
              values.store(pooled_z2 + q * kPool2Side * kConv2Channels);
          });
    } else {  // four lanes have four pixels of a chunk: whole sectors
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
    const auto [g, t] = fragment_place(lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float total[2] = {sum[i], squares[i]};
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        total[which] += __shfl_xor_sync(0xffffffffu, total[which], 1);
        total[which] += __shfl_xor_sync(0xffffffffu, total[which], 2);
        if (t == 0) warp_sums[which][g + 8 * i] = total[which];
      }
    }
  }
};

#endif

}  // namespace mnist::fused
