// fc1_forward on Hopper, for large batches: as mma.cuh, by wgmma; in fp32 of fp16 terms (see shared/scales.cuh).
#pragma once

#include "kernels/device/registers.cuh"
#include "kernels/device/wgmma.cuh"
#include "kernels/fused/fc1_forward/mma.cuh"

namespace mnist::fused {

inline constexpr int kFc1WgmmaThreads = kThreads + kGroupThreads;  // two warpgroups multiply, one copies

// In fp32 consumers keep the sums twice, and the warps that copy need few registers.
inline constexpr int kFc1CopyRegisters = 56, kFc1SumRegisters = 224;
static_assert(kFc1CopyRegisters + 2 * kFc1SumRegisters == 3 * 168);

// As many as leave shared memory for head's blocks on the same multiprocessor.
template <int kRows>
inline constexpr int kFc1WgmmaStages = kRows == 64 ? 6 : 5;

// A stage holds a tile of the weights, then rows of pooled_z2, both swizzled: see wgmma_swizzled(). In fp32 a row of
// weights is the 32 features of a tile twice, their big terms and their small ones.
template <int kRows, int kStageCount>
struct Fc1WgmmaShared {
  static constexpr int kStages = kStageCount, kWeightBytes = kHidden * 128;
  struct Memory {
    unsigned char stages[kStages][kWeightBytes + kRows * 128];
    Bn2 bn;
    Ring<kStages> full, empty;
  };
  static constexpr int kBytes = sizeof(Memory);
  // Groups of 64 samples that a block has; with one group its two warpgroups take turns at the tiles.
  static constexpr int kRowGroups = kRows / 64, kTurns = 2 / kRowGroups;
};

// Tiles, slices and grid are those of fc1_forward_kernel(). A warp multiplies 16 samples by all hidden units, so that
// each value passes through bn2 and relu once in a slice: it comes by ldmatrix and goes on as an operand in registers.
// What an SM takes from L2 is the limit: more samples a block read the weights less often.
//
// In fp32 a tile is a group of columns with one scale. Its small products come first, and its sums leave the tensor
// cores, which truncate as they add, when they are multiplied with that scale.
template <class P, int kRows, int kStageCount, class Models>
__global__ void __launch_bounds__(kFc1WgmmaThreads, 1) fc1_forward_wgmma_kernel(Models models) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const auto& s = state_of_block(models);
  static_assert(kHidden == 128, "acc is 64 samples by all hidden units");
  using T = typename P::T;
  using Shared = Fc1WgmmaShared<kRows, kStageCount>;
  using Consumers = NamedBarrier<2, kThreads>;
  constexpr int kStages = Shared::kStages, kTurns = Shared::kTurns, kCells = kTileCells<P>, kCellChunks = 8 / kCells;
  constexpr bool kTerms = P::kFp16Terms > 0;
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& memory = *reinterpret_cast<typename Shared::Memory*>(shared);
  const int tid = threadIdx.x, lane = tid & 31, warp = uniform(tid >> 5);
  const int row0 = blockIdx.x * kRows;
  const int pairs = (gridDim.y + 1) / 2, cells = (kCells2 + pairs - 1) / pairs;  // of slices
  const int begin = int(blockIdx.y / 2) * cells, end = min(begin + cells, kCells2);
  const int k_tiles = (end - begin + kCells - 1) / kCells;
  const bool both = gridDim.y == 1;
  const int first_half = both ? 0 : blockIdx.y & 1, last_half = both ? 1 : first_half;

  if (tid < kStages) {
    memory.full.stages[tid].init(kGroupThreads);
    memory.empty.stages[tid].init(kThreads / 32 / kTurns);
  }
  __syncthreads();

