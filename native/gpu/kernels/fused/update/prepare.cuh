// What a training starts from: every operand copy, and bn1 for the first batch.
#pragma once

#include "kernels/fused/update/update.cuh"

namespace mnist::fused {

// The largest |fc1.weight| of each share of the weights, a warp a share; there are as many as fc1_backward has warps.
inline constexpr int kFc1MaxThreads = 2 * kCells2 * kGradientWarps * 32;
template <class P>
__global__ void fc1_max_kernel(State s) {
  constexpr int kShare = kHidden * kFeatures / (2 * kCells2 * kGradientWarps);
  wait_for_predecessor();
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x & 31;
  const float* weights = s.parameters + kParameters[kFc1Weight].offset + warp * kShare;
  float largest = 0;
  for (int k = lane; k < kShare; k += 32) largest = fmaxf(largest, fabsf(weights[k]));
  largest = warp_max(largest);
  if (lane == 0) s.fc1_max()[warp] = largest;
}

// After parameters were set: every operand copy from the slab.
template <class P>
__global__ void repack_weights_kernel(State s) {
  wait_for_predecessor();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int lane = threadIdx.x & 31;
  float fc1_scale = 1;
  if constexpr (P::kScaled) {
    fc1_scale = weight_scale(largest_of<2 * kCells2 * kGradientWarps>(s.fc1_max(), lane));
    if (i == 0) s.scales[kFc1Scale] = fc1_scale;
  }
  if (i < kHidden * kFeatures) {
    const float weight = s.parameters[kParameters[kFc1Weight].offset + i];
    static_cast<typename P::T*>(s.fc1)[i] = P::store(P::kScaled ? weight * inverse_of(fc1_scale) : weight);
  }
  if (i < kConv2Values) {
    float scale = 1;
    if constexpr (kHasScales<P>) {
      const float* weights = s.parameters + kParameters[kConv2Weight].offset;
      float largest = 0;
      for (int k = lane; k < kConv2Values; k += 32) largest = fmaxf(largest, fabsf(weights[k]));
      scale = weight_scale(warp_max(largest));
      if (i == 0) s.scales[kConv2Scale] = scale;
      largest = warp_max(fabsf(weights[i]));
      if (i % 32 == 0) s.conv2_max[i / 32] = largest;
    }
    const int tap = i % kTaps, in = i / kTaps % kConv1Channels, out = i / (kTaps * kConv1Channels);
    const float sign = s.parameters[kParameters[kBn2Weight].offset + out] < 0 ? -1.f : 1.f;
    repack_conv2<P>(s, sign * s.parameters[kParameters[kConv2Weight].offset + i], tap, out, in, inverse_of(scale));
  }
}

// fc1.weight as fc reads it, where update did not leave it; a thread a chunk.
template <class P, class Models>
__global__ void fc1_chunks_kernel(Models models) {
  const auto& s = state_of_block(models);
  wait_for_predecessor();
  const int i = blockIdx.x * blockDim.x + threadIdx.x, unit = i % kHidden, chunk = i / kHidden;  // of all features
  static_cast<uint4*>(s.fc1_copy)[fc1_chunk_at(unit, 8 * chunk) / 8] = *reinterpret_cast<const uint4*>(
      static_cast<const typename P::T*>(s.fc1) + std::size_t(unit) * kFeatures + 8 * chunk);
}

// fc1.weight in the terms that wgmma multiplies, where fc1_backward by terms did not leave them; a block a group.
template <class Models>
__global__ void __launch_bounds__(kConvThreads) fc1_terms_kernel(Models models) {
  const auto& s = state_of_block(models);
  wait_for_predecessor();
  leave_fc1_terms<kConvThreads>(s, int(blockIdx.x));
}

// kConv1Blocks blocks: the moments of a graph step's batch, then their channels of conv1 as update leaves them.
template <class P, class Models>
__global__ void __launch_bounds__(kUpdateThreads) start_bn1_kernel(Models models, int graph_step) {
  const auto& s = state_of_block(models);
  __shared__ Bn1Scratch scratch;
  const int tid = threadIdx.x, group = tid >> 6, column = tid & 63, warp = tid >> 5, tap = tid & 15;
  wait_for_predecessor();
  double total = 0;
  if (column < kMoments)
#pragma unroll 8
    for (int b = group; b < s.batch; b += kUpdateGroups)
      total +=
          s.samples.moments[std::size_t(s.samples.order[std::size_t(graph_step) * s.batch + b]) * kMoments + column];
  scratch.partial[group][column] = total;
  __syncthreads();  // the groups' sums are complete
  set_moments(s, scratch.moments, scratch.partial, blockIdx.x);
  __syncthreads();  // the moments are complete
  set_statistics(scratch.batch, scratch.moments, s.inv_n1, tid);
  __syncthreads();  // the statistics are complete
  if (warp >= kConv1Share) return;
  const int channel = blockIdx.x * kConv1Share + warp;
  begin_conv1<P>(s, scratch.batch, channel,
                 tap < kTaps ? s.parameters[kParameters[kConv1Weight].offset + channel * kTaps + tap] : 0.f,
                 s.parameters[kParameters[kBn1Weight].offset + channel],
                 s.parameters[kParameters[kBn1Bias].offset + channel]);
}

}  // namespace mnist::fused
