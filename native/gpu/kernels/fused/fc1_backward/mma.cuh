// fc1_backward: dy2 = relu's mask of (dh fc1), its channel sums for bn2, and fc1.weight -= lr * dh^T a2, in place.
//
// A block owns 32 columns of fc1.weight: half of the channels of one pooled cell. It alone reads or writes them in
// this phase, so the update needs no second pass. The block walks through the batch in tiles of kSamplesPerTile
// samples, fetched two tiles ahead, or one where shared memory holds no more. Two roles of 8 warps make the two
// products of a tile at the same time, so that one role's matrix products cover the other's loads and arithmetic:
//   dgrad   dh times the weights: dy2 and its channel sums
//   wgrad   a2 = relu(bn2(pooled_z2)), then dh^T times a2 and the update of the weights
#pragma once

#include "kernels/device/matrix.cuh"
#include "kernels/fused/fc1_backward/columns.cuh"

namespace mnist::fused {

// Tile n is in stage n % kStages, and its copies start kStages - 1 tiles ahead. 3 stages take 145 KiB, 2 take 99.
template <class Policy, int kStageCount>
struct Fc1BackwardShared {
  using P = Policy;
  static constexpr int kThreads = kConvThreads, kSize = sizeof(typename P::T);
  static constexpr int kSamplesPerTile = kSize == 2 ? 128 : 64;
  static constexpr int kStages = kStageCount, kAhead = kStages - 1;
  static constexpr int kDhPitch = kHidden * kSize + 16;  // 128 values of a sample
  static constexpr int kCellPitch = 32 * kSize + 16;     // 32 values of a sample
  static constexpr int kDhBytes = kSamplesPerTile * kDhPitch, kCellBytes = kSamplesPerTile * kCellPitch;
  struct Memory {
    unsigned char dh[kStages][kDhBytes];
    unsigned char pooled_z2[kStages][kCellBytes];
    unsigned char a2[kCellBytes];
  };
  static constexpr int kDh = offsetof(Memory, dh), kPooledZ2 = offsetof(Memory, pooled_z2), kA2 = offsetof(Memory, a2);
  static constexpr int kBytes = sizeof(Memory);
  static constexpr int kFixed = sizeof(float[32]) + (kStages == 2 ? 0 : sizeof(float[kSamplesPerTile / 16][2][32]));

  static constexpr int kMasterPitch = 32 * 4 + 32;  // 32 floats of a hidden unit, when a stage of dh holds the weights
  static_assert(kHidden * kMasterPitch <= kDhBytes);

