// fc1_backward of large batches on Hopper, in 16 bits: as mma.cuh, with both products by wgmma.
//
// What a block owns and what it leaves is the same: 32 columns of fc1.weight, walked through by tiles of 128 samples.
// Operands lie as wgmma reads them (see device/wgmma.cuh), [chunk of 8][128 rows][16 bytes], so that dh serves both
// products: sums over hidden units take it K-major, sums over samples MN-major. head leaves it like that, and the copy
// engine brings a tile as a whole. Roles:
//   dgrad, warpgroups 0 and 1   multiply dh with the weights, 64 samples each; masked by relu this is dy2, which leaves
//                               from registers.
//   wgrad, warpgroups 2 and 3   make a2 and multiply dh^T a2, 64 hidden units each. A tile's products run while the
//                               next tile's a2 is made. At the end they update the weights.
//   copies, two warps           start them two tiles ahead. (A thread that publishes to wgmma waits for all of its own
//                               copies, so wgrad cannot; and starting them took dgrad a fifth of a tile's time.)
#pragma once

#include "kernels/device/wgmma.cuh"
#include "kernels/fused/fc1_backward/columns.cuh"

namespace mnist::fused {

// Tiles as both kernels by wgmma have them, here and in fp16_terms.cuh.
struct Fc1WgmmaTile {
  static constexpr int kSamplesPerTile = kSamplesPerDhTile;
  static constexpr int kDhChunk = kSamplesPerTile * 16, kDhTerm = kHidden / 8 * kDhChunk;
  // Chunks lie apart so that those of a row are in different banks when threads read or write them.
  static constexpr int kColumnChunk = kSamplesPerTile * 16 + 32, kColumnChunks = kFc1Columns / 8;
  static constexpr int kColumnTerm = kColumnChunks * kColumnChunk;
  static_assert(kHidden == kSamplesPerTile && kHidden == 2 * 64, "wgrad: 64 units a warpgroup, a row of weights each");
  // Bytes that the dgrad role declares.
  static constexpr int kDgradFixed = sizeof(float[32]) + sizeof(float[kRoleThreads / 32][2][32]);
};

// Of a tile's copies. a2 can be made before dh is there.
template <int kStages>
struct Fc1Arrived {
  Ring<kStages> pooled_z2, dh;
  __device__ __forceinline__ void init(int stage, int copying_threads) {
    pooled_z2.stages[stage].init(copying_threads);
    dh.stages[stage].init(1);
  }
};

struct Fc1BackwardWgmmaShared : Fc1WgmmaTile {
  static constexpr int kCopyThreads = 64, kThreads = kConvThreads + kCopyThreads;
  static constexpr int kStages = 3, kMasterPitch = 32 * 4 + 32;  // 32 floats of a hidden unit
  struct Stage {
    unsigned char dh[kDhTerm];
    unsigned char pooled_z2[kColumnTerm];
    unsigned char a2[kColumnTerm];
  };
  struct Memory {
    Stage stages[kStages];
    // A row a hidden unit, for dgrad: pair c of chunk n is pair n of the features' chunk c. A lane's sums, pair t of
    // every chunk, are then the 8 features of chunk t, 16 bytes of dy2.
    unsigned char weights[kColumnTerm];
    unsigned char master[kHidden * kMasterPitch];
  };
  static_assert(sizeof(Stage) % 16 == 0);
  static constexpr int kDhBytes = sizeof(Stage::dh), kPooledZ2 = offsetof(Stage, pooled_z2), kA2 = offsetof(Stage, a2),
                       kWeights = offsetof(Memory, weights), kMaster = offsetof(Memory, master);
  static constexpr int kBytes = sizeof(Memory);
  using Arrived = Fc1Arrived<kStages>;
  static constexpr int kFixed = sizeof(Arrived) + kDgradFixed;
  static __device__ __forceinline__ int stage(int tile) { return Ring<kStages>::stage(tile) * int(sizeof(Stage)); }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// wgrad arrives when it has made a tile's a2 and its products of the last tile are done. dgrad waits for that before it
// goes on to the tile: both roles are then done with the last tile, and its stage may be copied over; so who copies
// waits there, too. Two barriers, by the tile's parity: wgrad gets at most two tiles ahead, because no later tile has
// been copied.
template <class Shared>
using Fc1TileReady = NamedBarrier<1, Shared::kThreads, 2>;
using Fc1Wgrad = NamedBarrier<3, kRoleThreads>;
using Fc1Dgrad = NamedBarrier<4, kRoleThreads>;

// Starts copying dh of a tile, by one thread.
template <class Shared>
__device__ __forceinline__ void fetch_dh_tile(const State& s, std::uint32_t base, typename Shared::Arrived& arrived,
                                              int tile) {
  MBarrier& barrier = arrived.dh[tile];
  barrier.expect(Shared::kDhBytes);
  copy_bulk(base + Shared::stage(tile), static_cast<const char*>(s.dh) + std::size_t(tile) * Shared::kDhBytes,
            Shared::kDhBytes, barrier);
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

  // A thread takes this chunk of two rows: of the weights, and of each tile.
  constexpr int kRowsAtOnce = kRoleThreads / Shared::kColumnChunks;
  const int chunk = tid % Shared::kColumnChunks, row = tid / Shared::kColumnChunks;
  static_assert(2 * kRowsAtOnce == Shared::kSamplesPerTile && Shared::kColumnChunks == 4, "a chunk has 4 pairs, too");
  uint4 weights[2];
#pragma unroll
  for (int k = 0; k < 2; ++k)
    weights[k] = *reinterpret_cast<const uint4*>(static_cast<const T*>(s.fc1) +
                                                 std::size_t(row + k * kRowsAtOnce) * kFeatures + column0 + chunk * 8);
#pragma unroll
  for (int k = 0; k < kHidden; k += kRoleThreads / 8)
    copy_async_16(base + Shared::kMaster + (tid / 8 + k) * Shared::kMasterPitch + tid % 8 * 16,
                  master + std::size_t(tid / 8 + k) * kFeatures + column0 + tid % 8 * 4);
  copy_async_commit();
  float scale[8], shift[8], to_stored = 1;
  float scale_of_sums = load_a2_operand<P>(s, column0, chunk, scale, shift);
  const float rate = *s.learning_rate;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const std::uint32_t pairs[4] = {weights[k].x, weights[k].y, weights[k].z, weights[k].w};
#pragma unroll
    for (int n = 0; n < 4; ++n)
      *reinterpret_cast<std::uint32_t*>(shared + Shared::kWeights + n * Shared::kColumnChunk +
                                        (row + k * kRowsAtOnce) * 16 + chunk * 4) = pairs[n];
  }
  copy_async_wait<0>();

