// F1 for bf16 and tf32 on Hopper: as forward1.cuh, with conv2 by wgmma.
//
// conv2 is transposed: a product's 64 rows are all of conv2's channels, its columns are pixels. A warpgroup makes the
// left or the right half of the columns, 8 a row (of the right half's the last two are padding and mean nothing), so
// that columns 2t, 2t + 1 of two rows, which are a pooling window, lie in the registers of one lane.
//
// a1 in shared memory: [chunk of channels][16 rows][16 columns][16 bytes], with a border of zeros: see wgmma.cuh. Filter:
// [tap][chunk][64 permuted rows][16 bytes].
#pragma once

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
  static constexpr int kFilterChunk = kConv2Channels * 16 + 16;
  static constexpr int kFilterBytes = kTaps * kChunks * kFilterChunk;
};

template <class P>
struct Forward1WgmmaShared {
  using Operands = WgmmaOperands<P>;
  static constexpr int kStages = 2;  // the small kernel has one
  static constexpr int kA1 = 0;
  static constexpr int filter(int stages) { return stages * Operands::kA1Bytes; }
  static constexpr int image(int stages) { return filter(stages) + Operands::kFilterBytes; }
  static constexpr int bytes(int stages) { return image(stages) + stages * kImageBytes; }
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
__device__ __forceinline__ float2 transposed(float2 pair) {  // in halves of 16 bits
  const std::uint32_t x = __float_as_uint(pair.x), y = __float_as_uint(pair.y);
  const std::uint32_t low = transpose_8x8(__byte_perm(x, y, 0x5410)), high = transpose_8x8(__byte_perm(x, y, 0x7632));
  return make_float2(__uint_as_float(__byte_perm(low, high, 0x5410)), __uint_as_float(__byte_perm(low, high, 0x7632)));
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

// As store_image_a1(): piece `piece` of the rows.
template <class P, int kThreads, int kPieces>
__device__ __forceinline__ void store_image_a1_chunks(const State& s, const unsigned char* a1, int image, int tid,
                                                      int piece) {
  constexpr int kChunks = WgmmaOperands<P>::kChunks, kCount = kCells1 * kChunks / kPieces;
  for (int i = piece * kCount + tid; i < (piece + 1) * kCount; i += kThreads) {
    const int pixel = i / kChunks, at = (pixel / kPool1Side + 1) * 16 + pixel % kPool1Side + 1;
    reinterpret_cast<uint4*>(s.a1)[std::size_t(image) * kCells1 * kChunks + i] =
        *reinterpret_cast<const uint4*>(a1 + i % kChunks * WgmmaOperands<P>::kPlane + at * 16);
  }
}

template <class P, int kThreads>
__device__ __forceinline__ void copy_filter_chunks(unsigned char* shared, const void* packed, int tid) {
  using Operands = WgmmaOperands<P>;
  constexpr int kOfRow = kTaps * Operands::kChunks;
#pragma unroll 4
  for (int i = tid; i < kConv2Channels * kOfRow; i += kThreads)
    copy_async_16(shared_address(shared) + i % kOfRow * Operands::kFilterChunk + i / kOfRow * 16,
                  static_cast<const char*>(packed) + std::size_t(i) * 16);
  copy_async_commit();
}

// A warpgroup's share of conv2: kRows rows from first_row on (those past the image's end mean nothing) of 8 columns.
template <class P, int kRows>
struct Conv2Columns {
  int first_row, half, quarter, lane;  // half: of the columns; quarter: of the channels, a warp each
  bool zero[2];                        // whether bn2's scale is 0 for the channels of rows g and g + 8
  float sum[2], squares[2];            // by channel, of all pixels so far
  float acc[4 * kRows];                // see wgmma_bf16()

  // Row g (+ 8) of a quarter; see forward1.cuh.
  __device__ __forceinline__ int channel(int i) const { return 4 * (lane >> 3) + 2 * i + (lane >> 2 & 1); }

  __device__ __forceinline__ Conv2Columns(const State& s, int first_row, int half, int quarter, int lane)
      : first_row(first_row), half(half), quarter(quarter), lane(lane), sum{}, squares{} {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      zero[i] = s.parameters[kParameters[kBn2Weight].offset + quarter * 16 + channel(i)] == 0.f;
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

  // z2 and e2 of an image, and their sums.
  __device__ __forceinline__ void finish(const State& s, int image) {
    using T = typename P::T;
    using Pair = typename P::Pair;
    const int g = lane >> 2, t = lane & 3, channel0 = quarter * 16 + 4 * t;
    T* const z2 = static_cast<T*>(s.z2) +
                  (std::size_t(image) * kCells1 + first_row * kPool1Side + half * 8 + g) * kConv2Channels + channel0;
    // Two rows of windows become the columns of one matrix.
    const int window_row = first_row / 2 + (g & 1), window_column = half * 4 + (g >> 1);
    T* const e2 = static_cast<T*>(s.e2) +
                  (std::size_t(image) * kCells2 + window_row * kPool2Side + window_column) * kConv2Channels + channel0;
#pragma unroll
    for (int q = 0; q < kRows / 2; q += 2) {
      Pair first[2][2] = {}, best[2][2] = {};  // [row of windows][channel]
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (q + e >= kRows / 2 || first_row + 2 * (q + e) >= kPool1Side) continue;
#pragma unroll
        for (int r = 2 * (q + e); r < 2 * (q + e) + 2; ++r) {
          Four<P> z;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const Pair pair = P::pack(acc[4 * r + 2 * i], acc[4 * r + 2 * i + 1]);
            const float2 x = P::unpack(pair);
            sum[i] += x.x + x.y;
            squares[i] = fmaf(x.y, x.y, fmaf(x.x, x.x, squares[i]));
            if (r % 2 == 0) first[e][i] = pair;
            best[e][i] = r % 2 == 0 ? pair : P::max(best[e][i], pair);
            z.pair[i] = transposed(pair);
          }
          if (half * 8 + g < kPool1Side) z.store(z2 + r * kPool1Side * kConv2Channels);
        }
      }
      Four<P> top;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Pair best_of_row = P::max(firsts(best[0][i], best[1][i]), seconds(best[0][i], best[1][i]));
        // Where the scale is 0 every position ties, and the first one wins.
        top.pair[i] = transposed(zero[i] ? firsts(first[0][i], first[1][i]) : best_of_row);
      }
      if (q + (g & 1) < kRows / 2 && window_row + q < kPool2Side && window_column < kPool2Side)
        top.store(e2 + q * kPool2Side * kConv2Channels);
    }
  }

