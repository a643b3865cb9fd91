// The two roles of conv2_backward by mma.sync, 8 warps each.
#pragma once

#include "kernels/device/barriers.cuh"
#include "kernels/device/lane.cuh"
#include "kernels/fused/conv2_backward/block.cuh"
#include "kernels/fused/conv2_backward/make_dz2.cuh"
#include "kernels/fused/conv2_backward/mma/routed_taps.cuh"
#include "kernels/fused/conv2_backward/mma/weight_gradient.cuh"
#include "kernels/fused/shared/conv3x3.cuh"
#include "kernels/fused/shared/trace.cuh"

namespace mnist::fused {

template <int kSums>
__device__ __forceinline__ float sum_of(const float (&routed_taps)[kSums][2][4], int n, int i) {
  if constexpr (kSums == 1)
    return routed_taps[0][n][i];
  else
    return (routed_taps[0][n][i] + routed_taps[1][n][i]) + (routed_taps[2][n][i] + routed_taps[3][n][i]);
}

// The routed taps, from the sums of 8 warps, each of the half of the channels that its lowest bit says.
template <int kSums, class Block>
__device__ __forceinline__ void store_routed_taps(const Block& block, const float (&routed_taps)[kSums][2][4],
                                                  int tid) {
  using P = typename Block::P;
  using Shared = typename Block::Shared;
  constexpr int kValues = kConv1Channels * kRoutedTapColumns;
  const int warp = tid >> 5, channel0 = (warp & 1) * 16;
  const auto [g, t] = fragment_place(block.lane);
  auto* partial = reinterpret_cast<float*>(block.shared + Shared::kFilter);
  Block::DgradRole::sync();  // no warp reads the filter any more
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int n = k >> 2, i = k & 3;
    partial[(warp >> 1) * kValues + (channel0 + (i >> 1) * 8 + g) * kRoutedTapColumns + n * 8 + 2 * t + (i & 1)] =
        sum_of(routed_taps, n, i);
  }
  Block::DgradRole::sync();
  for (int i = tid; i < kValues; i += kRoleThreads)
    block.s.routed_tap_sums[std::size_t(blockIdx.x) * kValues + i] =
        (P::kScaled ? block.scales.routed_taps : 1.f) *
        ((partial[i] + partial[kValues + i]) + (partial[2 * kValues + i] + partial[3 * kValues + i]));
}

// da1, the gradient of conv1's pooled cells, and from it the routed taps: a warp makes 4 or 3 rows of 16 channels. Of
// half an image it sums over half of conv2's channels: the routed taps are linear in da1, so nothing need be added up
// before.
template <class Block>
__device__ __forceinline__ void dgrad_role(const Block& block, int tid) {
  using P = typename Block::P;
  using Shared = typename Block::Shared;
  const int warp = tid >> 5;
  constexpr int kKSplits = Block::kHalfImage ? 2 : 1, kSteps = Block::kChannels / kStep<P> / kKSplits;
  const int channel0 = (warp & 1) * 16, k_split = Block::kHalfImage ? warp >> 2 : 0;
  // Warps w and w + 4 share a scheduler; together they have 7 rows.
  const int member = Block::kHalfImage ? (warp >> 1 ^ warp >> 2) & 1 : warp >> 1;
  const bool four = member == 0 || member == 3;
  const int first_row = 1 + 3 * member + (member > 0 ? 1 : 0);
  const std::uint32_t filter = shared_address(block.shared) + Shared::kFilter +
                               channel0 * kFilterPitch<P, Block::kChannels> + k_split * kSteps * 32;
  constexpr int kSums =
      Block::kHalfImage ? 1 : 4;  // as measured: of half an image there are too few rows to gain by it
  float routed_taps[kSums][2][4] = {};
  int stage = 0, parity = 0;
  for (int item = block.first_item(); item >= 0; item -= block.stride()) {
    if (item != block.first_item()) {
      block.wait_for_copies(stage, parity);
      if (stage == 0) parity ^= 1;
    }
    make_dz2<kRoleThreads>(block, item, stage, tid);
    Block::DgradRole::sync();
    trace(block.s, Phase::kConv2Backward, 3, tid == 0);
    Block::Dz2Ready::arrive(stage);
    if (item == block.first_item()) block.wait_for_copies(Block::kFilterCopies, 0);
    const std::uint32_t here = block.stage_address(stage);
    float acc[4][2][4] = {};
    const std::uint32_t dz = here + Shared::kDz + (first_row - 1) * kSlots * Shared::kDzPitch + k_split * kSteps * 32;
    if (four)
      conv3x3_rows<P, Block::kChannels, 4, AlignedShift, false, kSteps>(acc, dz, filter, block.lane);
    else
      conv3x3_rows<P, Block::kChannels, 3, AlignedShift, false, kSteps>(acc, dz, filter, block.lane);
    float2 rest[4] = {};
    trace(block.s, Phase::kConv2Backward, 4, tid == 0);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (r == 3 && !four) break;
      const int row = first_row - 1 + r;
      const std::uint32_t words = here + Shared::kRoute + ((row * 2 + (warp & 1)) * 64 + block.lane) * 4;
      const std::uint32_t route[2] = {load_shared_32(words), load_shared_32(words + 128)};
      const std::uint32_t pixel_lists = here + Shared::kPixelLists + 2 * (block.y0 + row) * PixelLists<P>::kRowBytes;
      if constexpr (P::kDrainAccumulators) {
        float row_taps[kSums][2][4] = {};
        accumulate_routed_taps<P>(row_taps, acc[r], route, pixel_lists, block.lane, rest, 1.f);
#pragma unroll
        for (int i = 0; i < 8; ++i) routed_taps[0][i >> 2][i & 3] += sum_of(row_taps, i >> 2, i & 3);
      } else {
        accumulate_routed_taps<P>(routed_taps, acc[r], route, pixel_lists, block.lane, rest,
                                  inverse_of(block.scales.da1));
      }
    }
    Block::Done::arrive(stage);
    trace(block.s, Phase::kConv2Backward, 5, tid == 0);
    stage = Block::kStages == 2 ? stage ^ 1 : 0;
  }
  store_routed_taps(block, routed_taps, tid);
  trace(block.s, Phase::kConv2Backward, 7, tid == 0);
}