  const int tiles = (s.batch + Shared::kSamplesPerTile - 1) / Shared::kSamplesPerTile;
  const int my_chunk = chunk * Shared::kColumnChunk + row * 16;
  const int first_units = warp / 4 * (kHidden / 16) * Shared::kDhChunk;  // of dh's chunks, this warpgroup's
  float dw[16] = {};
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = Shared::stage(tile);
    const TracedItem traced(s, Phase::kFc1Backward, {.first = 16, .points = 8, .from = 8, .to = 12}, tile, tid == 0);
    traced(0);
    arrived.pooled_z2.wait(tile);
    traced(1);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int at = stage + my_chunk + k * kRowsAtOnce * 16;
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
    Fc1TileReady<Shared>::arrive(tile & 1);
    if (tile == 0) {
      wait_for_predecessor();  // so that its successor may start
      trace(s, Phase::kFc1Backward, 3, tid == 0);
    }
    arrived.dh.wait(tile);
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
  if constexpr (P::kScaled) {
    scale_of_sums *= s.scales[kDhScale], to_stored = inverse_of(s.scales[kNextFc1Scale]);
    for (float& sum : dw) sum *= scale_of_sums;
  }

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
  using Shared = Fc1BackwardWgmmaShared;
  __shared__ float inv_sigma[32], warp_sums[kRoleThreads / 32][2][32];
  const int tid = threadIdx.x, lane = tid & 31, warp = uniform(tid >> 5);
  const auto [g, t] = fragment_place(lane);
  const std::uint32_t base = shared_address(shared);
  const int tiles = (s.batch + Shared::kSamplesPerTile - 1) / Shared::kSamplesPerTile;
  const Bn2Operand bn2{s.bn2.values + column0 % kConv2Channels};
  const std::uint64_t weights = wgmma_operand(base + Shared::kWeights, 8 * 16, Shared::kColumnChunk);
  float mean[8], sum[8] = {}, sum_xhat[8] = {}, largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) mean[i] = bn2.mean(t * 8 + i);
  if (tid < 32) inv_sigma[tid] = bn2.inv_sigma(tid);
  wait_for_predecessor();  // head: dh
  trace(s, Phase::kFc1Backward, 1, tid == 0);
  const Dy2Scales scales = dy2_scales<P>(s);