  static __device__ __forceinline__ int dh(int n) { return kDh + n % kStages * kDhBytes; }
  static __device__ __forceinline__ int pooled_z2(int n) { return kPooledZ2 + n % kStages * kCellBytes; }
};

// DgradOnly and WgradOnly belong to one role; at the other barriers one role waits and the other only arrives. A tile
// begins when both roles are at it: dgrad waits for wgrad at TileArrived, then releases it at TileReleased. A role
// comes to the next tile's first barrier through this tile's second one, so neither gets a phase ahead.
using TileArrived = NamedBarrier<0, kConvThreads>;
using A2Ready = NamedBarrier<1, kConvThreads>;
using DgradOnly = NamedBarrier<2, kRoleThreads>;
using WgradOnly = NamedBarrier<3, kRoleThreads>;
using TileReleased = NamedBarrier<4, kConvThreads>;

// A permutation of every 8 rows: 0 4 1 5 2 6 3 7. Rows of pooled_z2 and a2 four apart lie in opposite halves of the
// banks, so a 16-byte access has no conflicts when every four lanes share a row.
__device__ __forceinline__ int spread_row(int i) { return (i & ~7) | (i & 1) << 2 | (i >> 1 & 3); }

// Fetches dh of tile n, by the whole block. Commits a group even if there is no such tile: the waits count groups.
template <class Shared>
__device__ __forceinline__ void fetch_dh(const State& s, std::uint32_t base, int n) {
  using P = typename Shared::P;
  const int first = n * Shared::kSamplesPerTile;
  if (first < s.batch)
    fetch_rows<Shared::kSamplesPerTile, kHidden, Shared::kDhPitch, kConvThreads>(
        base + Shared::dh(n), static_cast<const typename P::T*>(s.dh) + std::size_t(first) * kHidden, kHidden,
        s.batch - first, threadIdx.x);
  copy_async_commit();
}

// ---- The dgrad role -------------------------------------------------------------------------------------------------

// Sums of dy2 and of dy2 * xhat, [row group of a tile][which][column]: in memory of their own, or, where shared memory
// is short, in the stage behind the last tile's, which holds nothing any more.
template <class Shared>
__device__ __forceinline__ auto& dgrad_sums(unsigned char* shared, int batch) {
  using Sums = float[Shared::kSamplesPerTile / 16][2][32];
  if constexpr (Shared::kStages == 2) {
    static_assert(sizeof(Sums) <= Shared::kCellBytes);
    return *reinterpret_cast<Sums*>(shared + Shared::pooled_z2((batch - 1) / Shared::kSamplesPerTile + 1));
  } else {
    __shared__ Sums sums;
    return sums;
  }
}

// A warp makes 16 samples by 8 * kGroups columns. Its share of the weights stays in registers, so that a product needs
// one load, of dh. Column c of the product's group j is column c * kGroups + j of the warp: a lane's B operands are
// then neighbours in fc1's rows, and its results are 16 bytes of two samples, columns t * kChunk .. of rows g and g
// + 8.
template <class Shared>
__device__ __forceinline__ void fc1_dgrad(const State& s, unsigned char* shared, int column0) {
  using P = typename Shared::P;
  using T = typename P::T;
  constexpr int kSamples = Shared::kSamplesPerTile, kSteps = kHidden / kStep<P>;
  constexpr int kRowGroups = kSamples / 16, kGroups = kRowGroups / 2, kValues = kChunk<P>;
  static_assert(kValues == 2 * kGroups && kGroups * sizeof(T) == sizeof(uint2));
  __shared__ float inv_sigma[32];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const auto [g, t] = fragment_place(lane);
  const int row_group = warp % kRowGroups, column = warp / kRowGroups * 8 * kGroups, my_column = column + t * kValues;
  const Bn2Operand bn2{s.bn2.values + column0 % kConv2Channels};
  const std::uint32_t base = shared_address(shared);

  std::uint32_t weights[kSteps][kGroups][2];
  {
    const T* from = static_cast<const T*>(s.fc1) + column0 + column + g * kGroups;
    const auto load = [&](int hidden) {
      return *reinterpret_cast<const uint2*>(from + std::size_t(hidden) * kFeatures);
    };
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int k = 0; k < 2; ++k)
        if constexpr (Shared::kSize == 2) {
          const uint2 even = load(step * 16 + k * 8 + 2 * t), odd = load(step * 16 + k * 8 + 2 * t + 1);
          weights[step][0][k] = __byte_perm(even.x, odd.x, 0x5410);
          weights[step][1][k] = __byte_perm(even.x, odd.x, 0x7632);
          weights[step][2][k] = __byte_perm(even.y, odd.y, 0x5410);
          weights[step][3][k] = __byte_perm(even.y, odd.y, 0x7632);
        } else {
          const uint2 pair = load(step * 8 + k * 4 + t);
          weights[step][0][k] = pair.x;
          weights[step][1][k] = pair.y;
        }
  }
  float mean[kValues], sum[kValues] = {}, sum_xhat[kValues] = {}, largest = 0;
#pragma unroll
  for (int v = 0; v < kValues; ++v) mean[v] = bn2.mean(my_column + v);
  if (tid < 32) inv_sigma[tid] = bn2.inv_sigma(tid);
  wait_for_predecessor();  // head: dh
  trace(s, Phase::kFc1Backward, 1, tid == 0);
  fetch_dh<Shared>(s, base, 0);
  if constexpr (Shared::kAhead == 2) fetch_dh<Shared>(s, base, 1);
  const Dy2Scales scales = dy2_scales<P>(s);

