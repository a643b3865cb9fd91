// fc1_forward: bn2 and relu of the pooled maxima, then fc1, its sum over 3136 features cut into slices.
#pragma once

#include "kernels/device/matrix.cuh"
#include "kernels/fused/fc1_forward/bn2.cuh"
#include "kernels/fused/shared/phase.cuh"

namespace mnist::fused {

// A slice of the features is one half of the channels in some of the cells, so that a block needs the sums of these
// channels only. It goes through shared memory in tiles of 128 bytes a row: two cells in bf16, one in float.
template <class P>
inline constexpr int kTileCells = 128 / (kSliceChannels * int(sizeof(typename P::T)));
inline constexpr int kStagePitch = 128 + 16;  // odd multiple of 16: no bank conflicts
template <int kRows>
inline constexpr int kStageBytes = (kHidden + kRows) * kStagePitch;  // weights, then rows of pooled_z2
inline constexpr int kFc1MostStages = 5;                             // what 152 KiB of shared memory hold
template <int kRows>
inline constexpr int kFc1FewStages = kRows == 16 ? 4 : 3;  // and 99 KiB
template <int kRows, int kFc1Stages>
inline constexpr int kFc1ForwardBytes = kFc1Stages * kStageBytes<kRows>;

// h_slices[slice] = relu(bn2(pooled_z2)) fc1^T over the slice's features. Grid: (tiles of samples, slices); slices 2k
// and 2k + 1 are the halves of the channels in the same cells; a single slice is both of them, one after the other. A
// warp makes up to 32 samples; ldmatrix brings it pooled_z2, which becomes relu(bn2(pooled_z2)) in registers.
template <class P, int kRows, int kFc1Stages, class Models>
__global__ void __launch_bounds__(kThreads, 1) fc1_forward_kernel(Models models) {
  static_assert(kHidden * 8 % kThreads == 0 && kSliceChannels * 8 == kThreads,
                "8 threads copy a row, 8 finish a channel");
  const auto& s = state_of_block(models);
  using T = typename P::T;
  constexpr int kWarpRows = kRows < 32 ? kRows : 32, kRowWarps = kRows / kWarpRows;
  constexpr int kWarpHidden = kHidden * kRowWarps / (kThreads / 32);
  constexpr int kM = kWarpRows / 16, kN = kWarpHidden / 8;
  constexpr int kCellChunks = 8 / kTileCells<P>;      // of 16 bytes, in a tile's row
  constexpr int kLaneValues = 4 / int(sizeof(T));     // of a 16-byte chunk that a lane gets from ldmatrix
  constexpr int kValues = kCellChunks * kLaneValues;  // of a cell
  constexpr int kCopyRows = kThreads / 8;             // that the block copies at a time
  constexpr int kSteps = 128 / 32, kCellSteps = kSteps / kTileCells<P>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Bn2 bn;
  const std::uint32_t base = shared_address(shared);
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const auto [g, t] = fragment_place(lane);
  const int row0 = blockIdx.x * kRows;
  trace(s, Phase::kFc1Forward, 0, tid == 0);
  const int groups = (gridDim.y + 1) / 2, cells = (kCells2 + groups - 1) / groups;
  const int begin = int(blockIdx.y / 2) * cells, end = min(begin + cells, kCells2);
  const int k_tiles = (end - begin + kTileCells<P> - 1) / kTileCells<P>;

  const int warp_row = warp % kRowWarps * kWarpRows, warp_hidden = warp / kRowWarps * kWarpHidden;
  const std::uint32_t weights = base + warp_hidden * kStagePitch + b_lane_offset(lane, kStagePitch);
  const std::uint32_t rows = base + (kHidden + warp_row) * kStagePitch + a_lane_offset(lane, kStagePitch);

  const int chunk = tid & 7, copy_row = tid >> 3;
  const std::uint32_t to = base + copy_row * kStagePitch + chunk * 16;
  // Where this thread's chunk of a tile lies in a row of features. Past the slice's end the last cell is repeated,
  // and not used; so is the last row past the batch's.
  const auto feature = [&](int channel_half, int k_tile) {
    const int cell = min(begin + k_tile * kTileCells<P> + chunk / kCellChunks, end - 1);
    return cell * kConv2Channels + channel_half * kSliceChannels + chunk % kCellChunks * kChunk<P>;
  };
  const auto fetch_weights = [&](int channel_half, int k_tile) {
    const T* from = static_cast<const T*>(s.fc1) + std::size_t(copy_row) * kFeatures + feature(channel_half, k_tile);
    const std::uint32_t into = to + k_tile % kFc1Stages * kStageBytes<kRows>;
#pragma unroll
    for (int row = 0; row < kHidden; row += kCopyRows) copy_async_16(into + row * kStagePitch, from + row * kFeatures);
  };
  const auto fetch_rows = [&](int channel_half, int k_tile) {
    const T* from = static_cast<const T*>(s.pooled_z2) + feature(channel_half, k_tile);
    const std::uint32_t into = to + k_tile % kFc1Stages * kStageBytes<kRows> + kHidden * kStagePitch;
#pragma unroll
    for (int row = 0; row < kRows; row += kCopyRows)
      if (kRows % kCopyRows == 0 || copy_row < kRows)
        copy_async_16(into + row * kStagePitch,
                      from + std::size_t(min(row0 + copy_row + row, s.batch - 1)) * kFeatures);
  };

  float acc[kM][kN][4] = {}, partial[kM][kN][4] = {};
  Fc1ForwardScales<P> scales;
  const bool both = gridDim.y == 1;
  for (int channel_half = both ? 0 : blockIdx.y & 1, last = both ? 1 : channel_half; channel_half <= last;
       ++channel_half) {
#pragma unroll 1
    for (int k_tile = 0; k_tile < min(k_tiles, kFc1Stages); ++k_tile) fetch_weights(channel_half, k_tile);
    const int channel = channel_half * kSliceChannels + (tid >> 3);
    const float gamma = s.parameters[kParameters[kBn2Weight].offset + channel];
    const float beta = s.parameters[kParameters[kBn2Bias].offset + channel];
    scales.begin(s, lane);
    wait_for_predecessor();  // conv_forward: pooled_z2 and the channel sums
    trace(s, Phase::kFc1Forward, 1, tid == 0);
    scales.finish(s, lane);
    // A group of copies a stage, the weights of all in the first. Two tiles go ahead of the channel sums; the others
    // arrive while the statistics are finished.
    constexpr int kEarly = 2;
    static_assert(kFc1Stages > kEarly);
#pragma unroll 1
    for (int k_tile = 0; k_tile < kFc1Stages; ++k_tile) {
      if (k_tile == kEarly) sum_bn2(s, bn, channel_half);
      if (k_tile < k_tiles) fetch_rows(channel_half, k_tile);
      copy_async_commit();
    }
    finish_bn2<P>(s, bn, channel_half, gamma, beta, scales.z2);
    trace(s, Phase::kFc1Forward, 2, tid == 0);
    float scale[kValues], shift[kValues];  // of the channels that this lane gets from ldmatrix
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int at = i / kLaneValues * kChunk<P> + kLaneValues * t + i % kLaneValues;
      scale[i] = bn.scale[at];
      shift[i] = bn.shift[at];
      if constexpr (P::kScaled) scale[i] *= inverse_of(scales.a2), shift[i] *= inverse_of(scales.a2);
    }

#pragma unroll 1
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      copy_async_wait<kFc1Stages - 2>();
      __syncthreads();  // this stage is complete, and no warp reads the one before any more
      if (k_tile > 0) {
        if (const int next = k_tile - 1 + kFc1Stages; next < k_tiles) {
          fetch_weights(channel_half, next);
          fetch_rows(channel_half, next);
        }
        copy_async_commit();
      }
      const std::uint32_t at = k_tile % kFc1Stages * kStageBytes<kRows>;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step > 0 && step % kCellSteps == 0 && begin + k_tile * kTileCells<P> + step / kCellSteps >= end) break;
        std::uint32_t w[kN / 2][4];
#pragma unroll
        for (int n = 0; n < kN / 2; ++n) load_matrix_x4(w[n], weights + at + n * 16 * kStagePitch + step * 32);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          std::uint32_t a[4];
          load_matrix_x4(a, rows + at + m * 16 * kStagePitch + step * 32);
#pragma unroll
          for (int i = 0; i < 4; ++i)
            a[i] = bn2_relu<P>(a[i], scale, shift, (2 * step + i / 2) % kCellChunks * kLaneValues);
#pragma unroll
          for (int n = 0; n < kN; ++n) P::mma(partial[m][n], a, w[n / 2][n % 2 * 2], w[n / 2][n % 2 * 2 + 1]);
        }
      }
      if constexpr (P::kDrainAccumulators) {
        add_accumulators(acc, partial);
        clear_accumulators(partial);
      }
    }
    if (channel_half < last) __syncthreads();  // before the buffers and bn are written again
  }
  auto& sums = P::kDrainAccumulators ? acc : partial;
  if constexpr (P::kScaled) {
    const float scale = scales.a2 * scales.fc1;
#pragma unroll
    for (int i = 0; i < kM * kN; ++i)
      for (float& sum : sums[i / kN][i % kN]) sum *= scale;
  }
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int row = row0 + warp_row + m * 16 + g + upper * 8;
        if (row < s.batch)
          *reinterpret_cast<float2*>(s.h_slices + (std::size_t(blockIdx.y) * s.batch + row) * kHidden + warp_hidden +
                                     n * 8 + 2 * t) = make_float2(sums[m][n][2 * upper], sums[m][n][2 * upper + 1]);
      }
  trace(s, Phase::kFc1Forward, 7, tid == 0);
}

}  // namespace mnist::fused
