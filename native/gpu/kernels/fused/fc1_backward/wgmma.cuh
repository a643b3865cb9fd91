// fc1_backward of large batches on Hopper, in 16 bits: as mma.cuh, with both products by wgmma.
//
// What a block owns and what it leaves is the same: 32 columns of fc1.weight, walked through by tiles of 128 samples.
// Operands lie as wgmma reads them (see device/wgmma.cuh), [chunk of 8][128 rows][16 bytes], so that dh serves both
// products: sums over hidden units take it K-major, sums over samples MN-major. head leaves it like that, and the copy
// engine brings a tile as a whole. Roles:
//   dgrad, warpgroups 0 and 1   copy two tiles ahead and multiply dh with the weights, 64 samples each; masked by relu
//                               this is dy2.
//   wgrad, warpgroups 2 and 3   make a2 and multiply dh^T a2, 64 hidden units each. A tile's products run while the
//                               next tile's a2 is made. At the end they update the weights.
// (A thread that publishes to wgmma waits for all of its own copies; so dgrad, which publishes nothing, starts them.)
#pragma once

#include "kernels/device/wgmma.cuh"
#include "kernels/fused/fc1_backward/columns.cuh"

namespace mnist::fused {

// Tiles as both kernels by wgmma have them, here and in fp16_terms.cuh.
struct Fc1WgmmaTile {
  static constexpr int kSamplesPerTile = kSamplesPerDhTile;
  static constexpr int kDhChunk = kSamplesPerTile * 16, kDhTerm = kHidden / 8 * kDhChunk;
  // Chunks lie apart so that those of a row are in different banks when threads write them.
  static constexpr int kColumnChunk = kSamplesPerTile * 16 + 32, kColumnChunks = kFc1Columns / 8;
  static constexpr int kColumnTerm = kColumnChunks * kColumnChunk;
  static_assert(kHidden == kSamplesPerTile && kHidden == 2 * 64, "wgrad: 64 units a warpgroup, a row of weights each");
  // Bytes that the dgrad role declares.
  static constexpr int kDgradFixed = sizeof(float[32]) + sizeof(float[kRoleThreads / 32][2][32]);
};

struct Fc1BackwardWgmmaShared : Fc1WgmmaTile {
  static constexpr int kStages = 3, kMasterPitch = 32 * 4 + 32;  // 32 floats of a hidden unit
  struct Stage {
    unsigned char dh[kDhTerm];
    unsigned char pooled_z2[kColumnTerm];  // and dy2, once it is made
    unsigned char a2[kColumnTerm];
  };
  struct Memory {
    Stage stages[kStages];
    unsigned char weights[kColumnTerm];  // a row a hidden unit
    unsigned char master[kHidden * kMasterPitch];
  };
  static_assert(sizeof(Stage) % 16 == 0);
  static constexpr int kDhBytes = sizeof(Stage::dh), kPooledZ2 = offsetof(Stage, pooled_z2), kA2 = offsetof(Stage, a2),
                       kWeights = offsetof(Memory, weights), kMaster = offsetof(Memory, master);
  static constexpr int kBytes = sizeof(Memory);
  using Arrived = Ring<kStages>;  // of a tile's copies
  static constexpr int kFixed = sizeof(Arrived) + kDgradFixed;
  static __device__ __forceinline__ int stage(int tile) { return Arrived::stage(tile) * int(sizeof(Stage)); }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// wgrad arrives when it has made a tile's a2 and its products of the last tile are done. dgrad waits for that before it
// goes on to the tile: both roles are then done with the last tile, and its stage may be copied over. Two barriers, by
// the tile's parity: wgrad gets at most two tiles ahead, because no later tile has been copied.
using Fc1TileReady = NamedBarrier<1, kConvThreads, 2>;
using Fc1Wgrad = NamedBarrier<3, kRoleThreads>;
using Fc1Dgrad = NamedBarrier<4, kRoleThreads>;

// Starts copying dh of a tile, by one thread.
template <class Shared>
__device__ __forceinline__ void fetch_dh_tile(const State& s, std::uint32_t base, Ring<Shared::kStages>& arrived,
                                              int tile) {
  MBarrier& barrier = arrived[tile];
  barrier.expect(Shared::kDhBytes);
  copy_bulk(base + Shared::stage(tile), static_cast<const char*>(s.dh) + std::size_t(tile) * Shared::kDhBytes,
            Shared::kDhBytes, barrier);
}

// Starts copying the block's columns of rows of fc1's features into chunks, by a role.
template <class T>
__device__ __forceinline__ void fetch_columns(std::uint32_t to, const T* from, int count, int tid) {
  using Shared = Fc1BackwardWgmmaShared;
  fetch_rows<Shared::kSamplesPerTile, kFc1Columns, 16, kRoleThreads, Shared::kColumnChunk>(to, from, kFeatures, count,
                                                                                           tid);
}

template <class P>
__device__ __forceinline__ void fc1_weight_gradient_wgmma(const State& s, unsigned char* shared,
                                                          Fc1BackwardWgmmaShared::Arrived& arrived, int column0) {
  using T = typename P::T;
  using Shared = Fc1BackwardWgmmaShared;
  const int tid = threadIdx.x - kRoleThreads, lane = tid & 31, warp = uniform(tid >> 5);
  const auto [g, t] = fragment_place(lane);
  const std::uint32_t base = shared_address(shared);
  float* const master = s.parameters + kParameters[kFc1Weight].offset;

  fetch_columns(base + Shared::kWeights, static_cast<const T*>(s.fc1) + column0, kHidden, tid);
#pragma unroll
  for (int i = tid; i < kHidden * 8; i += kRoleThreads)
    copy_async_16(base + Shared::kMaster + i / 8 * Shared::kMasterPitch + i % 8 * 16,
                  master + std::size_t(i / 8) * kFeatures + column0 + i % 8 * 4);
  copy_async_commit();
  const int chunk = tid % Shared::kColumnChunks;
  float scale[8], shift[8], to_stored = 1;
  float scale_of_sums = load_a2_operand<P>(s, column0, chunk, scale, shift);
  const float rate = *s.learning_rate;
  copy_async_wait<0>();
  wait_for_predecessor();  // so that its successor may start
  trace(s, Phase::kFc1Backward, 3, tid == 0);
  if constexpr (P::kScaled) scale_of_sums *= s.scales[kDhScale], to_stored = inverse_of(s.scales[kNextFc1Scale]);

  const int tiles = (s.batch + Shared::kSamplesPerTile - 1) / Shared::kSamplesPerTile;
  const int my_chunk = chunk * Shared::kColumnChunk + tid / Shared::kColumnChunks * 16;
  const int first_units = warp / 4 * (kHidden / 16) * Shared::kDhChunk;  // of dh's chunks, this warpgroup's
  float dw[16] = {};
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = Shared::stage(tile);
    const TracedItem traced(s, Phase::kFc1Backward, {.first = 16, .points = 8, .from = 8, .to = 12}, tile, tid == 0);
    traced(0);
    arrived.wait(tile);
    traced(1);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int at = stage + my_chunk + k * (kRoleThreads / Shared::kColumnChunks) * 16;
      float x[8];
      unpack<P>(x, *reinterpret_cast<const uint4*>(shared + Shared::kPooledZ2 + at));
      *reinterpret_cast<uint4*>(shared + Shared::kA2 + at) = bn2_relu<P>(x, scale, shift);
    }
    traced(2);
    wgmma_publish();  // a2, and with the first tile the weights, which dgrad multiplies
    wgmma_wait<0>();  // the products of the tile before
    traced(3);
    Fc1Wgrad::sync();  // a2 is complete
    traced(4);
    Fc1TileReady::arrive(tile & 1);
    const std::uint64_t units = wgmma_operand(base + stage + first_units, 8 * 16, Shared::kDhChunk);
    const std::uint64_t columns = wgmma_operand(base + stage + Shared::kA2, 8 * 16, Shared::kColumnChunk);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Shared::kSamplesPerTile / 16; ++step)
      wgmma_columns<T, true>(dw, units + step * 16, columns + step * 16, true);
    wgmma_commit();
  }
  wgmma_wait<0>();
  wgmma_results(dw);
  if constexpr (P::kScaled)
    for (float& sum : dw) sum *= scale_of_sums;

  float largest = 0;  // weight
