// F1: images -> conv1, bn1, relu, pool (in shared memory) -> conv2 -> z2, its window maxima e2, its channel sums.
// Hopper has other kernels, forward1_wgmma.cuh.
//
// Channels are permuted in the filter so that a lane's 4 results of a pixel are neighbours in memory: filter row
// 8n + 2t + e of 16 is channel 4t + 2n + e.
#pragma once

#include "kernels/fused/conv1.cuh"
#include "kernels/fused/conv3x3.cuh"
#include "kernels/fused/state.h"

namespace mnist::fused {

inline constexpr int kConvThreads = 512;  // F1, B1 and B2
inline constexpr int kConvWarps = kConvThreads / 32;
inline constexpr int kRoleThreads = kConvThreads / 2;  // where two halves of a block do different things
inline constexpr int kGroupThreads = 128;              // of a warpgroup
inline constexpr int kThreads = 256;                   // F2 and H

// An image's a1 in shared memory; a padding slot may read past its end.
template <class P>
inline constexpr int kA1Bytes = (kSlotsOfImage + 1) * kSlotPitch<P, kConv1Channels>;

// Word i of an image of the batch.
__device__ __forceinline__ std::uint32_t load_image_word(const State& s, int slot, int image, int i) {
  const auto index = s.samples.order[std::size_t(slot) * s.batch + image];
  return reinterpret_cast<const std::uint32_t*>(s.samples.images + std::size_t(index) * kImagePixels)[i];
}

// Four neighbouring values as two pairs.
template <class P>
struct Four {
  typename P::Pair pair[2];
  __device__ __forceinline__ void store(typename P::T* to) const {
    if constexpr (sizeof(typename P::T) == 2)
      *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(pair);
    else
      *reinterpret_cast<float4*>(to) = make_float4(pair[0].x, pair[0].y, pair[1].x, pair[1].y);
  }
};

// Which of channels 4t .. 4t+3 of a quarter have a batch norm scale of 0, bit by bit.
__device__ __forceinline__ unsigned zero_scales(const State& s, int quarter, int lane) {
  unsigned zeros = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    zeros |= (s.parameters[kParameters[kBn2Weight].offset + quarter * 16 + 4 * (lane & 3) + i] == 0.f) << i;
  return zeros;
}

// The filter of all channels arrives in parts of 37 KB: part p is kFilterSpan bytes, four 16-byte chunks, of each tap.
template <class P>
inline constexpr int kFilterParts = sizeof(typename P::T) / 2;
inline constexpr int kFilterSpan = kConv1Channels * 2;

template <class P>
__device__ __forceinline__ void copy_filter_part(unsigned char* shared, const void* packed, int part) {
  constexpr int kTapBytes = kConv1Channels * int(sizeof(typename P::T));
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const auto copy = [&](int row, int tap) {
    const int at = tap * kTapBytes + part * kFilterSpan + (lane & 3) * 16;
    copy_async_16(shared_address(shared) + row * kFilterPitch<P, kConv1Channels> + at,
                  static_cast<const char*>(packed) + row * kTaps * kTapBytes + at);
  };
#pragma unroll
  for (int row = 0; row < kConv2Channels; row += kConvWarps) copy(row + warp, lane >> 2);
  if (tid < 4 * kConv2Channels) copy(tid >> 2, 8);  // the ninth tap
  copy_async_commit();
}

// For every warp of a block: its copies end, and a warp that is to make R = 2 or 4 image rows waits for everyone's.
// These two kinds are in different places of the code, so each waits at a barrier of its own, R / 2, and only arrives
// at the other's; a warp that makes no rows, R = 0, only arrives, at both.
template <int R>
__device__ __forceinline__ void finish_copies() {
  copy_async_wait<0>();
#pragma unroll
  for (int barrier = 1; barrier <= 2; ++barrier)
    if (barrier != R / 2) barrier_arrive<kConvThreads>(barrier);
  if (R != 0) barrier_sync<kConvThreads>(R / 2);
}

// R image rows (R/2 rows of pooling windows) of one image and 16 channels, by one warp. Where the filter has two parts,
// only the first need have arrived, and the block's other warps call finish_copies(), too.
template <class P, int R, int kParts = 1>
__device__ __forceinline__ void forward1_rows(const State& s, float (&sum)[4], float (&squares)[4], std::uint32_t a1,
                                              std::uint32_t filter, unsigned zeros, int image, int quarter,
                                              int window_row, int lane) {
  using T = typename P::T;
  const int g = lane >> 2, t = lane & 3;
  constexpr int kSteps = kConv1Channels / kStep<P> / kParts;
  const std::uint32_t rows = a1 + 2 * window_row * kSlots * kSlotPitch<P, kConv1Channels>;
  float acc[R][2][4] = {};
  conv3x3_rows<P, kConv1Channels, R, ForwardShift, true, kSteps>(acc, rows, filter, lane);
  if constexpr (kParts == 2) {
    finish_copies<R>();
    conv3x3_rows<P, kConv1Channels, R, ForwardShift, true, kSteps>(acc, rows + kFilterSpan, filter + kFilterSpan, lane);
  }
  if (g == 7) return;  // the eighth window of a row is padding
  T* const z2 = static_cast<T*>(s.z2) +
                (std::size_t(image) * kCells1 + 2 * window_row * kPool1Side + 2 * g) * kConv2Channels + quarter * 16 +
                4 * t;
  T* const e2 = static_cast<T*>(s.e2) + (std::size_t(image) * kCells2 + window_row * kPool2Side + g) * kConv2Channels +
                quarter * 16 + 4 * t;
#pragma unroll
  for (int q = 0; q < R / 2; ++q) {
    Four<P> top, first;
#pragma unroll
    for (int position = 0; position < 4; ++position) {
      Four<P> z;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const auto& value = acc[2 * q + (position >> 1)][n];
        z.pair[n] = P::pack(value[(position & 1) * 2], value[(position & 1) * 2 + 1]);
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
    top.store(e2 + q * kPool2Side * kConv2Channels);
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

// a1 for B2, in whole 16-byte chunks: piece `piece` of the rows.
template <class P, int kThreads, int kPieces>
__device__ __forceinline__ void store_image_a1(const State& s, const unsigned char* a1, int image, int tid, int piece) {
  constexpr int kChunks = kConv1Channels * int(sizeof(typename P::T)) / 16, kCount = kCells1 * kChunks / kPieces;
  for (int i = piece * kCount + tid; i < (piece + 1) * kCount; i += kThreads) {
    const int pixel = i / kChunks, at = (pixel / kPool1Side + 1) * kSlots + slot_of(pixel % kPool1Side + 1);
    reinterpret_cast<uint4*>(s.a1)[std::size_t(image) * kCells1 * kChunks + i] =
        *reinterpret_cast<const uint4*>(a1 + at * kSlotPitch<P, kConv1Channels> + i % kChunks * 16);
  }
}

template <class P>
struct Forward1Shared {
  static constexpr int kFilter = 0;
  static constexpr int kA1 = kFilter + kConv2Channels * kFilterPitch<P, kConv1Channels>;
  static constexpr int kImage = kA1 + kA1Bytes<P>;
  static constexpr int kBytes = kImage + kImageBytes;
};

// Small batches: a block makes z2 of one image, or of half of it: rows 0 .. 7 or 8 .. 13. All 16 warps make what it
// needs of a1 (both halves, rows 7 and 8). Then 8 warps a half make z2, each 16 channels of 4 rows or the last 2.
template <class P, int kHalves>
__global__ void __launch_bounds__(kConvThreads, 1) forward1_kernel(State s, int slot) {
  using Shared = Forward1Shared<P>;
  constexpr int kPitch = kSlotPitch<P, kConv1Channels>;
  constexpr int kConv2Warps = 8 * kHalves, kParts = kFilterParts<P>;
  constexpr int kOwnRows = kPool1Side / 2 * kHalves;  // of a1, stored by this block
  extern __shared__ __align__(128) unsigned char shared[];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, quarter = warp & 3;
  const int image = kHalves == 1 ? blockIdx.x / 2 : blockIdx.x, half = kHalves == 1 ? blockIdx.x & 1 : 0;
  unsigned char* const a1 = shared + Shared::kA1;

  const std::uint32_t word = tid < kImageWords ? load_image_word(s, slot, image, tid) : 0;
  const unsigned zeros = zero_scales(s, quarter, lane);
  for (int i = tid; i < kA1Bytes<P> / 16; i += kConvThreads) reinterpret_cast<uint4*>(a1)[i] = make_uint4(0, 0, 0, 0);
  clear_images<P>(shared + Shared::kImage, 1);
  __syncthreads();
  if (tid < kImageWords) store_image_word<P>(shared + Shared::kImage, tid, word);

  wait_for_predecessor();  // U: filters and bn1
  Conv1<P> conv1;
  const int channel0 = (warp & 1) * 16;
  conv1.load(s.conv1, s.bn1, channel0, lane);
  __syncthreads();  // also keeps these loads, which conv1 waits for, ahead of the copies
#pragma unroll
  for (int part = 0; part < kParts; ++part) copy_filter_part<P>(shared + Shared::kFilter, s.conv2_forward, part);
  const int first_row = 7 * half, rows = kHalves == 2 ? kPool1Side : half == 0 ? 9 : 7;
#pragma unroll 1
  for (int i = warp >> 1; i < 2 * rows; i += kConvWarps / 2) {
    const int cy = first_row + i / 2, plane = i & 1;
    conv1.half_row(
        shared_address(shared + Shared::kImage), cy, plane, lane, [&](const float (&a)[4], std::uint32_t route) {
          store_a1<P>(a, channel0, plane, lane, A1Place<P>{a1 + (cy + 1) * kSlots * kPitch, plane});
          if (i < 2 * kOwnRows)
            s.route1[((std::size_t(image) * kPool1Side + cy) * 2 + (warp & 1)) * 64 + plane * 32 + lane] = route;
        });
  }
  copy_async_wait<kParts - 1>();  // the filter's first part
  __syncthreads();

  float sum[4] = {}, squares[4] = {};
  if (kHalves == 2) store_image_a1<P, kConvThreads, 1>(s, a1, image, tid, 0);
  if (warp < kConv2Warps) {
    const std::uint32_t filter =
        shared_address(shared + Shared::kFilter) + quarter * 16 * kFilterPitch<P, kConv1Channels>;
    const int row = 4 * half + warp / 4 * 2;  // of windows
    if (row + 2 <= kPool2Side)
      forward1_rows<P, 4, kParts>(s, sum, squares, shared_address(a1), filter, zeros, image, quarter, row, lane);
    else
      forward1_rows<P, 2, kParts>(s, sum, squares, shared_address(a1), filter, zeros, image, quarter, row, lane);
  } else {
    store_image_a1<P, kRoleThreads, 2>(s, a1, image, tid - kRoleThreads, half);
    if (kParts == 2) finish_copies<0>();
  }

  __syncthreads();
  auto* warp_sums = reinterpret_cast<float (*)[2][16]>(a1);
  if (warp < kConv2Warps) add_windows(warp_sums, sum, squares, warp, lane);
  __syncthreads();
  store_z2_sums<kConv2Warps / 4>(s, warp_sums, tid);
}

// Large batches: a block takes one image at a time, in two roles of 8 warps. The first makes a1 of the next image while
// the second makes z2 of this one: conv1 is bound by instructions, conv2 by the tensor cores.
template <class P>
struct Forward1RolesShared {
  static constexpr int kFilter = 0;
  static constexpr int kA1 = kFilter + kConv2Channels * kFilterPitch<P, kConv1Channels>;  // two
  static constexpr int kImage = kA1 + 2 * kA1Bytes<P>;                                    // two
  static constexpr int kBytes = kImage + 2 * kImageBytes;
};

template <class P>
__global__ void __launch_bounds__(kConvThreads, 1) forward1_roles_kernel(State s, int slot) {
  using Shared = Forward1RolesShared<P>;
  constexpr int kPitch = kSlotPitch<P, kConv1Channels>;
  enum { kRole = 1, kFull = 2, kFree = 4, kStored = 6, kSecondRole = 7 };  // those of the two stages are neighbours
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = threadIdx.x & 31, tid = threadIdx.x % kRoleThreads, warp = tid >> 5;
  const bool first_role = threadIdx.x < kRoleThreads;

  // The image of a unit: a word a thread, fetched one unit ahead.
  std::uint32_t word = 0;
  const auto fetch = [&](int image) {
    if (first_role && tid < kImageWords && image < s.batch) word = load_image_word(s, slot, image, tid);
  };
  fetch(blockIdx.x);
  const unsigned zeros = zero_scales(s, warp & 3, lane);
  for (int i = threadIdx.x; i < 2 * kA1Bytes<P> / 16; i += kConvThreads)
    reinterpret_cast<uint4*>(shared + Shared::kA1)[i] = make_uint4(0, 0, 0, 0);
  clear_images<P>(shared + Shared::kImage, 2);
  __syncthreads();

  wait_for_predecessor();                                                      // U: filters and bn1
  auto* warp_sums = reinterpret_cast<float (*)[2][16]>(shared + Shared::kA1);  // of the second role, at the end
  if (first_role) {
    const int channel0 = (warp & 1) * 16;
    Conv1<P> conv1;
    conv1.load(s.conv1, s.bn1, channel0, lane);
    int stage = 0;
    for (int image = blockIdx.x; image < s.batch; image += gridDim.x, stage ^= 1) {
      unsigned char* const pixels = shared + Shared::kImage + stage * kImageBytes;
      unsigned char* const a1 = shared + Shared::kA1 + stage * kA1Bytes<P>;
      if (tid < kImageWords) store_image_word<P>(pixels, tid, word);
      fetch(image + gridDim.x);
      barrier_sync<kRoleThreads>(kRole);
      if (image >= 2 * int(gridDim.x)) barrier_sync<kConvThreads>(kFree + stage);
      for (int cy = warp >> 1; cy < kPool1Side; cy += kRoleThreads / 64)
        conv1.row(shared_address(pixels), cy, lane, [&](int plane, const float (&a)[4], std::uint32_t route) {
          store_a1<P>(a, channel0, plane, lane, A1Place<P>{a1 + (cy + 1) * kSlots * kPitch, plane});
          s.route1[((std::size_t(image) * kPool1Side + cy) * 2 + (warp & 1)) * 64 + plane * 32 + lane] = route;
        });
      barrier_arrive<kConvThreads>(kFull + stage);
      barrier_sync<kRoleThreads>(kRole);
      store_image_a1<P, kRoleThreads, 1>(s, a1, image, tid, 0);
    }
    barrier_arrive<kConvThreads>(kStored);
  } else {
    for (int i = tid; i < kConv2Channels * kFilterChunks<P, kConv1Channels>; i += kRoleThreads)
      copy_filter_chunk<P, kConv1Channels>(shared + Shared::kFilter, s.conv2_forward, i);
    copy_async_commit();
    copy_async_wait<0>();
    barrier_sync<kRoleThreads>(kSecondRole);  // not kFree: by now the first role may be waiting there
    const int quarter = warp & 3, row_begin = warp >> 2 == 0 ? 0 : 4, row_end = warp >> 2 == 0 ? 4 : kPool2Side;
    const std::uint32_t filter =
        shared_address(shared + Shared::kFilter) + quarter * 16 * kFilterPitch<P, kConv1Channels>;
    float sum[4] = {}, squares[4] = {};
    int stage = 0;
    for (int image = blockIdx.x; image < s.batch; image += gridDim.x, stage ^= 1) {
      barrier_sync<kConvThreads>(kFull + stage);
      const std::uint32_t a1 = shared_address(shared + Shared::kA1 + stage * kA1Bytes<P>);
      int row = row_begin;
      for (; row + 2 <= row_end; row += 2)
        forward1_rows<P, 4>(s, sum, squares, a1, filter, zeros, image, quarter, row, lane);
      if (row < row_end) forward1_rows<P, 2>(s, sum, squares, a1, filter, zeros, image, quarter, row, lane);
      if (image + 2 * int(gridDim.x) < s.batch) barrier_arrive<kConvThreads>(kFree + stage);
    }
    barrier_sync<kConvThreads>(kStored);  // nobody reads a1 any more
    add_windows(warp_sums, sum, squares, warp, lane);
  }
  __syncthreads();
  store_z2_sums<2>(s, warp_sums, threadIdx.x);
}

}  // namespace mnist::fused