  if (warp >= kThreads / 32) {  // copies
    if constexpr (kTerms) give_registers<kFc1CopyRegisters>();
    const int chunk = tid & 7, copy_row = tid % kGroupThreads >> 3;
    constexpr int kCopyRows = kGroupThreads / 8;  // at a time
    const std::uint32_t to = shared_address(shared) + copy_row * 128 + (chunk ^ (copy_row & 7)) * 16;
    // As in fc1_forward_kernel(): past the end of the slice or the batch the last cell or sample is repeated.
    const auto feature = [&](int channel_half, int k_tile) {
      const int cell = min(begin + k_tile * kCells + chunk / kCellChunks, end - 1);
      return cell * kConv2Channels + channel_half * kSliceChannels + chunk % kCellChunks * kChunk<P>;
    };
    const auto fetch_weights = [&](int channel_half, int k_tile, int stage) {
      const auto copy = [&](const auto* from) {
#pragma unroll
        for (int row = 0; row < kHidden; row += kCopyRows)
          copy_async_16(to + stage * int(sizeof memory.stages[0]) + row * 128, from + row * kFeatures);
      };
      if constexpr (kTerms)
        copy(static_cast<const __half*>(s.fc1_copy) +
             fc1_term_at(chunk / 4, copy_row,
                         (begin + k_tile) * kConv2Channels + channel_half * kSliceChannels + chunk % 4 * 8));
      else
        copy(static_cast<const T*>(s.fc1) + std::size_t(copy_row) * kFeatures + feature(channel_half, k_tile));
    };
    const auto fetch_rows = [&](int channel_half, int k_tile, int stage) {
      const T* from = static_cast<const T*>(s.pooled_z2) + feature(channel_half, k_tile);
#pragma unroll
      for (int row = 0; row < kRows; row += kCopyRows)
        copy_async_16(to + stage * int(sizeof memory.stages[0]) + Shared::kWeightBytes + row * 128,
                      from + std::size_t(min(row0 + copy_row + row, s.batch - 1)) * kFeatures);
    };
    const int early = min(kStages, k_tiles);
#pragma unroll 1
    for (int tile = 0; tile < early; ++tile) fetch_weights(first_half, tile, tile);
    wait_for_predecessor();  // conv_forward: pooled_z2
    int tile = 0;
#pragma unroll 1
    for (int channel_half = first_half; channel_half <= last_half; ++channel_half)
#pragma unroll 1
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++tile) {
        const int stage = memory.full.stage(tile);
        if (tile >= kStages) memory.empty.wait(tile - kStages);
        if (tile >= early) fetch_weights(channel_half, k_tile, stage);
        fetch_rows(channel_half, k_tile, stage);
        memory.full[tile].arrive_after_copies();
      }
    copy_async_commit();
    copy_async_wait<0>();  // no copy outlives its warp
    return;
  }

  if constexpr (kTerms) take_registers<kFc1SumRegisters>();
  const auto [g, t] = fragment_place(lane);
  const int group = warp >> 2, turn = group % kTurns;
  const int group_row = group / kTurns * 64 + (warp & 3) * 16;  // this warp's first
  // Its row of the operand that ldmatrix brings; the swizzled place of a k-step's chunks is an exclusive or away.
  const std::uint32_t rows =
      shared_address(shared) + Shared::kWeightBytes + (group_row + (lane & 15)) * 128 + ((lane >> 4) ^ (lane & 7)) * 16;
  const std::uint64_t weights = wgmma_swizzled(shared_address(shared));
  float acc[64] = {};
  [[maybe_unused]] float drained[64] = {};
  Fc1ForwardScales<P> scales;
  for (int channel_half = first_half; channel_half <= last_half; ++channel_half) {
    const int channel = channel_half * kSliceChannels + (tid >> 3);
    const float gamma = s.parameters[kParameters[kBn2Weight].offset + channel];
    const float beta = s.parameters[kParameters[kBn2Bias].offset + channel];
    if (channel_half == first_half) {
      scales.begin(s, lane);
      if constexpr (kTerms) scales.a2 = a2_terms_scale(s, lane);
      wait_for_predecessor();  // conv_forward: the channel sums
      scales.finish(s, lane);
    } else {
      Consumers::sync();  // before bn is written again
    }
    sum_bn2(s, memory.bn, channel_half);
    finish_bn2<P>(s, memory.bn, channel_half, gamma, beta, scales.z2);
    float scale[8], shift[8];  // of the channels that this lane gets from ldmatrix
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = kTerms ? i * 4 + t : i / 2 * 8 + 2 * t + i % 2;
      scale[i] = memory.bn.scale[at];
      shift[i] = memory.bn.shift[at];
      if constexpr (P::kScaled || kTerms) scale[i] *= inverse_of(scales.a2), shift[i] *= inverse_of(scales.a2);
    }

    const int first_tile = (channel_half - first_half) * k_tiles;
