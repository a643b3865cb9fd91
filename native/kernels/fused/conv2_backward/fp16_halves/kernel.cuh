// conv2_backward in fp32 on Hopper, by wgmma of fp16 terms: see shared/fp16_terms.cuh.
//
// What is computed is as in mma/kernel.cuh. An item of work is half of an image: 7 rows, and the neighbouring one on
// either side; shared memory holds two. Small batches have a block for each half, others do an image's two one after
// the other. Operands lie as wgmma reads them (see device/wgmma.cuh): [term][chunk of 8 channels][row][slot or
// column][16 bytes]. dz2 takes the place of z2, which has the bytes of two terms: the first four channels of a chunk
// lie where the big term will, the others where fp32's small term will.
//
// Roles are warpgroups:
//   0        dgrad, then the routed taps
//   1, 2, 3  conv2's weight gradient, a row of taps each; then they make dz2 of the next item; 3 starts the
//            copies of the item after the next, once this item's stage is free
// The tensor cores truncate as they add, so small products come first or by themselves, and what is summed over more
// than an item is added up outside of them.
#pragma once

#include "kernels/device/registers.cuh"
#include "kernels/fused/conv2_backward/fp16_halves/roles.cuh"
#include "kernels/fused/shared/models.cuh"
#include "kernels/fused/shared/trace.cuh"

namespace mnist::fused {

template <class P, class Models>
__global__ void __launch_bounds__(kConvThreads, 1) conv2_backward_fp16_halves_kernel(Models models, int graph_step) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const auto& s = state_of_block(models);
  using Shared = Fp16HalvesShared<P>;
  using Halves = Fp16Halves<P>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Bn2Backward bn;
  __shared__ Ring<2> arrived, dz2_ready, done;
  __shared__ MBarrier filter_arrived;
  const int tid = threadIdx.x, lane = tid & 31, warp = uniform(tid >> 5);
  const Halves halves{s, bn, shared, arrived, dz2_ready, done, graph_step, lane};

  trace(s, Phase::kConv2Backward, 0, tid == 0);
  for (int i = tid; i < 2 * Shared::kStage / 16; i += kConvThreads)
    reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
  if (tid == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      arrived[stage].init(1);
      dz2_ready[stage].init(Halves::kMakeDz2Threads / 32);
      done[stage].init(kConvThreads / 32);
    }
    filter_arrived.init(1);
  }
  __syncthreads();
  for (int stage = 0; stage < 2; ++stage)
    Shared::Pixels::clear(shared + stage * Shared::kStage + Shared::kPixelLists, tid);
  wgmma_publish();
  __syncthreads();
  if (warp < kGroupThreads / 32) {
    for (int item = 0; item < 2; ++item) halves.copy_forward(item);
    if (tid == 0) {
      filter_arrived.expect(Shared::kFilterBytes);
      copy_bulk(shared_address(shared) + Shared::kFilter, s.conv2_dgrad_wgmma, Shared::kFilterBytes, filter_arrived);
    }
    __syncwarp();
  }
  if (blockIdx.x == 0 && warp == 15) choose_conv2_scale(s, lane);  // for update, which changes the weights
  const float conv2_scale = s.scales[kConv2Scale], a1_scale_ = a1_scale(s, lane);
  const auto meanwhile = [&] {
    if (tid == 0)
      for (int item = 0; item < 2; ++item) halves.copy_gradient(item);
  };
  make_bn2_backward<true>(s, bn, reinterpret_cast<double (*)[2][kConv2Channels]>(shared + Shared::kPartial), meanwhile);
  const float dz2_scale = divide_by_dz2_scale(bn);
  trace(s, Phase::kConv2Backward, 2, tid == 0);
  if (warp < kGroupThreads / 32) {
    take_registers<Halves::kDgradRegisters>();
    dgrad_role(halves, dz2_scale, conv2_scale, &filter_arrived);
  } else {
    give_registers<Halves::kWeightGradientRegisters>();
    weight_gradient_role(halves, warp / 4 - 1, dz2_scale * a1_scale_);
  }
#endif
}

}  // namespace mnist::fused