#pragma unroll
  for (int n = 0; n < Shared::kColumnChunks; ++n)
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int unit = warp * 16 + g + upper * 8, column = n * 8 + 2 * t;
      const float2 d = make_float2(dw[4 * n + 2 * upper], dw[4 * n + 2 * upper + 1]);
      const std::size_t at = std::size_t(unit) * kFeatures + column0 + column;
      const auto weight = [&] {
        return *reinterpret_cast<const float2*>(shared + Shared::kMaster + unit * Shared::kMasterPitch + column * 4);
      };
      update_fc1<P>(s, master, at, weight, d, rate, to_stored, largest);
    }
  store_largest_fc1<P>(s, largest, warp, lane);
  trace(s, Phase::kFc1Backward, 8, tid == 0);
}

template <class P>
__device__ __forceinline__ void fc1_dgrad_wgmma(const State& s, unsigned char* shared,
                                                Fc1BackwardWgmmaShared::Arrived& arrived, int column0) {
  using T = typename P::T;
  using Pair = typename P::Pair;
  using Shared = Fc1BackwardWgmmaShared;
  __shared__ float inv_sigma[32], warp_sums[kRoleThreads / 32][2][32];
  const int tid = threadIdx.x, lane = tid & 31, warp = uniform(tid >> 5);
  const auto [g, t] = fragment_place(lane);
  const std::uint32_t base = shared_address(shared);
  const int tiles = (s.batch + Shared::kSamplesPerTile - 1) / Shared::kSamplesPerTile;

  // pooled_z2 does not depend on head, dh does. A thread arrives once its own copies have.
  const auto fetch_pooled = [&](int tile) {
    const int first = tile * Shared::kSamplesPerTile;
    fetch_columns(base + Shared::stage(tile) + Shared::kPooledZ2,
                  static_cast<const T*>(s.pooled_z2) + std::size_t(first) * kFeatures + column0, s.batch - first, tid);
    arrived[tile].arrive_after_copies();
  };
  const auto fetch_dh = [&](int tile) {
    if (tid == 0) fetch_dh_tile<Shared>(s, base, arrived, tile);
  };
  for (int tile = 0; tile < min(tiles, 2); ++tile) fetch_pooled(tile);
  const Bn2Operand bn2{s.bn2.values + column0 % kConv2Channels};
  const std::uint64_t weights = wgmma_operand(base + Shared::kWeights, 8 * 16, Shared::kColumnChunk);
  float mean[8], sum[8] = {}, sum_xhat[8] = {}, largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) mean[i] = bn2.mean(i / 2 * 8 + 2 * t + i % 2);
  if (tid < 32) inv_sigma[tid] = bn2.inv_sigma(tid);
  wait_for_predecessor();  // head: dh
  trace(s, Phase::kFc1Backward, 1, tid == 0);
  for (int tile = 0; tile < min(tiles, 2); ++tile) fetch_dh(tile);
  const Dy2Scales scales = dy2_scales<P>(s);

  const int first_row = warp * 16, piece = (first_row + g) * 16 + t * 4;
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    const TracedItem traced(s, Phase::kFc1Backward, {.first = 48, .points = 8, .from = 8, .to = 10}, tile, tid == 0);
    traced(0);
    Fc1TileReady::sync(tile & 1);  // a2 is made, and wgrad is done with the last tile
    traced(1);
    if (tile + 2 < tiles) {
      fetch_pooled(tile + 2);
      fetch_dh(tile + 2);
    }
    arrived.wait(tile);  // it has: wgrad waited for it
    traced(2);
    const int stage = Shared::stage(tile);
    const std::uint64_t samples =
        wgmma_operand(base + stage + warp / 4 * 64 * 16, Shared::kDhChunk, 8 * 16);  // this warpgroup's
    float dy[16];
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kHidden / 16; ++step)
      wgmma_columns<T, false>(dy, samples + step * 2 * Shared::kDhChunk / 16, weights + step * 16, step > 0);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(dy);
    traced(3);