#pragma unroll 1
    for (int k_tile = turn; k_tile < k_tiles; k_tile += kTurns) {
      const int tile = first_tile + k_tile, stage = memory.full.stage(tile);
      memory.full.wait(tile);
      wgmma_publish();  // what cp.async brought
      std::uint32_t a[4][4];
      const std::uint64_t b = weights + stage * int(sizeof memory.stages[0]) / 16;
      if constexpr (kTerms) {  // a: the big terms of 16 features and of 16 more, then the small ones
        const float scale_of_sums =
            scales.a2 * s.fc1_scales[(begin + k_tile) * 2 + channel_half];  // fc1_backward has left it long ago
#pragma unroll
        for (int eight = 0; eight < 4; ++eight) {
          std::uint32_t x[4];  // of two rows: features t and t + 4
          load_matrix_x4(x, (rows + stage * int(sizeof memory.stages[0])) ^ (eight * 32));
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const auto relu = [&](int k) {
              return relu_keep_nan(fmaf(scale[2 * eight + k], __uint_as_float(x[2 * k + i]), shift[2 * eight + k]));
            };
            split_bounded(relu(0), relu(1), a[eight / 2][eight % 2 * 2 + i], a[2 + eight / 2][eight % 2 * 2 + i]);
          }
        }
        wgmma_fence();
#pragma unroll
        for (int product = 0; product < 3; ++product)
#pragma unroll
          for (int step = 0; step < 2; ++step)
            wgmma<__half>(acc, a[step + (product == 0 ? 2 : 0)], b + (step + (product == 1 ? 2 : 0)) * 2,
                          product + step > 0);
        wgmma_commit();
        wgmma_wait<0>();
        if (lane == 0) memory.empty[tile].arrive();
        wgmma_results(acc);
#pragma unroll
        for (int i = 0; i < 64; ++i) drained[i] = fmaf(scale_of_sums, acc[i], drained[i]);
      } else {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          load_matrix_x4(a[step], (rows + stage * int(sizeof memory.stages[0])) ^ (step * 32));
#pragma unroll
          for (int i = 0; i < 4; ++i) a[step][i] = bn2_relu<P>(a[step][i], scale, shift, (2 * step + i / 2) % 4 * 2);
        }
        const auto multiply = [&](auto steps) {
          wgmma_fence();
#pragma unroll
          for (int step = 0; step < steps(); ++step) wgmma<T>(acc, a[step], b + step * 2, true);
          wgmma_commit();
        };
        if (begin + k_tile * kCells + 1 < end)
          multiply(std::integral_constant<int, 4>());
        else  // its second cell does not exist
          multiply(std::integral_constant<int, 2>());
        wgmma_wait<0>();
        if (lane == 0) memory.empty[tile].arrive();
      }
    }
  }
  if constexpr (kTerms) {
#pragma unroll
    for (int i = 0; i < 64; ++i) acc[i] = drained[i];
  } else {
    wgmma_results(acc);
  }
  if constexpr (P::kScaled) {
    const float scale = scales.a2 * scales.fc1;
#pragma unroll
    for (int i = 0; i < 64; ++i) acc[i] *= scale;
  }

  // Warpgroups that took turns add their sums, each those of half of the columns.
  constexpr int kKept = 64 / kTurns;
  float sums[kKept];
  if constexpr (kTurns == 2) {
    const int thread = tid % kGroupThreads;
    auto* const exchange = reinterpret_cast<float (*)[kKept][kGroupThreads]>(shared);
    Consumers::sync();  // no thread reads the stages any more
#pragma unroll
    for (int i = 0; i < kKept; ++i) exchange[turn][i][thread] = turn == 0 ? acc[kKept + i] : acc[i];
    Consumers::sync();  // both warpgroups' sums are there
#pragma unroll
    for (int i = 0; i < kKept; ++i) sums[i] = (turn == 0 ? acc[i] : acc[kKept + i]) + exchange[1 - turn][i][thread];
  } else {
#pragma unroll
    for (int i = 0; i < kKept; ++i) sums[i] = acc[i];
  }
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    const int row = row0 + group_row + g + upper * 8;
    if (row >= s.batch) continue;
    float* const to = s.h_slices + (std::size_t(blockIdx.y) * s.batch + row) * kHidden + turn * (kHidden / 2) + 2 * t;
#pragma unroll
    for (int n = 0; n < kKept / 4; ++n)
      *reinterpret_cast<float2*>(to + 8 * n) = make_float2(sums[4 * n + 2 * upper], sums[4 * n + 2 * upper + 1]);
  }
#endif
}

}  // namespace mnist::fused
