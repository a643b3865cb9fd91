// The products of conv_forward by mma.sync: conv1 -> bn1 -> relu -> max_pool, which makes a1, and conv2, which makes
// z2, its window maxima and its channel sums. No barriers here: mma.cuh has them.
#pragma once

#include "kernels/fused/shared/conv3x3.cuh"
#include "kernels/fused/shared/image.cuh"
#include "kernels/fused/shared/routing.cuh"
#include "kernels/fused/shared/scales.cuh"

namespace mnist::fused {

// ---- conv1 ----------------------------------------------------------------------------------------------------------

// conv1 of one row of pooled cells, from the bytes of the image; a warp makes 16 of the 32 channels.
//
// A cell's pooling window sees 4 x 4 pixels, which is one k-step of an m16n8k16 product: 16 channels are the rows, 8
// pooled cells the columns, k = 4 * row + column of the patch. The 3 x 3 filter f has four positions in the patch, and
// each one is an A operand of its own, with zeros around the filter:
//
//   position 0: f f f .    1: . f f f    2: . . . .    3: . . . .
//               f f f .       . f f f       f f f .       . f f f
//               f f f .       . f f f       f f f .       . f f f
//               . . . .       . . . .       f f f .       . f f f
//
// So one load of the pixels serves four products, and the four results of a cell lie in the same lane: pooling never
// leaves the registers.
//
// In bf16 the sums are fp16: pixels are integers up to 222 and weights are divided to be below 2, so that no sum
// exceeds 4000, where fp16 tells integers apart by 2. Two neighbouring slots are then a register, and pooling takes
// both at once.
template <class P>
struct Conv1 {
  static constexpr bool kPairs = P::kConv1Terms == 1;
  using Cells = typename Operand<P>::Pair[2][kTerms<P>];
  std::uint32_t weight[P::kConv1Terms][4][4];  // A operands: [term][position]
  float scale[2], shift[2];                    // of channels g and g + 8

  __device__ __forceinline__ void load(const void* packed, Bn1Operand bn1, int channel0, int lane) {
    const auto [g, t] = fragment_place(lane);
    const auto* words = static_cast<const std::uint32_t*>(packed);
#pragma unroll
    for (int i = 0; i < 4 * P::kConv1Terms; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        weight[i / 4][i % 4][r] = words[(i * kConv1Channels + channel0 + g + (r & 1) * 8) * 8 + t + (r >> 1) * 4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int channel = channel0 + g + 8 * i;
      scale[i] = bn1.scale(channel) * bn1.filter_scale(channel);
      shift[i] = bn1.shift(channel);
    }
  }

  // From here on a1 is divided by `divisor`.
  __device__ __forceinline__ void divide(float divisor) {
#pragma unroll
    for (int i = 0; i < 2; ++i) scale[i] /= divisor, shift[i] /= divisor;
  }

  // A plane of row cy of pooled cells. Calls emit(cells, route): slots 2t and 2t + 1 of channels g and g + 8; byte i of
  // route is 0x80 >> the position that cell i came from, or 0 where relu made a zero and in padding slots, whose cells
  // mean nothing.
  template <class Emit>
  __device__ __forceinline__ void half_row(std::uint32_t image, int cy, int plane, int lane, Emit emit) const {
    const auto [g, t] = fragment_place(lane);
    const int cx = plane == 0 ? (g == 0 ? 1 : 2 * g - 1) : (g == 7 ? 12 : 2 * g);  // padding repeats a neighbour
    const std::uint32_t patch = image + ((2 * cy + (t >> 1)) * kImagePitch + 2 * cx + 2 * (t & 1)) * 2;
    const std::uint32_t b[2] = {load_shared_32(patch), load_shared_32(patch + 2 * kImagePitch * 2)};
    Cells cells;
    std::uint32_t route = 0;
    if constexpr (kPairs) {
      std::uint32_t z[4][2];
#pragma unroll
      for (int position = 0; position < 4; ++position) mma_fp16_sums(z[position], weight[0][position], b[0], b[1]);
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const std::uint32_t window[4] = {z[0][upper], z[1][upper], z[2][upper], z[3][upper]};
        std::uint16_t bytes;
        cells[upper][0] = pooled_pair<P>(reinterpret_cast<const __half2(&)[4]>(window), scale[upper], shift[upper],
                                         cells_inside(plane, t), bytes);
        route |= std::uint32_t(bytes) << 16 * upper;
      }
    } else {
      float z[4][4];
#pragma unroll
      for (int position = 0; position < 4; ++position) {
#pragma unroll
        for (int i = 0; i < 4; ++i) z[position][i] = 0.f;
#pragma unroll
        for (int term = P::kConv1Terms - 1; term >= 0; --term)
          mma_fp16(z[position], weight[term][position], b[0], b[1]);
      }
      float a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float window[4] = {z[0][i], z[1][i], z[2][i], z[3][i]};
        a[i] = pooled(window, scale[i >> 1], shift[i >> 1], false, i, route);
      }
      if (plane == 0 ? t == 0 : t == 3) route &= plane == 0 ? 0xff00ff00u : 0x00ff00ffu;
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) to_operands<P>(a[2 * upper], a[2 * upper + 1], cells[upper]);
    }
    emit(cells, route);
  }
};

// ---- a1, conv1's pooled cells ---------------------------------------------------------------------------------------

// Bytes of kRows rows of a1 in shared memory, laid out as shared/layout.cuh says. Reads of a padding slot may
// run past the last row, by a slot.
template <class P, int kRows = kPaddedRows>
inline constexpr int kA1Bytes = (kRows * kSlots + 1) * kSlotPitch<P, kConv1Channels>;