#pragma unroll
    for (int n = 0; n < Shared::kColumnChunks; ++n)
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int at = stage + n * Shared::kColumnChunk + piece + upper * 8 * 16;
        auto& place = *reinterpret_cast<Pair*>(shared + Shared::kPooledZ2 + at);
        const auto active = *reinterpret_cast<const std::uint32_t*>(shared + Shared::kA2 + at);
        const float* two = dy + 4 * n + 2 * upper;
        const Pair gradient =
            P::kScaled ? P::pack(scales.of_sums * two[0], scales.of_sums * two[1]) : P::pack(two[0], two[1]);
        const std::uint32_t kept = where_positive<P>(active, *reinterpret_cast<const std::uint32_t*>(&gradient));
        const float2 z = P::unpack(place), x = P::unpack(*reinterpret_cast<const Pair*>(&kept));
        *reinterpret_cast<std::uint32_t*>(&place) = kept;
        sum[2 * n] += x.x;
        sum[2 * n + 1] += x.y;
        sum_xhat[2 * n] = fmaf(x.x, z.x - mean[2 * n], sum_xhat[2 * n]);
        sum_xhat[2 * n + 1] = fmaf(x.y, z.y - mean[2 * n + 1], sum_xhat[2 * n + 1]);
        if constexpr (P::kScaled) largest = fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y)));
      }
    traced(4);
    __syncwarp();  // dy2 leaves in rows of 64 bytes, four lanes each
    const int chunk = lane % Shared::kColumnChunks, row = first_row + lane / Shared::kColumnChunks;
