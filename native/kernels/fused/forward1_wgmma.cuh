// F1 for bf16 and tf32 on Hopper: as forward1.cuh, with conv2 by wgmma.
//
// conv2 is transposed: a product's 64 rows are all of conv2's channels, its columns are pixels. A warpgroup makes the
// left or the right half of the columns, 8 a row (of the right half's the last two are padding and mean nothing), so
// that columns 2t, 2t + 1 of two rows, which are a pooling window, lie in the registers of one lane.
//
// a1 in shared memory: [chunk of channels][16 rows][16 columns][16 bytes], with a border of zeros: see wgmma.cuh.
// Filter: [tap][chunk][64 permuted rows][16 bytes].
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

template <class P>
struct Forward1WgmmaShared {
  using Operands = WgmmaOperands<P>;
  // Of a stage: a1 and its routing, in the order of State::route1.
  static constexpr int kRoute = (Operands::kA1Bytes + 127) / 128 * 128, kStage = kRoute + kRoute1Words * 4;
  static constexpr int filter(int stages) { return stages * kStage; }
  static constexpr int image(int stages) { return filter(stages) + Operands::kFilterBytes; }
  static constexpr int kPatches = image(2) + kImageBytes;    // two
  static constexpr int kWarpSums = kConvWarps * 2 * 16 * 4;  // where the image was
  static constexpr int kBytes = image(1) + std::max(kImageBytes, kWarpSums), kRolesBytes = kPatches + 2 * kPatchBytes;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ __nv_bfloat162 firsts(__nv_bfloat162 a, __nv_bfloat162 b) { return __lows2bfloat162(a, b); }
__device__ __forceinline__ __nv_bfloat162 seconds(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __highs2bfloat162(a, b);
}
__device__ __forceinline__ float2 firsts(float2 a, float2 b) { return make_float2(a.x, b.x); }
__device__ __forceinline__ float2 seconds(float2 a, float2 b) { return make_float2(a.y, b.y); }

// What a warp's lanes agree on, as the compiler can see: operands of wgmma are then made by the uniform datapath.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

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

// Whether F1 leaves a1 and z2 chunked for B2: configure() cuts both in whole images from the same batch size on.
template <class P, bool kWholeImages>
inline constexpr bool kChunked = kWholeImages && sizeof(typename P::T) == 2;

// a1 and its routing for B2, in whole 16-byte chunks: piece `piece` of the rows. (Nobody who makes a1 stores to global
// memory: wgmma_publish() would wait for that.)
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

  // bn1, relu and pooling of patch rows kRow .. of those that lie from `row` on; `row` is even.
  template <int kRow>
  __device__ __forceinline__ void finish(const float (&acc)[2][4 * kRows], unsigned char* a1, unsigned char* routes,
                                         int row) const {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const int plane = (kRow + n) & 1, cy = row / 2 + (kRow + n) / 2;
      float a[2];
      unsigned route = 0;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float z[4] = {acc[0][4 * n + e], acc[0][4 * n + 2 + e], acc[1][4 * n + e], acc[1][4 * n + 2 + e]};
        const float best = fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3]));
        unsigned where = 0x10u << 8 * e;  // the first of equals wins
        where = z[2] == best ? 0x20u << 8 * e : where;
        where = z[1] == best ? 0x40u << 8 * e : where;
        where = z[0] == best ? 0x80u << 8 * e : where;
        a[e] = fmaf(scale, best, shift);
        const bool dead = a[e] <= 0.f;  // not NaN
        a[e] = dead ? 0.f : a[e];
        route |= dead ? 0u : where;
      }
      if (plane == 0 ? t == 0 : t == 3) route &= plane == 0 ? 0xff00u : 0x00ffu;
      // Word (cy, half of the channels, plane, lane), of which this is the lower or the upper half.
      reinterpret_cast<std::uint16_t*>(routes)[(((cy * 2 + (warp >> 1)) * 2 + plane) * 32 + lane) * 2 + (warp & 1)] =
          std::uint16_t(route);
      unsigned char* const to = a1 + (cy + 1) * WgmmaOperands<P>::kRow + plane * 16;
      if constexpr (sizeof(typename P::T) == 2) {
        const __nv_bfloat162 pair = transposed(P::pack(a[0], a[1]));
        if (g != (plane == 0 ? 0 : 7))
          *reinterpret_cast<__nv_bfloat162*>(to + warp * WgmmaOperands<P>::kPlane + g * 32 + t * 4) = pair;
      } else {
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (2 * t + e != (plane == 0 ? 0 : 7))
            *reinterpret_cast<float*>(to + (2 * warp + (g >> 2)) * WgmmaOperands<P>::kPlane + (2 * t + e) * 32 +
                                      (g & 3) * 4) = P::store(a[e]);
      }
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