  // Sums over the warpgroup's pixels: warp_sums[][channel of the quarter].
  __device__ __forceinline__ void add_columns(float (&warp_sums)[2][16]) {
    const bool padding = half == 1 && (lane & 3) == 3;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float total[2] = {padding ? 0.f : sum[i], padding ? 0.f : squares[i]};
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        total[which] += __shfl_xor_sync(0xffffffffu, total[which], 1);
        total[which] += __shfl_xor_sync(0xffffffffu, total[which], 2);
        if ((lane & 3) == 0) warp_sums[which][channel(i)] = total[which];
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
  constexpr int kOwnRows = kPool1Side / 2 * kHalves;  // of a1, stored by this block
  extern __shared__ __align__(128) unsigned char shared[];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int image = kHalves == 1 ? blockIdx.x / 2 : blockIdx.x, half = kHalves == 1 ? blockIdx.x & 1 : 0;
  unsigned char *const a1 = shared + Shared::kA1, *const filter = shared + Shared::filter(1),
                *const pixels = shared + Shared::image(1);

  std::uint32_t word = 0;
  if (tid < kImageWords) {
    const auto index = s.samples.order[std::size_t(slot) * s.batch + image];
    word = reinterpret_cast<const std::uint32_t*>(s.samples.images + std::size_t(index) * kImagePixels)[tid];
  }
  Conv2Columns<P, 8> conv2(s, kHalves == 1 ? 8 * half : warp / 8 * 8, warp >> 2 & 1, warp & 3, lane);
  for (int i = tid; i < Operands::kA1Bytes / 16; i += kConvThreads)
    reinterpret_cast<uint4*>(a1)[i] = make_uint4(0, 0, 0, 0);
  clear_images<P>(pixels, 1);
  __syncthreads();
  if (tid < kImageWords) store_image_word<P>(pixels, tid, word);

  wait_for_predecessor();  // U: filters and bn1
  Conv1<P> conv1;
  const int channel0 = (warp & 1) * 16;
  conv1.load(s.conv1, s.bn1, channel0, lane);
  __syncthreads();  // also keeps these loads, which conv1 waits for, ahead of the copies
  copy_filter_chunks<P, kConvThreads>(filter, s.conv2_forward, tid);
  const int first_row = 7 * half, rows = kHalves == 2 ? kPool1Side : half == 0 ? 9 : 7;
#pragma unroll 1
  for (int i = warp >> 1; i < 2 * rows; i += kConvWarps / 2) {
    const int cy = first_row + i / 2, plane = i & 1;
    conv1.half_row(shared_address(pixels), cy, plane, lane, [&](const float (&a)[4], std::uint32_t route) {
      store_a1_chunks<P>(a1 + (cy + 1) * Operands::kRow, channel0, plane, a, lane);
      if (i < 2 * kOwnRows)
        s.route1[((std::size_t(image) * kPool1Side + cy) * 2 + (warp & 1)) * 64 + plane * 32 + lane] = route;
    });
  }
  copy_async_wait<0>();
  wgmma_publish();
  __syncthreads();

  auto* warp_sums = reinterpret_cast<float (*)[2][16]>(pixels);
  if (kHalves == 2 || warp < kRoleThreads / 32) {
    conv2.start(shared_address(a1), shared_address(filter));
    if (kHalves == 2) store_image_a1_chunks<P, kConvThreads, 1>(s, a1, image, tid, 0);
    wgmma_wait<0>();
    conv2.finish(s, image);
    conv2.add_columns(warp_sums[warp]);
  } else {
    store_image_a1_chunks<P, kRoleThreads, 2>(s, a1, image, tid - kRoleThreads, half);
  }
  __syncthreads();
  store_z2_sums<2 * kHalves>(s, warp_sums, tid);
#endif
}

// Large batches: as forward1_roles_kernel(). While the products of an image run, the second role copies its a1 out.
template <class P>
__global__ void __launch_bounds__(kConvThreads, 1) forward1_wgmma_roles_kernel(State s, int slot) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using namespace kernels::device;
  using Shared = Forward1WgmmaShared<P>;
  using Operands = WgmmaOperands<P>;
  enum { kRole = 1, kFull = 2, kFree = 4, kEnd = 6 };  // barriers; those of the two stages are neighbours
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = threadIdx.x & 31, tid = threadIdx.x % kRoleThreads, warp = tid >> 5;
  const bool first_role = threadIdx.x < kRoleThreads;
  unsigned char *const filter = shared + Shared::filter(2), *const images = shared + Shared::image(2);

