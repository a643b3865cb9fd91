// conv2_backward by mma.sync: from dy2 back to the weights of both convolutions.
//
// For each image it computes dz2, its dgrad through conv2 to conv1's pooled cells, and what the two weight gradients
// sum. With D the gradient routed to each window's maximum, batch norm's backward is dz2 = s D + alpha + kappa z2 by
// channel; alpha and kappa come from fc1_backward's sums. conv1's layer needs no dense gradient at all: its weight
// gradient follows in closed form from the batch's pixel moments and from the *routed taps*. These are, for each
// channel, the sum over pooling windows of the gradient times the 9 pixels under the winning position (see
// update/update.cuh). So only the routed taps leave this kernel.
//
// An item of work is a whole image (kRows = 14) or half of one (kRows = 7 image rows, and the neighbouring row on
// either side), so that small batches fill the GPU, and in fp32 always. Image row y0 + r - 1 is row r of the shared
// image. Where shared memory is short, two blocks share an item (kChannelSplits = 2), each with half of conv2's
// channels: dz2 is computed channel by channel, the weight gradient splits by channels, and da1, a sum over them,
// enters the routed taps linearly. Hopper has other kernels: whole_images.cuh in 16 bits, which uses this kernel's
// items, and half_images.cuh in fp32.
//
// Two roles of 8 warps work at the same time, so that the tensor cores are busy while one of them makes dz2 and sums
// the routed taps:
//   dgrad role            waits for an item's copies, makes dz2 where z2 was, then the dgrad, then the routed taps
//   weight gradient role  once dz2 is made, starts the copies that the next item needs for that, and computes conv2's
//                         weight gradient, which stays in registers over all items; then it starts the other copies of
//                         the item that takes this one's place: with kStages = 2 the one after the next; with 1, where
//                         shared memory holds no more, all of the next, which it fetched as far as the L2 cache
//                         meanwhile
#pragma once

#include "kernels/fused/conv2_backward/mma_items.cuh"
#include "kernels/fused/conv2_backward/mma_products.cuh"
#include "kernels/fused/shared/conv3x3.cuh"

namespace mnist::fused {

// The routed taps, from the sums of 8 warps; a warp's lowest bit says which half of the channels it has.
template <int kSums, class Items>
__device__ __forceinline__ void store_routed_taps(const Items& items, const float (&routed_taps)[kSums][2][4],
                                                  int tid) {
  using P = typename Items::P;
  constexpr int kValues = kConv1Channels * kRoutedTapColumns;
  const int warp = tid >> 5, channel0 = (warp & 1) * 16;
  const auto [g, t] = fragment_place(items.lane);
  auto* partial = reinterpret_cast<float*>(items.shared + Items::Shared::kFilter);
  Items::DgradRole::sync();  // no warp reads the filter any more
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int n = k >> 2, i = k & 3;
    partial[(warp >> 1) * kValues + (channel0 + (i >> 1) * 8 + g) * kRoutedTapColumns + n * 8 + 2 * t + (i & 1)] =
        sum_of(routed_taps, n, i);
  }
  Items::DgradRole::sync();  // all sums are in shared memory
  for (int i = tid; i < kValues; i += kRoleThreads)
    items.s.routed_tap_sums[std::size_t(blockIdx.x) * kValues + i] =
        (kHasScales<P> ? items.scales.routed_taps : 1.f) *
        ((partial[i] + partial[kValues + i]) + (partial[2 * kValues + i] + partial[3 * kValues + i]));
}