// A warpgroup's share of conv2: kRows rows from first_row on (those past the image's end mean nothing) of 8 columns.
template <class P, int kRows, bool kChunks>
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
    const int x = half * 8 + g;
    const bool padding = x >= kPool1Side;
    T* z2 = static_cast<T*>(s.z2);
    if constexpr (kChunks)  // padding is stored as zeros; column 16 does not exist, but 0 does
      z2 += (std::size_t(image) * (kConv2Channels / 8) + quarter * 2 + (t >> 1)) * (kChunkedImage / 2) +
            first_row * (kChunkedRow / 2) + slot_of((x + 1) % 16) * 8 + (t & 1) * 4;
    else
      z2 += (std::size_t(image) * kCells1 + first_row * kPool1Side + x) * kConv2Channels + channel0;
    constexpr int kZ2Row = kChunks ? kChunkedRow / 2 : kPool1Side * kConv2Channels;
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
          if (kChunks && padding) z = {};
          if (kChunks || !padding) z.store(z2 + r * kZ2Row);
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
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ std::uint64_t arrived;
  const int tid = threadIdx.x, lane = tid & 31, warp = uniform(tid >> 5);
  const int image = kHalves == 1 ? blockIdx.x / 2 : blockIdx.x, half = kHalves == 1 ? blockIdx.x & 1 : 0;
  unsigned char *const a1 = shared, *const filter = shared + Shared::filter(1),
                       *const pixels = shared + Shared::image(1);
  auto* const routes = reinterpret_cast<std::uint32_t*>(shared + Shared::kRoute);

  std::uint32_t word = 0;
  if (tid < kImageWords) {
    const auto index = s.samples.order[std::size_t(slot) * s.batch + image];
    word = reinterpret_cast<const std::uint32_t*>(s.samples.images + std::size_t(index) * kImagePixels)[tid];
  }
  Conv2Columns<P, 8, kChunked<P, kHalves == 2>> conv2(s, kHalves == 1 ? 8 * half : warp / 8 * 8, warp >> 2 & 1,
                                                      warp & 3, lane);
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
    conv2.finish(s, image);
    conv2.add_columns(warp_sums[warp]);
  } else {
    store_stage<P, kRoleThreads, 2>(s, shared, image, tid - kRoleThreads, half);
  }
  __syncthreads();
  store_z2_sums<2 * kHalves>(s, warp_sums, tid);
#endif
}