// Writes what half_row() emits into an image row in shared memory, except for padding slots, which stay 0: in pairs of
// an even channel and the next one behind it. place(slot, channel) is the address of one, and terms are Place::kTerm
// bytes apart.
template <class P, class Place>
__device__ __forceinline__ void store_a1(const typename Conv1<P>::Cells& cells, int channel0, int plane, int lane,
                                         Place place) {
  const auto [g, t] = fragment_place(lane);
  const int padding = plane == 0 ? 0 : 7;
#pragma unroll
  for (int upper = 0; upper < 2; ++upper)
#pragma unroll
    for (int term = 0; term < kTerms<P>; ++term) {
      const auto pair = transposed(cells[upper][term]);
      if (g != padding)
        *reinterpret_cast<typename Operand<P>::Pair*>(place(g, channel0 + upper * 8 + 2 * t) + term * Place::kTerm) =
            pair;
    }
}

// The place in a row of an image in planes and slots.
template <class P>
struct A1Place {
  static constexpr int kTerm = kTermBytes;
  unsigned char* row;
  int plane;
  __device__ __forceinline__ unsigned char* operator()(int slot, int channel) const {
    return row + (plane * 8 + slot) * kSlotPitch<P, kConv1Channels> + operand_at<P>(channel);
  }
};

// a1 to global memory, for conv2_backward, in 16-byte chunks: the rows are cut into kPieces, of which this is number
// `piece`.
template <class P, int kThreads, int kPieces>
__device__ __forceinline__ void store_image_a1(const State& s, const unsigned char* a1, int image, int tid, int piece) {
  constexpr int kChunks = kConv1Channels * int(sizeof(typename P::T)) / 16, kRows = kPool1Side / kPieces;
  auto* const to = static_cast<uint4*>(s.a1) + (std::size_t(image) * kCells1 + piece * kRows * kPool1Side) * kChunks;
  for_chunks<kThreads, kChunks, kRows>(tid, [&](int row, int x, int chunk) {
    const int at = (piece * kRows + row + 1) * kSlots + slot_of(x + 1);
    to[(row * kPool1Side + x) * kChunks + chunk] =
        *reinterpret_cast<const uint4*>(a1 + at * kSlotPitch<P, kConv1Channels> + chunk * 16);
  });
}

// ---- conv2 ----------------------------------------------------------------------------------------------------------

// Bit i: whether channel 4t + i of a quarter of the channels has a batch norm scale of 0.
__device__ __forceinline__ unsigned zero_scales(const State& s, int quarter, int lane) {
  unsigned zeros = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    zeros |= (s.parameters[kParameters[kBn2Weight].offset + quarter * 16 + 4 * fragment_place(lane).t + i] == 0.f) << i;
  return zeros;
}

// Starts copying the filter, by kThreads threads.
template <class P, int kThreads>
__device__ __forceinline__ void copy_filter(unsigned char* shared, const void* packed, int tid) {
#pragma unroll
  for (int i = tid; i < kConv2Channels * kFilterChunks<P, kConv1Channels>; i += kThreads)
    copy_filter_chunk<P, kConv1Channels>(shared, packed, i);
  copy_async_commit();
}

// R image rows (R/2 rows of pooling windows) of one image and 16 channels, by one warp: z2 and pooled_z2 to global
// memory, and their part of the channel sums. `acc_scale` is z2_acc_scale().
//
// A lane's 4 results of a pixel are neighbours in memory because the filter's rows are permuted: among 16 of them, row
// 8n + 2t + e is channel 4t + 2n + e.
//
//   lane t holds of the product   columns 2t, 2t + 1 of n = 0   and of n = 1
//   these are channels            4t, 4t + 1                    4t + 2, 4t + 3
template <class P, int R>
__device__ __forceinline__ void conv2_rows(const State& s, float (&sum)[4], float (&squares)[4], std::uint32_t a1,
                                           std::uint32_t filter, unsigned zeros, int image, int quarter, int window_row,
                                           int lane, float acc_scale) {
  using T = typename P::T;
  const auto [g, t] = fragment_place(lane);
  const std::uint32_t rows = a1 + 2 * window_row * kSlots * kSlotPitch<P, kConv1Channels>;
  float acc[R][2][4] = {};
  conv3x3_rows<P, kConv1Channels, R, ForwardShift, true, kConv1Channels / 16>(acc, rows, filter, lane);
  if (g == 7) return;  // the eighth window of a row is padding
  T* const z2 = static_cast<T*>(s.z2) +
                (std::size_t(image) * kCells1 + 2 * window_row * kPool1Side + 2 * g) * kConv2Channels + quarter * 16 +
                4 * t;
  T* const pooled_z2 = static_cast<T*>(s.pooled_z2) +
                       (std::size_t(image) * kCells2 + window_row * kPool2Side + g) * kConv2Channels + quarter * 16 +
                       4 * t;
  float factor[4];  // by channel
#pragma unroll
  for (int i = 0; i < 4; ++i)
    factor[i] = P::kScaled ? z2_factor(s, acc_scale, image, quarter * 16 + 4 * t + i) : acc_scale;
#pragma unroll
  for (int q = 0; q < R / 2; ++q) {
    Four<P> top, first;
#pragma unroll
    for (int position = 0; position < 4; ++position) {
      Four<P> z;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float* value = acc[2 * q + (position >> 1)][n] + (position & 1) * 2;
        z.pair[n] = kHasScales<P> ? P::pack(factor[2 * n] * value[0], factor[2 * n + 1] * value[1])
                                  : P::pack(value[0], value[1]);
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

// A block's sums of z2 to global memory: kGroups groups of 4 warps, 16 channels each, left theirs in shared memory.
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