  const int row = row_group * 16 + spread_row(g);  // of the tile, and row + 8
  const int a_row = row_group * 16 + spread_row(lane & 7) + (lane >> 3 & 1) * 8;
  const std::uint32_t a_at = base + a_row * Shared::kDhPitch + (lane >> 4) * 16;
  const int cell_at = row * Shared::kCellPitch + my_column * Shared::kSize;
  for (int tile = 0, first = 0; first < s.batch; ++tile, first += kSamples) {
    copy_async_wait<Shared::kAhead - 1>();
    TileArrived::sync();  // this tile has arrived, and wgrad is done with the last one
    TileReleased::arrive();
    fetch_dh<Shared>(s, base, tile + Shared::kAhead);

    const bool has_samples = first + row_group * 16 < s.batch;
    float acc[kGroups][4] = {}, drained[kGroups][4] = {};
    if (has_samples) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t a[4];
        load_matrix_x4(a, a_at + Shared::dh(tile) + step * 32);
#pragma unroll
        for (int j = 0; j < kGroups; ++j) P::mma(acc[j], a, weights[step][j][0], weights[step][j][1]);
        if (P::kDrainAccumulators && step % 4 == 3)
#pragma unroll
          for (int i = 0; i < 4 * kGroups; ++i) {
            drained[i / 4][i % 4] += acc[i / 4][i % 4];
            acc[i / 4][i % 4] = 0.f;
          }
      }
    }
    A2Ready::sync();  // wgrad has made a2
    if (has_samples) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = cell_at + half * 8 * Shared::kCellPitch;
        const auto cells = [&](int offset) { return *reinterpret_cast<const uint4*>(shared + offset + at); };
        float x[kValues], e[kValues];
#pragma unroll
        for (int v = 0; v < kValues; ++v)
          x[v] = (P::kScaled ? scales.of_sums : 1.f) *
                 (P::kDrainAccumulators ? drained : acc)[v % kGroups][2 * half + v / kGroups];
        const uint4 dy2 = where_positive<P>(cells(Shared::kA2), pack<P>(x));
        const int sample = first + row + half * 8;
        if (sample < s.batch)
          __stwb(
              reinterpret_cast<uint4*>(static_cast<T*>(s.dy2) + std::size_t(sample) * kFeatures + column0 + my_column),
              dy2);
        unpack<P>(x, dy2);
        unpack<P>(e, cells(Shared::pooled_z2(tile)));
#pragma unroll
        for (int v = 0; v < kValues; ++v) {
          sum[v] += x[v];
          sum_xhat[v] = fmaf(x[v], e[v] - mean[v], sum_xhat[v]);
          if constexpr (kHasScales<P>) largest = fmaxf(largest, fabsf(x[v]));
        }
      }
    }
  }
  trace(s, Phase::kFc1Backward, 2, tid == 0);
  if constexpr (Shared::kStages == 2) TileReleased::arrive();  // the last tile: wgrad takes its place

  store_dy2_sums<P, DgradOnly>(
      s, dgrad_sums<Shared>(shared, s.batch), row_group, sum, sum_xhat, [&](int v) { return my_column + v; }, largest,
      scales.dy2, inv_sigma, column0, warp, lane);
  trace(s, Phase::kFc1Backward, 7, tid == 0);
}

// ---- The wgrad role -------------------------------------------------------------------------------------------------

