// conv2_backward of whole images in 16 bits on Hopper, whose wgmma multiplies faster than mma.sync and needs few
// instructions.
//
// What is computed and what a block owns is as in mma/kernel.cuh. Operands lie as wgmma reads them (see
// device/wgmma.cuh): chunks of 8 channels apart, [chunk][row][slot][16 bytes]. Roles are warpgroups:
//   0, 1  dgrad of 7 image rows each, then their routed taps
//   2     conv2's weight gradient, all of it in registers over all items
//   3     waits for the copies of an item, makes dz2 where z2 was while the others work on the item before, and once
//         they are done with that starts the copies that take its place
#pragma once

#include "kernels/device/registers.cuh"
#include "kernels/fused/conv2_backward/whole_images/roles.cuh"
#include "kernels/fused/conv2_backward/whole_images/weight_gradient.cuh"
#include "kernels/fused/shared/models.cuh"
#include "kernels/fused/shared/trace.cuh"

namespace mnist::fused {

// For code of sm_90a.
template <class P, class Models>
__global__ void __launch_bounds__(kConvThreads, 1) conv2_backward_whole_images_kernel(Models models, int graph_step) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const auto& s = state_of_block(models);
  using Shared = WholeImagesShared<P>;
  using Images = WholeImages<P>;

  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Bn2Backward bn;
  __shared__ MBarrier arrived[2], dz2_ready[2], filter_arrived;
  const int tid = threadIdx.x, group = uniform(tid / kGroupThreads);
  typename Images::Block block{s, bn, shared, arrived, graph_step, tid & 31, 0};
  const Images images{block, dz2_ready, &filter_arrived};

  trace(s, Phase::kConv2Backward, 0, tid == 0);
  const int item = block.first_item(), second_sample = block.sample(item - block.stride(), tid % kGroupThreads);
  if (tid == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      arrived[stage].init(1);
      dz2_ready[stage].init(kGroupThreads / 32);
    }
    filter_arrived.init(1);
    filter_arrived.expect(DgradFilter::kBytes);
    images.copy_forward(item, block.sample(item, tid), 0);
    copy_bulk(shared_address(shared) + Shared::kFilter, s.conv2_dgrad_wgmma, DgradFilter::kBytes, filter_arrived);
  }
  block.scales = begin_scales<P>(s);
  float dy2_scale = 1;
  const auto meanwhile = [&] {
    if constexpr (P::kScaled) dy2_scale = s.scales[kDy2Scale];
    if (tid == 0) {  // only now: the arrival that it counts is the last
      arrived->expect(Images::kForwardBytes + Images::kGradientBytes);
      images.copy_gradient(item, 0);
    }
    for (int stage = 0; stage < 2; ++stage)
      if (item >= stage * block.stride()) images.clear_padding(stage, tid);
  };
  make_bn2_backward<P::kScaled>(s, bn, reinterpret_cast<double (*)[2][kConv2Channels]>(shared + Shared::kPartial),
                                meanwhile);
  finish_scales<P>(block.scales, bn, dy2_scale);
  trace(s, Phase::kConv2Backward, 2, tid == 0);
  arrived->wait(0);
  make_dz2<kConvThreads>(block, item, 0, tid);
  wgmma_publish();
  __syncthreads();
  trace(s, Phase::kConv2Backward, 3, tid == 0);

  if (group < 2) {
    give_registers<Images::kDgradRegisters>();
    dgrad_role(images, tid);
  } else if (group == 2) {
    take_registers<Images::kWeightGradientRegisters>();
    weight_gradient_role(images, tid - 2 * kGroupThreads);
  } else {
    give_registers<Images::kMakeDz2Registers>();
    make_dz2_role(images, tid - 3 * kGroupThreads, second_sample);
  }
#endif
}

}  // namespace mnist::fused