// da1, the gradient of conv1's pooled cells, and from it the routed taps: a warp makes 4 or 3 rows of 16 channels. For
// half an image it sums over half of conv2's channels: the routed taps are linear in da1, so their sums add up later.
template <class Items>
__device__ __forceinline__ void dgrad_role(const Items& items, int tid) {
  using P = typename Items::P;
  using Shared = typename Items::Shared;
  using Item = typename Shared::Item;
  const int warp = tid >> 5;
  constexpr int kKSplits = Items::kHalfImage ? 2 : 1, kSteps = Items::kChannels / 16 / kKSplits;
  const int channel0 = (warp & 1) * 16, k_split = Items::kHalfImage ? warp >> 2 : 0;
  // Warps w and w + 4 share a scheduler; together they have 7 rows.
  const int member = Items::kHalfImage ? (warp >> 1 ^ warp >> 2) & 1 : warp >> 1;
  const bool four = member == 0 || member == 3;
  const int first_row = 1 + 3 * member + (member > 0 ? 1 : 0);
  const int first_channel = operand_at<P>(16 * k_split * kSteps);
  const std::uint32_t filter =
      shared_address(items.shared) + Shared::kFilter + channel0 * kFilterPitch<P, Items::kChannels> + first_channel;
  // Measured: in 16 bits half an image has too few rows to gain by 4.
  constexpr int kSums = kTerms<P> == 1 && Items::kHalfImage ? 1 : 4;
  float routed_taps[kSums][2][4] = {};
  int stage = 0, parity = 0;
  for (int item = items.first_item(); item >= 0; item -= items.stride()) {
    if (item != items.first_item()) {  // make_bn2_backward() waited for the first item's copies
      items.arrived[stage].wait(parity);
      if (stage == 0) parity ^= 1;
      Items::DgradRole::sync();  // no warp reads the last item's lists any more
    }
    make_dz2<kRoleThreads>(items, item, stage, tid);
    Items::DgradRole::sync();  // the whole dz2 and all pixel lists are made
    trace(items.s, Phase::kConv2Backward, 3, tid == 0);
    Items::Dz2Ready::arrive(stage);
    std::uint32_t route[4][2];
    const auto load_route = [&](int r) {
      if (r < (four ? 4 : 3)) items.load_route(route[r], item, first_row - 1 + r, warp & 1);
    };
    constexpr int kAhead = kTerms<P> > 1 ? 1 : 4;  // rows, as registers allow
#pragma unroll
    for (int r = 0; r < kAhead; ++r) load_route(r);
    if (item == items.first_item()) items.arrived[Items::kFilterCopies].wait(0);
    const std::uint32_t here = items.stage_address(stage);  // + int(offsetof()): 64-bit sums compile to other code
    float acc[4][2][4] = {};
    const std::uint32_t dz =
        here + int(offsetof(Item, dz2)) + (first_row - 1) * kSlots * Shared::kDzPitch + first_channel;
    if (four)
      conv3x3_rows<P, Items::kChannels, 4, AlignedShift, false, kSteps>(acc, dz, filter, items.lane);
    else
      conv3x3_rows<P, Items::kChannels, 3, AlignedShift, false, kSteps>(acc, dz, filter, items.lane);
    float2 rest[4] = {};
    trace(items.s, Phase::kConv2Backward, 4, tid == 0);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (r == 3 && !four) break;
      if (r + kAhead < 4) load_route(r + kAhead);
      const int row = first_row - 1 + r;
      const std::uint32_t pixel_lists = shared_address(items.shared) + Shared::pixel_lists_at(stage) +
                                        2 * (items.y0 + row) * Shared::Pixels::kRowBytes;
      if constexpr (kTerms<P> > 1) {
        float row_taps[kSums][2][4] = {}, scales[2];
        make_da1_scales(reinterpret_cast<const float (&)[8]>(acc[r]), scales);
        accumulate_routed_taps<P>(row_taps, acc[r], route[r], pixel_lists, items.lane, rest,
                                  {inverse_of(scales[0]), inverse_of(scales[1])});
#pragma unroll
        for (int i = 0; i < 8; ++i)
          routed_taps[0][i >> 2][i & 3] =
              fmaf(scales[i >> 1 & 1], sum_of(row_taps, i >> 2, i & 3), routed_taps[0][i >> 2][i & 3]);
      } else {
        const float to_stored = inverse_of(items.scales.da1);
        accumulate_routed_taps<P>(routed_taps, acc[r], route[r], pixel_lists, items.lane, rest, {to_stored, to_stored});
      }
    }
    Items::Done::arrive(stage);
    trace(items.s, Phase::kConv2Backward, 5, tid == 0);
    stage = Items::kStages == 2 ? stage ^ 1 : 0;
  }
  store_routed_taps(items, routed_taps, tid);
  trace(items.s, Phase::kConv2Backward, 7, tid == 0);
}

