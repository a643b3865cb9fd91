// bn2's backward from the sums of fc1_backward or fc, with SGD of its parameters.
//
// With D the gradient routed to each window's maximum, the backward of batch norm is, for each channel,
//   dz2 = scale D + alpha + kappa z2,   kappa = -scale d gamma / (sigma N),   alpha = -scale d beta / N - kappa mean.
#pragma once

#include "kernels/fused/shared/phase.cuh"

namespace mnist::fused {

// The constants by channel, in shared memory.
struct alignas(16) Bn2Backward {
  float scale[kConv2Channels], shift[kConv2Channels], alpha[kConv2Channels], kappa[kConv2Channels];
  float largest[kConvWarps], bounds[2];  // with bounds: of dy2 by warp, of dz2 by half of the channels
};

__device__ __forceinline__ float dz2_scale(const Bn2Backward& bn) {
  return scale_of(fmaxf(bn.bounds[0], bn.bounds[1]));
}

// Computes `bn` and the SGD step, after it has waited for the phase before; when it returns, all cp.async copies of the
// block have arrived, too. Calls meanwhile() while its own loads are on their way, which may also set d_scale, by which
// D comes divided. With bounds returns dz2's scale, by which the constants are divided.
template <bool kBounds = false, class Meanwhile>
__device__ __forceinline__ float make_bn2_backward(const State& s, Bn2Backward& bn,
                                                   double (*partial)[2][kConv2Channels], Meanwhile meanwhile,
                                                   const float& d_scale) {
  constexpr int kGroups = kConvThreads / 64, kCells = (kCells2 + kGroups - 1) / kGroups;
  constexpr auto gamma_at = kParameters[kBn2Weight].offset, beta_at = kParameters[kBn2Bias].offset;
  const int tid = threadIdx.x, channel = tid & 63, group = tid >> 6;
  const float gamma = s.parameters[gamma_at + channel], learning_rate = *s.learning_rate;
  const float beta = s.parameters[beta_at + channel];
  double scale, mean, inv_sigma;
  float shift;
  const auto load_bn2 = [&] {
    scale = s.bn2.scale(channel), shift = s.bn2.shift(channel), inv_sigma = s.bn2.inv_sigma(channel);
    mean = double(s.bn2.mean(channel)) + s.bn2.mean_rest(channel);
  };
  if (!s.with_fc) load_bn2();
  wait_for_predecessor();  // fc1_backward, or fc: dy2 and its sums
  trace(s, Phase::kConv2Backward, 1, tid == 0);
  if (s.with_fc) load_bn2();
  float dy2[kCells], dy2_xhat[kCells];
#pragma unroll
  for (int k = 0; k < kCells; ++k) {
    const int cell = min(group + k * kGroups, s.dy2_sum_rows() - 1);
    dy2[k] = s.dy2_sums[cell * 64 + channel];
    dy2_xhat[k] = s.dy2_sums[(kCells2 + cell) * 64 + channel];
  }
  constexpr int kMaxima = (kFc1Groups * kGradientWarps + kConvThreads - 1) / kConvThreads;
  float maxima[kMaxima] = {};
  if constexpr (kBounds)
#pragma unroll
    for (int k = 0; k < kMaxima; ++k)
      if (const int i = tid + k * kConvThreads; i < s.dy2_maxima()) maxima[k] = s.dy2_max[i];
  meanwhile();
  copy_async_commit();
  double sum = 0, sum_xhat = 0;
#pragma unroll
  for (int k = 0; k < kCells; ++k)
    if (group + k * kGroups < s.dy2_sum_rows()) {
      sum += dy2[k];
      sum_xhat += dy2_xhat[k];
    }
  partial[group][0][channel] = sum;
  partial[group][1][channel] = sum_xhat;
  if constexpr (kBounds) {
    float largest = 0;
#pragma unroll
    for (int k = 0; k < kMaxima; ++k) largest = fmaxf(largest, maxima[k]);
    largest = warp_max(largest);
    if ((tid & 31) == 0) bn.largest[tid >> 5] = largest;
  }
  __syncthreads();  // the groups' sums and the warps' maxima are in shared memory
  // Warps agree on the branch, as the compiler can see: otherwise descriptors of wgmma behind it move through R2UR.
  if (uniform(tid / 32) < kConv2Channels / 32) {
    double dbeta = 0, dgamma = 0;
    for (int k = 0; k < kGroups; ++k) dbeta += partial[k][0][tid], dgamma += partial[k][1][tid];
    // An error of alpha or kappa repeats at every pixel, while dz2 itself sums up to 0. So alpha follows from kappa as
    // rounded.
    const float kappa = float(-scale * dgamma * inv_sigma * s.inv_n2);
    const float alpha = float(-scale * dbeta * s.inv_n2 - double(kappa) * mean);
    float inverse = 1, of_d = 1;
    if constexpr (kBounds) {  // |xhat| is at most sqrt(N)
      float largest = 0;
#pragma unroll
      for (int k = 0; k < kConvWarps; ++k) largest = fmaxf(largest, bn.largest[k]);
      largest = warp_max(float(scale) *
                         (largest + fabsf(float(dbeta * s.inv_n2)) + fabsf(float(dgamma)) * sqrtf(float(s.inv_n2))));
      bn.bounds[tid >> 5] = largest;
      NamedBarrier<1, kConv2Channels>::sync();  // both halves' bounds are in shared memory
      inverse = inverse_of(dz2_scale(bn)), of_d = d_scale;
    }
    bn.scale[tid] = float(scale) * inverse * of_d;
    bn.shift[tid] = shift * inverse;
    bn.kappa[tid] = kappa * inverse;
    bn.alpha[tid] = alpha * inverse;
    if (blockIdx.x == 0) {  // every block loads bn2's parameters, but only this one uses them
      const float sign = gamma < 0 ? -1.f : 1.f;
      s.bn2_sign[tid] = sign;  // before SGD: update folds it out of conv2's gradient
      s.parameters[gamma_at + tid] = sgd(gamma, float(sign * dgamma), learning_rate);
      s.parameters[beta_at + tid] = sgd(beta, float(dbeta), learning_rate);
      if (s.gradients) {
        s.gradients[gamma_at + tid] = float(sign * dgamma);
        s.gradients[beta_at + tid] = float(dbeta);
      }
    }
  }
  copy_async_wait<0>();
  __syncthreads();  // the constants are complete, and the copies of all threads have arrived
  return kBounds ? dz2_scale(bn) : 1.f;
}

// conv2_backward multiplies dz2, the gradient of z2 as it is stored, and da1, each divided by a scale.
struct SumScales {
  float weights = 1, routed_taps = 1, da1 = 1;  // factors of the sums; in tf32 `da1` divides what dgrad sums
};
// What is known of them before that phase has run. The first block also chooses conv2's next scale, for update.
template <class P>
__device__ __forceinline__ SumScales begin_scales(const State& s) {
  if constexpr (!kHasScales<P>) return {};
  const int lane = threadIdx.x & 31;
  if (blockIdx.x == 0 && threadIdx.x / 32 == 15) choose_conv2_scale(s, lane);
  if constexpr (!P::kScaled) return {a1_scale(s, lane), s.scales[kConv2Scale]};
  const float da1 = da1_scale(s), to_z2 = inverse_of(s.scales[kZ2Scale]);
  return {to_z2 * a1_scale(s, lane), to_z2 * s.scales[kConv2Scale] * da1, da1};
}
// The rest, with what make_bn2_backward() returns.
template <class P>
__device__ __forceinline__ void finish_scales(SumScales& scales, float dz2) {
  if constexpr (kHasScales<P>) scales.weights *= dz2, scales.routed_taps *= dz2;
}

}  // namespace mnist::fused