#pragma unroll
    for (int upper = 0; upper < 2; ++upper)
      if (const int sample = tile * Shared::kSamplesPerTile + row + upper * 8; sample < s.batch)
        __stwb(reinterpret_cast<uint4*>(static_cast<T*>(s.dy2) + std::size_t(sample) * kFeatures + column0 + chunk * 8),
               *reinterpret_cast<const uint4*>(shared + stage + Shared::kPooledZ2 + chunk * Shared::kColumnChunk +
                                               (row + upper * 8) * 16));
  }

  store_dy2_sums<P, Fc1Dgrad>(
      s, warp_sums, warp, sum, sum_xhat, [&](int i) { return i / 2 * 8 + 2 * t + i % 2; }, largest, scales.dy2,
      inv_sigma, column0, warp, lane);
  trace(s, Phase::kFc1Backward, 7, tid == 0);
}

#endif

template <class P, class Models>
__global__ void __launch_bounds__(kConvThreads, 1) fc1_backward_wgmma_kernel(Models models) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const auto& s = state_of_block(models);
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Fc1BackwardWgmmaShared::Arrived arrived;
  trace(s, Phase::kFc1Backward, 0, threadIdx.x == 0);
  if (threadIdx.x < Fc1BackwardWgmmaShared::kStages) arrived.stages[threadIdx.x].init(kRoleThreads + 1);
  __syncthreads();
  if (uniform(threadIdx.x / kRoleThreads) == 0)
    fc1_dgrad_wgmma<P>(s, shared, arrived, blockIdx.x * 32);
  else
    fc1_weight_gradient_wgmma<P>(s, shared, arrived, blockIdx.x * 32);
#endif
}

}  // namespace mnist::fused