// Large batches: as forward1_roles_kernel(). The first role makes an image's patches while the products of the one
// before run, the second role copies an image's a1 out meanwhile.
template <class P>
__global__ void __launch_bounds__(kConvThreads, 1) forward1_wgmma_roles_kernel(State s, int slot) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using namespace kernels::device;
  using Shared = Forward1WgmmaShared<P>;
  enum { kRole = 1, kFull = 2, kFree = 4, kSecondRole = 6, kEnd = 7 };  // those of the two stages are neighbours
  constexpr int kTurnThreads = kRoleThreads + 128;                      // the first role and a warpgroup of the second
  constexpr int kFirstRegisters = 96, kSecondRegisters = 160;          // 256 together
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ std::uint64_t arrived;
  const int lane = threadIdx.x & 31, tid = threadIdx.x % kRoleThreads, warp = uniform(tid >> 5);
  const bool first_role = uniform(threadIdx.x / kRoleThreads) == 0;
  unsigned char *const filter = shared + Shared::filter(2), *const pixels = shared + Shared::image(2),
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
  for (int i = threadIdx.x; i < 2 * Shared::kStage / 16; i += kConvThreads)
    reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
  clear_images<P>(pixels, 1);
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
  auto* warp_sums = reinterpret_cast<float (*)[2][16]>(pixels);  // of the second role, at the end
  if (first_role) {
    give_registers<kFirstRegisters>();
    const Conv1Columns<P> conv1(s, warp & 3, lane);
    const int first_row = warp / 4 * kPool1Side;  // of patches
    int stage = 0;
    for (int image = blockIdx.x; image < s.batch; image += gridDim.x, stage ^= 1) {
      unsigned char *const a1 = shared + stage * Shared::kStage, *const routes = a1 + Shared::kRoute;
      const std::uint32_t own_patches = shared_address(patches + stage * kPatchBytes);
      barrier_sync<kRoleThreads>(kRole);  // the patches are complete and nobody reads the image any more
      store_image(image + 2 * gridDim.x);
      if (image >= 2 * int(gridDim.x)) barrier_sync<kTurnThreads>(kFree + stage);
      float acc[2][4 * Conv1Columns<P>::kRows];
      conv1.start(acc, own_patches, first_row);
      barrier_sync<kRoleThreads>(kRole);
      gather_patches(patches + (stage ^ 1) * kPatchBytes, pixels, tid);
      wgmma_wait<0>();
      wgmma_results(acc[0]), wgmma_results(acc[1]);
      conv1.template finish<0>(acc, a1, routes, first_row);
      conv1.start(acc, own_patches, first_row + Conv1Columns<P>::kRows);
      wgmma_wait<0>();
      wgmma_results(acc[0]), wgmma_results(acc[1]);
      conv1.template finish<Conv1Columns<P>::kRows>(acc, a1, routes, first_row);
      wgmma_publish();
      barrier_arrive<kTurnThreads>(kFull + stage);
    }
    barrier_arrive<kConvThreads>(kEnd);  // nobody reads the image any more
  } else {
    // Its warpgroups take turns, an image each, so that one's products run while the other stores.
    take_registers<kSecondRegisters>();
    if (tid == 0) copy_filter<P>(filter, s.conv2_forward, &arrived);
    const int group = warp >> 2;
    Conv2Columns<P, kPool1Side, kChunked<P, true>> left(s, 0, 0, warp & 3, lane), right(s, 0, 1, warp & 3, lane);
    mbarrier_wait(&arrived, 0);
    const unsigned char* const stage = shared + group * Shared::kStage;
    for (int image = blockIdx.x + group * gridDim.x; image < s.batch; image += 2 * gridDim.x) {
      barrier_sync<kTurnThreads>(kFull + group);
      left.start(shared_address(stage), shared_address(filter));
      right.start(shared_address(stage), shared_address(filter));
      store_stage<P, kTurnThreads - kRoleThreads, 1>(s, stage, image, tid % (kTurnThreads - kRoleThreads), 0);
      wgmma_wait<0>();
      if (image + 2 * int(gridDim.x) < s.batch) barrier_arrive<kTurnThreads>(kFree + group);
      wgmma_results(left.acc);
      left.finish(s, image);
      wgmma_results(right.acc);
      right.finish(s, image);
    }
    barrier_sync<kConvThreads>(kEnd);
    left.add_columns(warp_sums[8 * group + (warp & 3)]);
    right.add_columns(warp_sums[8 * group + 4 + (warp & 3)]);
    barrier_sync<kRoleThreads>(kSecondRole);
    store_z2_sums<4>(s, warp_sums, tid);
  }
#endif
}

}  // namespace mnist::fused
