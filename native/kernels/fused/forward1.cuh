// F1: images -> conv1, bn1, relu, pool (in shared memory) -> conv2 -> z2, its window maxima e2, its channel sums.
//
// A block takes kImages images at a time and 32 * kHalves of conv2's channels; each of its 16 warps makes 16 channels
// of some image rows. Channels are permuted in the filter so that a lane's 4 results of a pixel are neighbours in
// memory: filter row 8n + 2t + e of 16 is channel 4t + 2n + e.
#pragma once

#include "kernels/fused/conv1.cuh"
#include "kernels/fused/conv3x3.cuh"
#include "kernels/fused/state.h"

namespace mnist::fused {

inline constexpr int kConvThreads = 512;  // F1 and B2
inline constexpr int kConvWarps = kConvThreads / 32;
inline constexpr int kRoleThreads = kConvThreads / 2;  // where two halves of a block do different things
inline constexpr int kThreads = 256;  // the others

template <class P, int kImages, int kHalves>
struct Forward1Shared {
  static constexpr int kFilter = 0;
  static constexpr int kA1Bytes = (kSlotsOfImage + 1) * kSlotPitch<P, kConv1Channels>;  // a padding slot may read past
  static constexpr int kA1 = kFilter + 32 * kHalves * kFilterPitch<P, kConv1Channels>;
  static constexpr int kImage = kA1 + kImages * kA1Bytes;
  static constexpr int kBytes = kImage + kImages * kImageBytes;
};

template <class P>
__device__ __forceinline__ void store_8(typename P::T* to, const float (&x)[8]) {
  if constexpr (sizeof(typename P::T) == 2) {
    uint4 packed;
    auto* pairs = reinterpret_cast<__nv_bfloat162*>(&packed);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
    *reinterpret_cast<uint4*>(to) = packed;
  } else {
    reinterpret_cast<float4*>(to)[0] = make_float4(P::store(x[0]), P::store(x[1]), P::store(x[2]), P::store(x[3]));
    reinterpret_cast<float4*>(to)[1] = make_float4(P::store(x[4]), P::store(x[5]), P::store(x[6]), P::store(x[7]));
  }
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

// R image rows (R/2 rows of pooling windows) of one image and 16 channels, by one warp.
template <class P, int R>
__device__ __forceinline__ void forward1_rows(const State& s, float (&sum)[4], float (&squares)[4], std::uint32_t a1,
                                              std::uint32_t filter, unsigned zeros, int image, int quarter,
                                              int window_row, int lane) {
  using T = typename P::T;
  const int g = lane >> 2, t = lane & 3;
  float acc[R][2][4] = {};
  conv3x3_rows<P, kConv1Channels, R, ForwardShift, true, kConv1Channels / kStep<P>>(
      acc, a1 + 2 * window_row * kSlots * kSlotPitch<P, kConv1Channels>, filter, lane);
  if (g == 7) return;  // the eighth window of a row is padding
  T* const z2 = static_cast<T*>(s.z2) +
                (std::size_t(image) * kCells1 + 2 * window_row * kPool1Side + 2 * g) * kConv2Channels + quarter * 16 + 4 * t;
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

template <class P, int kImages, int kHalves>
__global__ void __launch_bounds__(kConvThreads, 1) forward1_kernel(State s, int slot) {
  using Shared = Forward1Shared<P, kImages, kHalves>;
  constexpr int kQuarters = 2 * kHalves, kTasks = kImages * kQuarters, kWarpsOfTask = kConvWarps / kTasks;
  extern __shared__ __align__(128) unsigned char shared[];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;

  const int half0 = kHalves == 1 ? blockIdx.x & 1 : 0;  // the grid is even, so a block keeps its half
  const int conv1_channel = (warp & 1) * 16;
  float sum[4] = {}, squares[4] = {};

  const int task = warp / kWarpsOfTask;
  const int task_image = task / kQuarters, quarter = 2 * half0 + task % kQuarters;
  // Neighbouring tasks alternate who gets the longer share, so that each scheduler's warps add up to the same.
  const int share = kWarpsOfTask == 2 ? (warp ^ warp >> 2) & 1 : warp % kWarpsOfTask;
  const int row_begin = share * ((kPool2Side + kWarpsOfTask - 1) / kWarpsOfTask);
  const int row_end = min(row_begin + (kPool2Side + kWarpsOfTask - 1) / kWarpsOfTask, kPool2Side);
  const std::uint32_t a1 = shared_address(shared + Shared::kA1 + task_image * Shared::kA1Bytes);
  const std::uint32_t filter =
      shared_address(shared + Shared::kFilter) + task % kQuarters * 16 * kFilterPitch<P, kConv1Channels>;

  constexpr int kWords = (kImages * kImageWords + kConvThreads - 1) / kConvThreads;
  std::uint32_t words[kWords];
  const auto fetch = [&](int unit) {  // a thread's words of the unit's images
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      const int i = tid + k * kConvThreads, image = unit * kImages + i / kImageWords;
      if (i < kImages * kImageWords && image < s.batch) {
        const auto index = s.samples.order[std::size_t(slot) * s.batch + image];
        words[k] = reinterpret_cast<const std::uint32_t*>(s.samples.images +
                                                          std::size_t(index) * kImagePixels)[i % kImageWords];
      }
    }
  };
  const int stride = kHalves == 1 ? gridDim.x / 2 : gridDim.x;
  int unit = kHalves == 1 ? blockIdx.x / 2 : blockIdx.x;
  const int units = (s.batch + kImages - 1) / kImages;
  const auto store = [&](int unit) {
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      const int i = tid + k * kConvThreads;
      if (i < kImages * kImageWords && unit * kImages + i / kImageWords < s.batch)
        store_image_word<P>(shared + Shared::kImage + i / kImageWords * kImageBytes, i % kImageWords, words[k]);
    }
  };
  const unsigned zeros = zero_scales(s, quarter, lane);
  if (unit < units) fetch(unit);
  for (int i = tid; i < kImages * Shared::kA1Bytes / 16; i += kConvThreads)
    reinterpret_cast<uint4*>(shared + Shared::kA1)[i] = make_uint4(0, 0, 0, 0);
  clear_images<P>(shared + Shared::kImage, kImages);
  __syncthreads();
  if (unit < units) store(unit);
  if (unit + stride < units) fetch(unit + stride);

  wait_for_predecessor();  // U: filters and bn1
  Conv1<P> conv1;
  conv1.load(s.conv1, s.bn1, conv1_channel, lane);
  load_filter<P, kConv1Channels>(shared + Shared::kFilter,
                                 static_cast<const char*>(s.conv2_forward) +
                                     std::size_t(half0) * 32 * kTaps * kConv1Channels * sizeof(typename P::T),
                                 32 * kHalves);
  copy_async_commit();
  for (; unit < units; unit += stride) {
    __syncthreads();  // the images are stored, and nobody reads the last unit's a1 any more
    for (int row = warp >> 1; row < kImages * kPool1Side; row += kConvWarps / 2) {
      const int image = row / kPool1Side, cy = row % kPool1Side;
      unsigned char* to =
          shared + Shared::kA1 + image * Shared::kA1Bytes + (cy + 1) * kSlots * kSlotPitch<P, kConv1Channels>;
      conv1.row(shared_address(shared + Shared::kImage + image * kImageBytes), cy, lane,
                [&](int plane, const float (&a)[4], std::uint32_t route) {
                  store_a1<P>(to, conv1_channel, plane, a, lane);
                  if (half0 == 0 && unit * kImages + image < s.batch)
                    s.route1[((std::size_t(unit * kImages + image) * kPool1Side + cy) * 2 + (warp & 1)) * 64 +
                             plane * 32 + lane] = route;
                });
    }
    copy_async_wait<0>();  // the filter
    __syncthreads();
    if (unit + stride < units) store(unit + stride);
    if (unit + 2 * stride < units) fetch(unit + 2 * stride);  // in flight until the next unit needs its place
    // a1 for B2, in whole 16-byte chunks; where two blocks share an image each copies every other one.
    constexpr int kChunks = kConv1Channels * int(sizeof(typename P::T)) / 16, kPieces = kHalves == 1 ? 2 : 1;
    for (int i = tid * kPieces + half0; i < kImages * kCells1 * kChunks; i += kConvThreads * kPieces) {
      const int image = i / (kCells1 * kChunks), pixel = i / kChunks % kCells1;
      if (unit * kImages + image < s.batch)
        reinterpret_cast<uint4*>(s.a1)[std::size_t(unit) * kImages * kCells1 * kChunks + i] =
            *reinterpret_cast<const uint4*>(shared + Shared::kA1 + image * Shared::kA1Bytes + i % kChunks * 16 +
                                            ((pixel / kPool1Side + 1) * kSlots + slot_of(pixel % kPool1Side + 1)) *
                                                kSlotPitch<P, kConv1Channels>);
    }
    const int image = unit * kImages + task_image;
    if (image < s.batch) {
      int row = row_begin;
      if constexpr (kWarpsOfTask < 8)
        for (; row + 2 <= row_end; row += 2)
          forward1_rows<P, 4>(s, sum, squares, a1, filter, zeros, image, quarter, row, lane);
      if (row < row_end) forward1_rows<P, 2>(s, sum, squares, a1, filter, zeros, image, quarter, row, lane);
    }
  }

  // Channel sums of the block, in a fixed order: over the 8 windows of a lane group, then over the warps.
  __syncthreads();
  auto* warp_sums = reinterpret_cast<float*>(shared + Shared::kA1);  // [16 warps][2][16 channels]
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int mask = 4; mask < 32; mask <<= 1) {
      sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], mask);
      squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], mask);
    }
    if (lane < 4) {
      warp_sums[(warp * 2 + 0) * 16 + 4 * lane + i] = sum[i];
      warp_sums[(warp * 2 + 1) * 16 + 4 * lane + i] = squares[i];
    }
  }
  __syncthreads();
  if (tid < 2 * kConv2Channels) {
    const int which = tid / kConv2Channels, channel = tid % kConv2Channels;
    float total = 0;
#pragma unroll
    for (int w = 0; w < kConvWarps; ++w)
      if (2 * half0 + w / kWarpsOfTask % kQuarters == channel / 16)
        total += warp_sums[(w * 2 + which) * 16 + channel % 16];
    const std::size_t row = blockIdx.x * kHalves / 2;  // two blocks that share their images share one
    if (kHalves == 2 || channel / 32 == half0) s.z2_sums[row * 2 * kConv2Channels + tid] = total;
  }
}