// A warp makes 16 of conv2's channels by 16 of conv1's, all taps; with channel splits by 8.
template <class Items>
__device__ __forceinline__ void weight_gradient_role(const Items& items, int tid) {
  using P = typename Items::P;
  using Item = typename Items::Item;
  constexpr int kColumns = 2 / Items::kChannelSplits, kOutBits = 3 - Items::kChannelSplits;
  constexpr int kOuts = 1 << kOutBits;  // tiles of conv2's channels; kColumns: of 8 of conv1's
  const int warp = tid >> 5, out = (warp & (kOuts - 1)) * 16, in = (warp >> kOutBits) * 8 * kColumns,
            ahead = Items::kStages * items.stride();
  const auto copy_forward = [&](int item, int stage) {
    if (item >= 0) items.template copy_forward<kRoleThreads>(item, stage, tid);
  };
  const auto copy_rest = [&](int item, int sample, int stage) {
    if (item < 0) return;
    items.template copy_gradient<kRoleThreads>(item, sample, tid);
    items.arrived[stage].arrive_after_copies();
  };
  float dw[kTaps][kColumns][4] = {};
  int stage = 0, item = items.first_item();
  // Copies the filter here, where this role has nothing to do yet: the dgrad role needs it last. Unrolled, the loop
  // takes less time, for which a small batch waits, but more registers, which a large batch needs.
#pragma unroll(Items::kHalfImage ? 4 : 1)
  for (int i = tid; i < 32 * kFilterChunks<P, Items::kChannels>; i += kRoleThreads) items.copy_filter_chunk(i);
  items.arrived[Items::kFilterCopies].arrive_after_copies();
  if constexpr (Items::kStages == 2) copy_forward(item - items.stride(), 1);
  int sample = items.sample(item - items.stride(), tid);  // of the next item
  for (; item >= 0; item -= items.stride()) {
    const int next = item - items.stride();
    if (Items::kStages == 1 && next >= 0) items.fetch(next, tid);
    Items::Dz2Ready::sync(stage);
    if constexpr (Items::kStages == 2) copy_rest(next, sample, stage ^ 1);
    const std::uint32_t here = items.stage_address(stage);
    weight_gradient<P, Items::kRows, Items::kChannels>(dw, here + int(offsetof(Item, dz2)) + operand_at<P>(out),
                                                       here + int(offsetof(Item, a1)) + operand_at<P>(in), items.lane);
    trace(items.s, Phase::kConv2Backward, 9, tid == 0);
    Items::Done::sync(stage);  // no warp reads the stage any more
    copy_forward(item - ahead, stage);
    if constexpr (Items::kStages == 1) copy_rest(next, sample, 0);
    sample = items.sample(next - items.stride(), tid);
    stage = Items::kStages == 2 ? stage ^ 1 : 0;
  }
  // Stores of 16 bytes per lane, in the order in which 16 warps with tiles of 16 by 8 would hold the sums.
  // update_conv2() knows which value lies where.
  auto* to = reinterpret_cast<float4*>(items.s.conv2_sums + std::size_t(blockIdx.x) * kConv2Values);
  const int first_tile = items.first_channel() / 16;
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap)
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      if constexpr (kHasScales<P>)
        for (float& sum : dw[tap][n]) sum *= items.scales.weights;
      to[tap * kConvThreads + (first_tile + out / 16 + 4 * (in / 8 + n)) * 32 + items.lane] =
          make_float4(dw[tap][n][0], dw[tap][n][1], dw[tap][n][2], dw[tap][n][3]);
      if constexpr (Items::kChannelSplits == 2)  // zeros for the other block's channels
        to[tap * kConvThreads + ((first_tile ^ kOuts) + out / 16 + 4 * (in / 8 + n)) * 32 + items.lane] = {};
    }
  trace(items.s, Phase::kConv2Backward, 8, tid == 0);
}

template <class P, int kRows, int kStages, int kChannelSplits, class Models>
__global__ void __launch_bounds__(kConvThreads, 1) conv2_backward_kernel(Models models, int graph_step) {
  const auto& s = state_of_block(models);
  using Items = Conv2BackwardItems<P, kRows, kStages, kChannelSplits>;
  using Shared = typename Items::Shared;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Bn2Backward bn;
  __shared__ MBarrier arrived[kStages + 1];
  const int tid = threadIdx.x;
  Items items{s, bn, shared, arrived, graph_step, tid & 31, kRows == 7 ? int(blockIdx.x & 1) * 7 : 0};

  trace(s, Phase::kConv2Backward, 0, tid == 0);
  // The first item, by all threads.
  const int item = items.first_item(), sample = items.sample(item, tid);
  items.template copy_forward<kConvThreads>(item, 0, tid);
  items.scales = begin_scales<P>(s);
  float dy2_scale = 1;
  const auto meanwhile = [&] {
    if constexpr (P::kScaled) dy2_scale = s.scales[kDy2Scale];
    items.template copy_gradient<kConvThreads>(item, sample, tid);
    if (tid < kStages + 1) arrived[tid].init(kRoleThreads);
    for (int stage = 0; stage < kStages; ++stage)
      if (item >= stage * items.stride()) items.clear_padding(stage, tid);
    Shared::Pixels::clear(shared + Shared::pixel_lists_at(0), tid);
  };
  finish_scales<P>(items.scales, make_bn2_backward<kHasScales<P>>(
                                     s, bn, reinterpret_cast<double (*)[2][kConv2Channels]>(shared + Shared::kPartial),
                                     meanwhile, dy2_scale));
  trace(s, Phase::kConv2Backward, 2, tid == 0);

  if (tid < kRoleThreads)
    dgrad_role(items, tid);
  else
    weight_gradient_role(items, tid - kRoleThreads);
}

}  // namespace mnist::fused
