// conv1 and bn1: the closed form of their backward, SGD, and bn1 for the next batch.
//
// From conv2_backward come G_c, the routed taps, and d_c, the plain sum of the routed gradient. With
// sigma_c = sqrt(var_c + eps), s = gamma/sigma and Gt = G - d pbar:
//   d gamma = w . Gt / sigma,   d beta = d,   dw = s (Gt - (w . Gt / sigma^2) C w),   d bias = 0.
#pragma once

#include "kernels/device/dependent_launch.cuh"
#include "kernels/fused/shared/trace.cuh"
#include "kernels/fused/update/pack.cuh"
#include "kernels/fused/update/shares.cuh"

namespace mnist::fused {

struct Bn1Scratch {
  double moments[kMoments], next_moments[kMoments];
  PixelStatistics batch, next;
  double partial[kUpdateGroups][64];
  alignas(16) float routed_taps[kRoutedTapGroups][kConv1Share * kRoutedTapColumns +
                                                  16];  // padded: rows next to each other lie in other banks
};

// The groups' shares of the next batch's moments, to `to` and to the block's own copy in global memory.
__device__ __forceinline__ void set_moments(const State& s, double (&to)[kMoments],
                                            const double (&partial)[kUpdateGroups][64], int block) {
  const int tid = threadIdx.x;
  if (tid >= kMoments) return;
  double total = 0;
#pragma unroll
  for (int k = 0; k < kUpdateGroups; ++k) total += partial[k][tid];
  to[tid] = total;
  s.moments[block * kMoments + tid] = total;
}

// conv1 and bn1, channels kConv1Share * block .. After the sums over conv2_backward's blocks everything stays in the
// registers of a warp a channel.
template <class P, class Models>
__device__ void update_conv1(const State& s, Bn1Scratch& scratch, int block) {
  constexpr auto weight_at = kParameters[kConv1Weight].offset, gamma_at = kParameters[kBn1Weight].offset,
                 beta_at = kParameters[kBn1Bias].offset;
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, tap = lane & 15;
  const int channel = block * kConv1Share + warp % kConv1Share;
  const bool has_tap = tap < kTaps, computes = warp < kConv1Share;

  // conv2_backward has no part in the pixels of either batch (head summed the next one's) nor in this step's weights.
  const float weight = has_tap ? s.parameters[weight_at + channel * kTaps + tap] : 0.f;
  float gamma = s.parameters[gamma_at + channel], beta = s.parameters[beta_at + channel];
  const float learning_rate = *s.learning_rate;
  {
    const int group = tid >> 6, column = min(tid & 63, kMoments - 1);
    const double current = s.moments[block * kMoments + column];
    double next = 0;
    for_rows<kUpdateGroups, kUpdateLoads<Models>.head>(
        s.head_blocks, group, [&](int b) { return s.moment_sums[std::size_t(b) * kMoments + column]; },
        [&](double x, int) { next += x; });
    if (tid < kMoments) scratch.moments[tid] = current;
    scratch.partial[group][tid & 63] = next;
  }
  __syncthreads();
  set_moments(s, scratch.next_moments, scratch.partial, block);
  __syncthreads();
  set_statistics(scratch.batch, scratch.moments, s.inv_n1, tid);
  set_statistics(scratch.next, scratch.next_moments, s.inv_n1, tid - 128);
  __syncthreads();
  const double own =
      split_weight<P>(weight, filter_scale(weight), [](int, auto) {});  // as conv_forward used it, without gamma's sign
  double cw = 0, pixel_mean = 0, inv_sigma = 0;
  if (computes) {
    const Filtered f = filtered(scratch.batch, own);
    cw = f.cw;
    pixel_mean = scratch.batch.mean[min(tap, kTaps - 1)];
    inv_sigma = rsqrt(f.variance + kBatchNormEpsilon);
  }

  wait_for_predecessor();  // conv2_backward: routed_tap_sums
  trace(s, Phase::kUpdate, 1, tid == 0);
  constexpr int kColumns4 = kUpdateThreads / kRoutedTapGroups;
  const int column4 = tid % kColumns4, group = tid / kColumns4;
  reinterpret_cast<float4*>(scratch.routed_taps[group])[column4] =
      sum_rows<kRoutedTapGroups, kUpdateLoads<Models>.conv1>(s.routed_tap_sums + block * kColumns4 * 4,
                                                             s.conv2_backward_blocks,
                                                             kConv1Channels * kRoutedTapColumns, column4, group);
  __syncthreads();
  trace(s, Phase::kUpdate, 2, tid == 0);
  if (!computes) return;
  // Each half of the warp adds up every other group, four at a time in float.
  double g = 0;
#pragma unroll
  for (int k = 0; k < kRoutedTapGroups / 2; k += 4) {
    const auto group_sum = [&](int i) {
      return scratch.routed_taps[2 * (k + i) + (lane >> 4)][warp * kRoutedTapColumns + tap];
    };
    g += (group_sum(0) + group_sum(1)) + (group_sum(2) + group_sum(3));
  }
  g += __shfl_xor_sync(0xffffffffu, g, 16);
  const double d = __shfl_sync(0xffffffffu, g, kTaps);  // column 9
  const double gt = Pixels<P>::kScale * (g - Pixels<P>::kZero * d) - d * pixel_mean;
  const double w_gt = sum_of_16_lanes(own * gt);
  const float dw = float(double(gamma) * inv_sigma * (gt - w_gt * (inv_sigma * inv_sigma) * cw));
  const float dgamma = float(w_gt * inv_sigma), dbeta = float(d);
  const float updated = has_tap ? weight - learning_rate * dw : 0.f;
  gamma -= learning_rate * dgamma;
  beta -= learning_rate * dbeta;
  begin_conv1<P>(s, scratch.next, channel, updated, gamma, beta);
  if (lane < kTaps) {
    s.parameters[weight_at + channel * kTaps + lane] = updated;
    if (s.gradients) s.gradients[weight_at + channel * kTaps + lane] = dw;
  }
  if (lane == 0) {
    s.parameters[gamma_at + channel] = gamma;
    s.parameters[beta_at + channel] = beta;
    if (s.gradients) {
      s.gradients[gamma_at + channel] = dgamma;
      s.gradients[beta_at + channel] = dbeta;
    }
  }
}

}  // namespace mnist::fused