// a2 = relu(bn2(pooled_z2)) and fc1.weight's gradient and update. A warp makes 32 hidden units by all 32 columns over
// every other k-step; the two warps of the same hidden units add up at the end, and each updates 16 of the 32.
template <class Shared>
__device__ __forceinline__ void fc1_weight_gradient(const State& s, unsigned char* shared, int column0) {
  using P = typename Shared::P;
  using T = typename P::T;
  constexpr int kSamples = Shared::kSamplesPerTile, kRowChunks = 32 * Shared::kSize / 16,
                kRowsAtOnce = kRoleThreads / kRowChunks;
  constexpr int kSteps = kSamples / kStep<P>, kUnroll = P::kDrainAccumulators ? 1 : kSteps / 2;  // as registers allow
  const int tid = threadIdx.x - kRoleThreads, lane = tid & 31, warp = tid >> 5;
  const auto [g, t] = fragment_place(lane);
  const int hidden = warp % 4 * 32, parity = warp / 4;
  const std::uint32_t base = shared_address(shared);
  const int tiles = (s.batch + kSamples - 1) / kSamples;
  float* const master = s.parameters + kParameters[kFc1Weight].offset;

  // Fetches what does not depend on head: pooled_z2, and after the last tile the weights to update.
  const auto fetch_rest = [&](int n) {
    const int first = n * kSamples;
    if (n < tiles)
      fetch_rows<kSamples, 32, Shared::kCellPitch, kRoleThreads>(
          base + Shared::pooled_z2(n), static_cast<const T*>(s.pooled_z2) + std::size_t(first) * kFeatures + column0,
          kFeatures, s.batch - first, tid);
    else if (n == tiles)
      fetch_rows<kHidden, 32, Shared::kMasterPitch, kRoleThreads>(base + Shared::dh(n), master + column0, kFeatures,
                                                                  kHidden, tid);
  };
  fetch_rest(0);
  if constexpr (Shared::kAhead == 2) fetch_rest(1);
  const int chunk = tid % kRowChunks;
  float scale[kChunk<P>], shift[kChunk<P>], to_stored = 1;
  float scale_of_sums = load_a2_operand<P>(s, column0, chunk, scale, shift);
  const float rate = *s.learning_rate;
  wait_for_predecessor();  // head: dh
  fetch_dh<Shared>(s, base, 0);
  if constexpr (Shared::kAhead == 2) fetch_dh<Shared>(s, base, 1);
  if constexpr (P::kScaled) scale_of_sums *= s.scales[kDhScale], to_stored = inverse_of(s.scales[kNextFc1Scale]);

  float dw[2][4][4] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    copy_async_wait<Shared::kAhead - 1>();
    TileArrived::arrive();
    TileReleased::sync();  // this tile has arrived, and dgrad is done with the last one
    fetch_rest(tile + Shared::kAhead);
    fetch_dh<Shared>(s, base, tile + Shared::kAhead);
#pragma unroll
    for (int k = 0; k < kSamples / kRowsAtOnce; ++k) {
      const int at = spread_row(tid / kRowChunks + k * kRowsAtOnce) * Shared::kCellPitch + chunk * 16;
      float x[kChunk<P>];
      unpack<P>(x, *reinterpret_cast<const uint4*>(shared + Shared::pooled_z2(tile) + at));
      *reinterpret_cast<uint4*>(shared + Shared::kA2 + at) = bn2_relu<P>(x, scale, shift);
    }
    A2Ready::arrive();
    WgradOnly::sync();  // a2 is complete

    const int steps = min((s.batch - tile * kSamples + kStep<P> - 1) / kStep<P>, kSteps);  // that have a sample
    float sums[2][4][4] = {};
    const auto multiply = [&](int step) {
      if constexpr (Shared::kSize == 2) {
        std::uint32_t a[2][4], b[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m)
          load_matrix_x4_trans(a[m], base + Shared::dh(tile) +
                                         (step * 16 + (lane & 7) + (lane >> 4) * 8) * Shared::kDhPitch +
                                         (hidden + m * 16) * 2 + (lane >> 3 & 1) * 16);
#pragma unroll
        for (int n = 0; n < 2; ++n)
          load_matrix_x4_trans(b[n], base + Shared::kA2 + step * 16 * Shared::kCellPitch +
                                         a_lane_offset(lane, Shared::kCellPitch) + n * 32);
#pragma unroll
        for (int i = 0; i < 8; ++i)
          P::mma(sums[i / 4][i % 4], a[i / 4], b[i % 4 / 2][i % 2 * 2], b[i % 4 / 2][i % 2 * 2 + 1]);
      } else {
        // The product's k runs over samples 2t and 2t+1 instead of t and t+4: rows two apart hit distinct banks.
        std::uint32_t a[2][4];
#pragma unroll
        for (int i = 0; i < 8; ++i)
          a[i / 4][i % 4] = load_shared_32(base + Shared::dh(tile) + (step * 8 + 2 * t + i % 4 / 2) * Shared::kDhPitch +
                                           (hidden + i / 4 * 16 + i % 2 * 8 + g) * 4);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const std::uint32_t at = base + Shared::kA2 + (step * 8 + 2 * t) * Shared::kCellPitch + (n * 8 + g) * 4;
          const std::uint32_t b[2] = {load_shared_32(at), load_shared_32(at + Shared::kCellPitch)};
#pragma unroll
          for (int m = 0; m < 2; ++m) P::mma(sums[m][n], a[m], b[0], b[1]);
        }
      }
    };
    if (steps == kSteps) {
#pragma unroll(kUnroll)
      for (int k = 0; k < kSteps / 2; ++k) multiply(2 * k + parity);
    } else {
#pragma unroll 1
      for (int step = parity; step < steps; step += 2) multiply(step);
    }
    add_accumulators(dw, sums);
  }

  trace(s, Phase::kFc1Backward, 9, tid == 0);
  // dw[0] becomes the 16 units that this warp updates, dw[1] the other warp's.
  if (parity == 1)
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float other = dw[0][i / 4][i % 4];
      dw[0][i / 4][i % 4] = dw[1][i / 4][i % 4];
      dw[1][i / 4][i % 4] = other;
    }
  // The stage after the weights' is free: its tile, if there was one, came before the last. Of 2 stages it is the last.
  if constexpr (Shared::kStages == 2) TileReleased::sync();
  auto* halves = reinterpret_cast<float4*>(shared + Shared::dh(tiles + 1)) + lane;
