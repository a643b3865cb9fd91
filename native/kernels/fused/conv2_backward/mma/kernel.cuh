// conv2_backward by mma.sync: from dy2 back to the weights of both convolutions.
//
// For each image it computes dz2, its dgrad through conv2 to conv1's pooled cells, and what the two weight gradients
// sum. With D the gradient routed to each window's maximum, batch norm's backward is dz2 = s D + alpha + kappa z2 by
// channel; alpha and kappa come from fc1_backward's sums. conv1's layer needs no dense gradient at all: its weight
// gradient follows in closed form from the batch's pixel moments and from the *routed taps*, for each channel the sum
// over pooling windows of the gradient times the 9 pixels under the winning position (see update/conv1.cuh). So only
// these leave this kernel.
//
// An item of work is a whole image (kRows = 14) or, so that small batches fill the GPU, half of one (kRows = 7 image
// rows, and the neighbouring row on either side). Row r of the shared image is image row y0 + r - 1. Where shared
// memory is short two blocks make it (kParts = 2), each for half of conv2's channels: dz2 goes by channels, conv2's
// weight gradient has these channels' part, and da1, a sum over them, enters the routed taps linearly. Hopper has other
// kernels: whole_images/ in 16 bits, which uses much of this one, and fp16_halves/ in fp32.
//
// Two roles of 8 warps work side by side, so that the tensor cores are busy while one of them makes dz2 and sums the
// routed taps:
//   dgrad role            waits for an item's copies, makes dz2 where z2 was, then the dgrad, then the routed taps
//   weight gradient role  once dz2 is made, conv2's weight gradient, which stays in registers over all items; then it
//                         starts the copies of the item that takes this one's place: with kStages = 2 the one after the
//                         next; with 1, where shared memory holds no more, the next, which was fetched as far as the L2
//                         cache meanwhile
#pragma once

#include "kernels/fused/conv2_backward/mma/roles.cuh"
#include "kernels/fused/shared/models.cuh"
#include "kernels/fused/shared/trace.cuh"

namespace mnist::fused {

template <class P, int kRows, int kStages, int kParts, class Models>
__global__ void __launch_bounds__(kConvThreads, 1) conv2_backward_kernel(Models models, int graph_step) {
  const auto& s = state_of_block(models);
  using Shared = Conv2BackwardShared<P, kRows, kStages, kParts>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Bn2Backward bn;
  __shared__ MBarrier arrived[kStages + 1];
  const int tid = threadIdx.x;
  Conv2BackwardBlock<P, kRows, kStages, kParts> block{
      s, bn, shared, arrived, graph_step, tid & 31, kRows == 7 ? int(blockIdx.x & 1) * 7 : 0};

  trace(s, Phase::kConv2Backward, 0, tid == 0);
  // The first item, by all threads.
  const int item = block.first_item(), sample = block.sample(item, tid);
  block.template copy_forward<kConvThreads>(item, sample, 0, tid);
  block.scales = begin_scales<P>(s);
  float dy2_scale = 1;
  const auto meanwhile = [&] {
    if constexpr (P::kScaled) dy2_scale = s.scales[kDy2Scale];
    block.template copy_gradient<kConvThreads>(item, 0, tid);
    if (tid < kStages + 1) arrived[tid].init(kRoleThreads);
    for (int stage = 0; stage < kStages; ++stage)
      if (item >= stage * block.stride()) block.clear_padding(stage, tid);
  };
  make_bn2_backward<P::kScaled>(s, bn, reinterpret_cast<double (*)[2][kConv2Channels]>(shared + Shared::kPartial),
                                meanwhile);
  finish_scales<P>(block.scales, bn, dy2_scale);
  trace(s, Phase::kConv2Backward, 2, tid == 0);

  if (tid < kRoleThreads)
    dgrad_role(block, tid);
  else
    weight_gradient_role(block, tid - kRoleThreads);
}

}  // namespace mnist::fused