// A warp makes 16 of conv2's channels by 16 of conv1's, all taps; of half of conv2's channels by 8.
template <class Block>
__device__ __forceinline__ void weight_gradient_role(const Block& block, int tid) {
  using P = typename Block::P;
  using T = typename P::T;
  using Shared = typename Block::Shared;
  constexpr int kColumns = 2 / Block::kParts, kOutBits = 3 - Block::kParts;  // columns: of 8 of conv1's channels
  constexpr int kOuts = 1 << kOutBits;
  const int warp = tid >> 5, out = (warp & (kOuts - 1)) * 16, in = (warp >> kOutBits) * 8 * kColumns,
            ahead = Block::kStages * block.stride();
  const auto copy = [&](int item, int sample, int stage) {
    block.template copy_gradient<kRoleThreads>(item, stage, tid);
    block.template copy_forward<kRoleThreads>(item, sample, stage, tid);
    block.announce_copies(stage);
  };
  float dw[kTaps][kColumns][4] = {};
  int stage = 0, item = block.first_item();
  // Here, while this role has nothing to do yet: the dgrad role needs the filter last. A small batch waits for it, a
  // large one rather has the registers.
#pragma unroll(Block::kHalfImage ? 4 : 1)
  for (int i = tid; i < 32 * kFilterChunks<P, Block::kChannels>; i += kRoleThreads) block.copy_filter_chunk(i);
  block.announce_copies(Block::kFilterCopies);
  if (Block::kStages == 2 && item >= block.stride())
    copy(item - block.stride(), block.sample(item - block.stride(), tid), 1);
  for (; item >= 0; item -= block.stride()) {
    const int next_sample = block.sample(item - ahead, tid);
    if (Block::kStages == 1 && item >= ahead) block.fetch(item - ahead, tid);
    Block::Dz2Ready::sync(stage);
    const std::uint32_t here = block.stage_address(stage);
    weight_gradient<P, Block::kRows, Block::kChannels>(dw, here + Shared::kDz + out * int(sizeof(T)),
                                                       here + Shared::kA1 + in * int(sizeof(T)), block.lane);
    trace(block.s, Phase::kConv2Backward, 9, tid == 0);
    Block::Done::sync(stage);  // no warp reads the stage any more
    if (item >= ahead) copy(item - ahead, next_sample, stage);
    stage = Block::kStages == 2 ? stage ^ 1 : 0;
  }
  // Stores of 16 bytes a lane: as 16 warps with tiles of 16 by 8 would hold it. update_conv2() knows which value lies
  // where.
  auto* to = reinterpret_cast<float4*>(block.s.conv2_sums + std::size_t(blockIdx.x) * kConv2Values);
  const int first_tile = block.first_channel() / 16;
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap)
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      if constexpr (P::kScaled)
        for (float& sum : dw[tap][n]) sum *= block.scales.weights;
      to[tap * kConvThreads + (first_tile + out / 16 + 4 * (in / 8 + n)) * 32 + block.lane] =
          make_float4(dw[tap][n][0], dw[tap][n][1], dw[tap][n][2], dw[tap][n][3]);
      if constexpr (Block::kParts == 2)  // nothing of the other part's channels
        to[tap * kConvThreads + ((first_tile ^ kOuts) + out / 16 + 4 * (in / 8 + n)) * 32 + block.lane] = {};
    }
  trace(block.s, Phase::kConv2Backward, 8, tid == 0);
}

}  // namespace mnist::fused