  // The image of a unit: a word a thread, fetched one unit ahead.
  std::uint32_t word = 0;
  const auto fetch = [&](int image) {
    if (first_role && tid < kImageWords && image < s.batch) {
      const auto index = s.samples.order[std::size_t(slot) * s.batch + image];
      word = reinterpret_cast<const std::uint32_t*>(s.samples.images + std::size_t(index) * kImagePixels)[tid];
    }
  };
  fetch(blockIdx.x);
  for (int i = threadIdx.x; i < 2 * Operands::kA1Bytes / 16; i += kConvThreads)
    reinterpret_cast<uint4*>(shared + Shared::kA1)[i] = make_uint4(0, 0, 0, 0);
  clear_images<P>(images, 2);
  __syncthreads();

  wait_for_predecessor();                                           // U: filters and bn1
  auto* warp_sums = reinterpret_cast<float (*)[2][16]>(images);  // of the second role, at the end
  if (first_role) {
    const int channel0 = (warp & 1) * 16;
    Conv1<P> conv1;
    conv1.load(s.conv1, s.bn1, channel0, lane);
    int stage = 0;
    for (int image = blockIdx.x; image < s.batch; image += gridDim.x, stage ^= 1) {
      unsigned char* const pixels = images + stage * kImageBytes;
      unsigned char* const a1 = shared + Shared::kA1 + stage * Operands::kA1Bytes;
      if (tid < kImageWords) store_image_word<P>(pixels, tid, word);
      fetch(image + gridDim.x);
      barrier_sync<kRoleThreads>(kRole);
      if (image >= 2 * int(gridDim.x)) barrier_sync<kConvThreads>(kFree + stage);
      for (int cy = warp >> 1; cy < kPool1Side; cy += kRoleThreads / 64)
        conv1.row(shared_address(pixels), cy, lane, [&](int plane, const float (&a)[4], std::uint32_t route) {
          store_a1_chunks<P>(a1 + (cy + 1) * Operands::kRow, channel0, plane, a, lane);
          s.route1[((std::size_t(image) * kPool1Side + cy) * 2 + (warp & 1)) * 64 + plane * 32 + lane] = route;
        });
      wgmma_publish();
      barrier_arrive<kConvThreads>(kFull + stage);
    }
    barrier_arrive<kConvThreads>(kEnd);  // nobody reads the images any more
  } else {
    copy_filter_chunks<P, kRoleThreads>(filter, s.conv2_forward, tid);
    copy_async_wait<0>();
    wgmma_publish();
    barrier_sync<kRoleThreads>(kFree);  // not yet in use for a stage
    Conv2Columns<P, kPool1Side> conv2(s, 0, warp >> 2, warp & 3, lane);
    int stage = 0;
    for (int image = blockIdx.x; image < s.batch; image += gridDim.x, stage ^= 1) {
      const unsigned char* const a1 = shared + Shared::kA1 + stage * Operands::kA1Bytes;
      barrier_sync<kConvThreads>(kFull + stage);
      conv2.start(shared_address(a1), shared_address(filter));
      store_image_a1_chunks<P, kRoleThreads, 1>(s, a1, image, tid, 0);
      wgmma_wait<0>();
      if (image + 2 * int(gridDim.x) < s.batch) barrier_arrive<kConvThreads>(kFree + stage);
      conv2.finish(s, image);
    }
    barrier_sync<kConvThreads>(kEnd);
    conv2.add_columns(warp_sums[warp]);
    barrier_sync<kRoleThreads>(kFree);
    store_z2_sums<2>(s, warp_sums, tid);
  }
#endif
}

}  // namespace mnist::fused
