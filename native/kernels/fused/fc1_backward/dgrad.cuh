// The dgrad role of fc1_backward: dy2 = relu's mask of (dh fc1), and its channel sums for bn2.
#pragma once

#include "kernels/device/barriers.cuh"
#include "kernels/device/dependent_launch.cuh"
#include "kernels/device/lane.cuh"
#include "kernels/device/matrix.cuh"
#include "kernels/fused/fc1_backward/batch_tiles.cuh"
#include "kernels/fused/shared/fp16_scales.cuh"
#include "kernels/fused/shared/trace.cuh"
#include "kernels/fused/shared/values.cuh"

namespace mnist::fused {

// Sums of dy2 and of dy2 * xhat by row group of a tile and column: in a place of their own, or, where shared memory is
// short, in the stage behind the last tile's, which holds nothing any more.
template <class Shared>
__device__ __forceinline__ auto& dgrad_sums(unsigned char* shared, int batch) {
  using Sums = float[Shared::kRows / 16][2][32];
  if constexpr (Shared::kStages == 2) {
    static_assert(sizeof(Sums) <= Shared::kCellBytes);
    return *reinterpret_cast<Sums*>(shared + Shared::pooled_z2((batch - 1) / Shared::kRows + 1));
  } else {
    __shared__ Sums sums;
    return sums;
  }
}

// dy2 and its channel sums. A warp makes 16 samples by 8 * kGroups columns. Its share of the weights stays in
// registers, so that a product needs one load, of dh.
//
// Column c of the product's group j is column c * kGroups + j of the warp. A lane's B operands are then neighbours in
// fc1's rows, and its results are 16 bytes of two samples: columns t * kChunk .. of rows g and g + 8.
template <class Shared>
__device__ __forceinline__ void fc1_dgrad(const State& s, unsigned char* shared, int column0) {
  using P = typename Shared::P;
  using T = typename P::T;
  constexpr int kRows = Shared::kRows, kSteps = kHidden / kStep<P>;
  constexpr int kRowGroups = kRows / 16, kGroups = kRowGroups / 2, kValues = kChunk<P>;
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
  for (int tile = 0, first = 0; first < s.batch; ++tile, first += kRows) {
    copy_async_wait<Shared::kAhead - 1>();
    TileArrived::sync();  // this tile has arrived, and the last one's readers are done
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
            drained[i >> 2][i & 3] += acc[i >> 2][i & 3];
            acc[i >> 2][i & 3] = 0.f;
          }
      }
    }
    A2Ready::sync();  // a2
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
          if constexpr (P::kFp16Terms > 0 || P::kScaled) largest = fmaxf(largest, fabsf(x[v]));
        }
      }
    }
  }
  trace(s, Phase::kFc1Backward, 2, tid == 0);
  if constexpr (Shared::kStages == 2) TileReleased::arrive();  // the last tile: wgrad takes its place

  auto& warp_sums = dgrad_sums<Shared>(shared, s.batch);
#pragma unroll
  for (int v = 0; v < kValues; ++v) {
#pragma unroll
    for (int mask = 4; mask < 32; mask <<= 1) {
      sum[v] += __shfl_xor_sync(0xffffffffu, sum[v], mask);
      sum_xhat[v] += __shfl_xor_sync(0xffffffffu, sum_xhat[v], mask);
    }
    if (g == 0) {
      warp_sums[row_group][0][my_column + v] = sum[v];
      warp_sums[row_group][1][my_column + v] = sum_xhat[v];
    }
  }
  if constexpr (P::kFp16Terms > 0 || P::kScaled) {
    static_assert(kGradientWarps == kRoleThreads / 32);
    largest = warp_max(largest);
    if constexpr (P::kScaled) largest *= scales.dy2;
    if (lane == 0) s.dy2_max[blockIdx.x * kGradientWarps + warp] = largest;
  }
  DgradOnly::sync();
  if (tid < 64) {
    const int which = tid >> 5;
    float total = 0;
#pragma unroll
    for (int k = 0; k < kRowGroups; ++k) total += warp_sums[k][which][lane];
    if constexpr (P::kScaled) total *= scales.dy2;
    s.dy2_sums[which * kFeatures + column0 + lane] = which == 0 ? total : total * inv_sigma[lane];
  }
  trace(s, Phase::kFc1Backward, 7, tid == 0);
}

}  // namespace mnist::fused
