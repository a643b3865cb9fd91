// fc1_backward: dy2 = relu mask of (dh fc1), its channel sums for bn2, and fc1.weight -= lr * dh^T a2, in
// place.
//
// A block owns 32 columns of fc1.weight: half of the channels of one pooled cell. It alone reads or writes them in
// this phase, so the update needs no second pass. The batch is walked in tiles of kRows samples, fetched two tiles
// ahead, or one where shared memory holds no more. The two products of a tile are made at the same time, each by half
// of the warps (dgrad: dh times the weights; wgrad: dh^T times a2), so that one half's matrix products cover the
// other's loads and arithmetic.
#pragma once

#include "kernels/fused/fc1_backward/dgrad.cuh"
#include "kernels/fused/fc1_backward/weight_gradient.cuh"
#include "kernels/fused/shared/models.cuh"
#include "kernels/fused/shared/trace.cuh"

namespace mnist::fused {

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