  const int row = warp * 16 + g, my_chunk = t * Shared::kColumnChunk + row * 16;  // and 8 rows later
  T* to = static_cast<T*>(s.dy2) + std::size_t(row) * kFeatures + column0 + t * 8;
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile, to += Shared::kSamplesPerTile * kFeatures) {
    const TracedItem traced(s, Phase::kFc1Backward, {.first = 48, .points = 8, .from = 8, .to = 10}, tile, tid == 0);
    traced(0);
    Fc1TileReady<Shared>::sync(tile & 1);  // a2 is made, and wgrad is done with the last tile
    traced(1);
    const int stage = Shared::stage(tile);
    uint4 pooled_z2[2], a2[2];
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const auto* at = shared + stage + my_chunk + upper * 8 * 16;
      pooled_z2[upper] = *reinterpret_cast<const uint4*>(at + Shared::kPooledZ2);
      a2[upper] = *reinterpret_cast<const uint4*>(at + Shared::kA2);
    }
    arrived.dh.wait(tile);
    traced(2);
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
    for (int upper = 0; upper < 2; ++upper) {
      float x[8], z[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = (P::kScaled ? scales.of_sums : 1.f) * dy[i / 2 * 4 + upper * 2 + i % 2];
      const uint4 dy2 = where_positive<P>(a2[upper], pack<P>(x));
      if (const int sample = tile * Shared::kSamplesPerTile + row + upper * 8; sample < s.batch)
        __stwb(reinterpret_cast<uint4*>(to + upper * 8 * kFeatures), dy2);
      unpack<P>(x, dy2);
      unpack<P>(z, pooled_z2[upper]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sum[i] += x[i];
        sum_xhat[i] = fmaf(x[i], z[i] - mean[i], sum_xhat[i]);
        if constexpr (P::kScaled) largest = fmaxf(largest, fabsf(x[i]));
      }
    }
  }

  store_dy2_sums<P, Fc1Dgrad>(
      s, warp_sums, warp, sum, sum_xhat, [&](int i) { return t * 8 + i; }, largest, scales.dy2, inv_sigma, column0,
      warp, lane);
  trace(s, Phase::kFc1Backward, 7, tid == 0);
}

template <class P>
__device__ __forceinline__ void fc1_copies_wgmma(const State& s, unsigned char* shared,
                                                 Fc1BackwardWgmmaShared::Arrived& arrived, int column0) {
  using T = typename P::T;
  using Shared = Fc1BackwardWgmmaShared;
  const int tid = threadIdx.x - kConvThreads;
  const std::uint32_t base = shared_address(shared);
  const int tiles = (s.batch + Shared::kSamplesPerTile - 1) / Shared::kSamplesPerTile;

  // pooled_z2 does not depend on head, dh does. A thread arrives once its own copies have.
  const auto fetch_pooled = [&](int tile) {
    const int first = tile * Shared::kSamplesPerTile;
    fetch_rows<Shared::kSamplesPerTile, kFc1Columns, 16, Shared::kCopyThreads, Shared::kColumnChunk>(
        base + Shared::stage(tile) + Shared::kPooledZ2,
        static_cast<const T*>(s.pooled_z2) + std::size_t(first) * kFeatures + column0, kFeatures, s.batch - first, tid);
    arrived.pooled_z2[tile].arrive_after_copies();
  };
  const auto fetch_dh = [&](int tile) {
    if (tid == 0) fetch_dh_tile<Shared>(s, base, arrived, tile);
  };
  for (int tile = 0; tile < min(tiles, 2); ++tile) fetch_pooled(tile);
  wait_for_predecessor();  // head: dh
  for (int tile = 0; tile < min(tiles, 2); ++tile) fetch_dh(tile);
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    Fc1TileReady<Shared>::sync(tile & 1);  // both roles are done with the last tile
    if (tile + 2 < tiles) {
      fetch_dh(tile + 2);
      fetch_pooled(tile + 2);
    }
  }
}

#endif

template <class P, class Models>
__global__ void __launch_bounds__(Fc1BackwardWgmmaShared::kThreads, 1) fc1_backward_wgmma_kernel(Models models) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const auto& s = state_of_block(models);
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Fc1BackwardWgmmaShared::Arrived arrived;
  trace(s, Phase::kFc1Backward, 0, threadIdx.x == 0);
  if (threadIdx.x < Fc1BackwardWgmmaShared::kStages) arrived.init(threadIdx.x, Fc1BackwardWgmmaShared::kCopyThreads);
  __syncthreads();
  const int role = uniform(threadIdx.x / kRoleThreads), column0 = blockIdx.x * kFc1Columns;
  if (role == 0)
    fc1_dgrad_wgmma<P>(s, shared, arrived, column0);
  else if (role == 1)
    fc1_weight_gradient_wgmma<P>(s, shared, arrived, column0);
  else
    fc1_copies_wgmma<P>(s, shared, arrived, column0);
#endif
}

}  // namespace mnist::fused
