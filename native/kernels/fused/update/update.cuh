// update: block sums added up in a fixed order, the closed form of conv1's backward, SGD, and what the next step starts
// from: repacked filters and bn1's scale and shift for the next batch. Each block does a share of one of three things.
#pragma once

#include "kernels/fused/shared/models.cuh"
#include "kernels/fused/shared/trace.cuh"
#include "kernels/fused/update/conv1.cuh"
#include "kernels/fused/update/conv2.cuh"
#include "kernels/fused/update/head.cuh"

namespace mnist::fused {

template <class P, class Models>
__global__ void __launch_bounds__(kUpdateThreads, kUpdateLoads<Models>.resident_blocks)
    update_kernel(Models models, int graph_step) {
  const auto& s = state_of_block(models);
  __shared__ union {
    Bn1Scratch bn1;
    float4 head[kUpdateGroups][64];
    float4 conv2[kConv2Groups][kConv2Columns];
  } scratch;
  const int block = blockIdx.x;
  trace(s, Phase::kUpdate, 0, threadIdx.x == 0);
  if (block < kConv1Blocks)
    update_conv1<P, Models>(s, scratch.bn1, block);
  else if (block < kConv1Blocks + kHeadBlocks)
    update_head<Models>(s, scratch.head, graph_step, block - kConv1Blocks);
  else
    update_conv2<P, Models>(s, scratch.conv2, block - kConv1Blocks - kHeadBlocks);
  trace(s, Phase::kUpdate, 7, threadIdx.x == 0);
}

}  // namespace mnist::fused