#pragma unroll
  for (int n = 0; n < 4; ++n)
    halves[(warp * 4 + n) * 32] = make_float4(dw[1][n][0], dw[1][n][1], dw[1][n][2], dw[1][n][3]);
  copy_async_wait<0>();
  WgradOnly::sync();  // the halves and the weights are complete
  float largest = 0;  // weight
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float4 other = halves[((warp ^ 4) * 4 + n) * 32];
    float2 d[2] = {make_float2(dw[0][n][0] + other.x, dw[0][n][1] + other.y),
                   make_float2(dw[0][n][2] + other.z, dw[0][n][3] + other.w)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int unit = hidden + parity * 16 + g + i * 8, column = n * 8 + 2 * t;
      const std::size_t at = std::size_t(unit) * kFeatures + column0 + column;
      if constexpr (P::kScaled) d[i].x *= scale_of_sums, d[i].y *= scale_of_sums;
      const auto* weights =
          reinterpret_cast<const float2*>(shared + Shared::dh(tiles) + unit * Shared::kMasterPitch + column * 4);
      update_fc1<P>(s, master, at, [&] { return *weights; }, d[i], rate, to_stored, largest);
    }
  }
  store_largest_fc1<P>(s, largest, warp, lane);
  trace(s, Phase::kFc1Backward, 8, tid == 0);
}

template <class P, int kStages, class Models>
__global__ void __launch_bounds__(kConvThreads) fc1_backward_kernel(Models models) {
  const auto& s = state_of_block(models);
  using Shared = Fc1BackwardShared<P, kStages>;
  extern __shared__ __align__(128) unsigned char shared[];
  trace(s, Phase::kFc1Backward, 0, threadIdx.x == 0);
  if (threadIdx.x < kRoleThreads)
    fc1_dgrad<Shared>(s, shared, blockIdx.x * 32);
  else
    fc1_weight_gradient<Shared>(s, shared, blockIdx.x * 32);
}

}  // namespace mnist::fused