// Large batches: a block takes one image at a time, in two roles of 8 warps. The first makes a1 of the next image while
// the second makes z2 of this one: conv1 is bound by instructions, conv2 by the tensor cores.
template <class P>
struct Forward1RolesShared {
  static constexpr int kA1Bytes = (kSlotsOfImage + 1) * kSlotPitch<P, kConv1Channels>;
  static constexpr int kFilter = 0;
  static constexpr int kA1 = kFilter + kConv2Channels * kFilterPitch<P, kConv1Channels>;  // two
  static constexpr int kImage = kA1 + 2 * kA1Bytes;                                      // two
  static constexpr int kBytes = kImage + 2 * kImageBytes;
};

template <class P>
__global__ void __launch_bounds__(kConvThreads, 1) forward1_roles_kernel(State s, int slot) {
  using T = typename P::T;
  using Shared = Forward1RolesShared<P>;
  constexpr int kPitch = kSlotPitch<P, kConv1Channels>;
  enum { kRole = 1, kFull = 2, kFree = 4 };  // barriers; those of the two stages are neighbours
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = threadIdx.x & 31, tid = threadIdx.x % kRoleThreads, warp = tid >> 5;
  const bool first_role = threadIdx.x < kRoleThreads;

  // The image of a unit: a word a thread, fetched one unit ahead.
  std::uint32_t word = 0;
  const auto fetch = [&](int image) {
    if (first_role && tid < kImageWords && image < s.batch) {
      const auto index = s.samples.order[std::size_t(slot) * s.batch + image];
      word = reinterpret_cast<const std::uint32_t*>(s.samples.images + std::size_t(index) * kImagePixels)[tid];
    }
  };
  fetch(blockIdx.x);
  const unsigned zeros = zero_scales(s, warp & 3, lane);
  for (int i = threadIdx.x; i < 2 * Shared::kA1Bytes / 16; i += kConvThreads)
    reinterpret_cast<uint4*>(shared + Shared::kA1)[i] = make_uint4(0, 0, 0, 0);
  clear_images<P>(shared + Shared::kImage, 2);
  __syncthreads();

  wait_for_predecessor();  // U: filters and bn1
  auto* warp_sums = reinterpret_cast<float*>(shared + Shared::kA1);  // [8 warps][2][16 channels], at the end
  if (first_role) {
    const int channel0 = (warp & 1) * 16;
    Conv1<P> conv1;
    conv1.load(s.conv1, s.bn1, channel0, lane);
    int stage = 0;
    for (int image = blockIdx.x; image < s.batch; image += gridDim.x, stage ^= 1) {
      unsigned char* const pixels = shared + Shared::kImage + stage * kImageBytes;
      unsigned char* const a1 = shared + Shared::kA1 + stage * Shared::kA1Bytes;
      if (tid < kImageWords) store_image_word<P>(pixels, tid, word);
      fetch(image + gridDim.x);
      barrier_sync<kRoleThreads>(kRole);
      if (image >= 2 * int(gridDim.x)) barrier_sync<kConvThreads>(kFree + stage);
      for (int cy = warp >> 1; cy < kPool1Side; cy += kRoleThreads / 64)
        conv1.row(shared_address(pixels), cy, lane, [&](int plane, const float (&a)[4], std::uint32_t route) {
          store_a1<P>(a1 + (cy + 1) * kSlots * kPitch, channel0, plane, a, lane);
          s.route1[((std::size_t(image) * kPool1Side + cy) * 2 + (warp & 1)) * 64 + plane * 32 + lane] = route;
        });
      barrier_arrive<kConvThreads>(kFull + stage);
      barrier_sync<kRoleThreads>(kRole);
      constexpr int kChunks = kConv1Channels * int(sizeof(T)) / 16;
      for (int i = tid; i < kCells1 * kChunks; i += kRoleThreads) {
        const int pixel = i / kChunks, at = (pixel / kPool1Side + 1) * kSlots + slot_of(pixel % kPool1Side + 1);
        reinterpret_cast<uint4*>(s.a1)[std::size_t(image) * kCells1 * kChunks + i] =
            *reinterpret_cast<const uint4*>(a1 + at * kPitch + i % kChunks * 16);
      }
    }
    __syncthreads();
  } else {
    for (int i = tid; i < kConv2Channels * kFilterChunks<P, kConv1Channels>; i += kRoleThreads)
      copy_filter_chunk<P, kConv1Channels>(shared + Shared::kFilter, s.conv2_forward, i);
    copy_async_commit();
      copy_async_wait<0>();
    barrier_sync<kRoleThreads>(kFree);  // not yet in use for a stage
    const int quarter = warp & 3, row_begin = warp >> 2 == 0 ? 0 : 4, row_end = warp >> 2 == 0 ? 4 : kPool2Side;
    const std::uint32_t filter =
        shared_address(shared + Shared::kFilter) + quarter * 16 * kFilterPitch<P, kConv1Channels>;
    float sum[4] = {}, squares[4] = {};
    int stage = 0;
    for (int image = blockIdx.x; image < s.batch; image += gridDim.x, stage ^= 1) {
      barrier_sync<kConvThreads>(kFull + stage);
      const std::uint32_t a1 = shared_address(shared + Shared::kA1 + stage * Shared::kA1Bytes);
      int row = row_begin;
      for (; row + 2 <= row_end; row += 2)
        forward1_rows<P, 4>(s, sum, squares, a1, filter, zeros, image, quarter, row, lane);
      if (row < row_end) forward1_rows<P, 2>(s, sum, squares, a1, filter, zeros, image, quarter, row, lane);
      if (image + 2 * int(gridDim.x) < s.batch) barrier_arrive<kConvThreads>(kFree + stage);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int mask = 4; mask < 32; mask <<= 1) {
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], mask);
        squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], mask);
      }
      if (lane < 4) {
        warp_sums[(warp * 2 + 0) * 16 + 4 * lane + i] = sum[i];
        warp_sums[(warp * 2 + 1) * 16 + 4 * lane + i] = squares[i];
      }
    }
  }
  __syncthreads();
  if (threadIdx.x < 2 * kConv2Channels) {
    const int which = threadIdx.x / kConv2Channels, channel = threadIdx.x % kConv2Channels;
    const auto part = [&](int w) { return warp_sums[(w * 2 + which) * 16 + channel % 16]; };
    s.z2_sums[std::size_t(blockIdx.x) * 2 * kConv2Channels + threadIdx.x] = part(channel / 16) + part(4 + channel / 16);
  }
}

}  // namespace mnist::fused
