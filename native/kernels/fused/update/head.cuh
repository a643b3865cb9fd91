// fc2, fc1.bias, the loss and the hits: sums of head's blocks, and SGD.
#pragma once

#include "kernels/device/dependent_launch.cuh"
#include "kernels/fused/update/shares.cuh"

namespace mnist::fused {

// Values 256 * block .. of head_sums, which head wrote: only the end of the step has to be waited for.
template <class Models>
__device__ __forceinline__ void update_head(const State& s, float4 (&partial)[kUpdateGroups][64], int graph_step,
                                            int block) {
  constexpr int kWeights = kClasses * kHidden;
  const int tid = threadIdx.x, column = tid & 63, group = tid >> 6, i = block * 256 + tid;
  const auto at = i < kWeights             ? kParameters[kFc2Weight].offset + i
                  : i < kWeights + kHidden ? kParameters[kFc1Bias].offset + i - kWeights
                                           : kParameters[kFc2Bias].offset + i - kWeights - kHidden;
  const bool is_parameter = tid < 256 && i < kHeadValues - 2;
  const float old = is_parameter ? s.parameters[at] : 0.f, learning_rate = *s.learning_rate;
  partial[group][column] = sum_rows<kUpdateGroups, kUpdateLoads<Models>.head>(
      s.head_sums, s.head_blocks, kHeadValues, min(block * 64 + column, kHeadValues / 4 - 1), group);
  __syncthreads();
  const float total = tid < 256 && i < kHeadValues ? sum_groups(partial, tid) : 0.f;
  wait_for_predecessor();  // conv2_backward, although it has no part in this: see wait_for_predecessor()
  if (is_parameter) {
    s.parameters[at] = old - learning_rate * total;
    if (s.gradients) s.gradients[at] = total;
  } else if (tid < 256 && i == kHeadValues - 2) {
    s.results[graph_step].loss = double(total) / s.batch;
  } else if (tid < 256 && i == kHeadValues - 1) {
    s.results[graph_step].correct = int(total);
  }
}

}  // namespace mnist::fused
