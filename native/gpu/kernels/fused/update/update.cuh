// update: block sums added up in a fixed order, the closed form of conv1's backward, SGD, and what the next step starts
// from: repacked filters and bn1's scale and shift for the next batch. A block does a share of one of three things:
//   update_conv1   conv1 and bn1, a warp a channel
//   update_head    fc2, fc1.bias, the loss and the hits
//   update_conv2   conv2.weight and its repacked copies
#pragma once

#include "kernels/fused/shared/phase.cuh"
#include "kernels/fused/update/operands.cuh"

namespace mnist::fused {

inline constexpr int kUpdateThreads = 512;
inline constexpr int kUpdateGroups = kUpdateThreads / 64;
inline constexpr int kConv1Share = kConv1Channels / kConv1Blocks;  // channels of a block, a warp each
inline constexpr int kRoutedTapGroups = kUpdateThreads / (kConv1Share * kRoutedTapColumns / 4);
// A block adds up 48 float4 columns: then 96 blocks, nearly as many as there are multiprocessors, read conv2_backward's
// sums.
inline constexpr int kConv2Columns = 48, kConv2Groups = kUpdateThreads / kConv2Columns;
inline constexpr int kConv2Blocks = kConv2Values / (4 * kConv2Columns);
static_assert(kConv2Blocks * 4 * kConv2Columns == kConv2Values && 4 * kConv2Columns % 32 == 0);
// Loads in flight of a thread, in rows that other phases' blocks left; and how many blocks a multiprocessor has to
// hold.
struct UpdateLoads {
  int conv2, conv1, head, resident_blocks;
};
// conv2's groups cover a block an SM in one round; head's sums are few, or complete long before they are needed.
// (nvcc 12.4 cannot compile designated initializers here.)
template <class Models>
inline constexpr UpdateLoads kUpdateLoads = {14, 9, 6, 1};
// Each of several models leaves few rows, and has all the blocks that a single one has.
template <>
inline constexpr UpdateLoads kUpdateLoads<Pack> = {2, 2, 2, 2};
inline constexpr int kHeadBlocks = (kHeadValues / 4 + 63) / 64;
inline constexpr int kUpdateBlocks = kConv1Blocks + kHeadBlocks + kConv2Blocks;

// Sum over `blocks` rows of `width` values at `from`, for the four columns of float4 column4; this thread takes rows
// group, group + kGroups, ...
template <int kGroups, int kLoads>
__device__ __forceinline__ float4 sum_rows(const float* from, int blocks, int width, int column4, int group) {
  float4 total = {};
  for_rows<kGroups, kLoads>(
      blocks, group, [&](int b) { return reinterpret_cast<const float4*>(from + std::size_t(b) * width)[column4]; },
      [&](float4 x, int) { total.x += x.x, total.y += x.y, total.z += x.z, total.w += x.w; });
  return total;
}

// Value i of the float4 columns, over all groups in their order.
template <int kGroups, int kColumns>
__device__ __forceinline__ float sum_groups(const float4 (&partial)[kGroups][kColumns], int i) {
  float total = 0;
#pragma unroll
  for (int k = 0; k < kGroups; ++k) total += reinterpret_cast<const float*>(partial[k])[i];
  return total;
}

// ---- conv1 and bn1 --------------------------------------------------------------------------------------------------

// bn1's backward in closed form. From conv2_backward come G_c, the routed taps, and d_c, the plain sum of the routed
// gradient. With sigma_c = sqrt(var_c + eps), s = gamma/sigma and Gt = G - d pbar:
//   d gamma = w . Gt / sigma,   d beta = d,   dw = s (Gt - (w . Gt / sigma^2) C w),   d bias = 0.
struct Bn1Scratch {
  double moments[kMoments], next_moments[kMoments];
  PixelStatistics batch, next;
  double partial[kUpdateGroups][64];
  alignas(16) float routed_taps[kRoutedTapGroups][kConv1Share * kRoutedTapColumns +
                                                  16];  // padded: rows next to each other lie in other banks
};

// Adds up the groups' sums of the next batch's moments, into `to` and into the block's own copy in global memory.
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

// Channels kConv1Share * block .. After the sums over conv2_backward's blocks everything stays in the registers of a
// warp a channel.
template <class P, class Models>
__device__ void update_conv1(const State& s, Bn1Scratch& scratch, int block) {
  constexpr auto weight_at = kParameters[kConv1Weight].offset, gamma_at = kParameters[kBn1Weight].offset,
                 beta_at = kParameters[kBn1Bias].offset;
  static_assert(kConv1Channels % kConv1Blocks == 0 && kTaps <= 16 && kUpdateThreads >= 128 + kTaps * kTaps);
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, tap = lane & 15;
  const int channel = block * kConv1Share + warp % kConv1Share;
  const bool has_tap = tap < kTaps, computes = warp < kConv1Share;

  // Before the wait: the pixels of both batches (head summed the next one's) and this step's weights, which do not
  // depend on conv2_backward.
  const float weight = has_tap ? s.parameters[weight_at + channel * kTaps + tap] : 0.f;
  float gamma = s.parameters[gamma_at + channel], beta = s.parameters[beta_at + channel];
  const float rate = *s.learning_rate;
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
  __syncthreads();  // the groups' sums are complete
  set_moments(s, scratch.next_moments, scratch.partial, block);
  __syncthreads();  // both batches' moments are complete
  set_statistics(scratch.batch, scratch.moments, s.inv_n1, tid);
  set_statistics(scratch.next, scratch.next_moments, s.inv_n1, tid - 128);
  __syncthreads();  // the statistics are complete
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
  __syncthreads();  // the groups' sums are complete
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
  const float updated = has_tap ? sgd(weight, dw, rate) : 0.f;
  gamma = sgd(gamma, dgamma, rate);
  beta = sgd(beta, dbeta, rate);
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

// ---- conv2.weight ---------------------------------------------------------------------------------------------------

// conv2_backward leaves d conv2.weight as its warps hold results of mma: by tap, 16 warps, each with a tile of 16 of
// conv2's channels (out) by 8 of conv1's (in), lane (g, t) with a float4:
//
//   warp      out 16 * (warp & 3) ..  by  in 8 * (warp >> 2) ..
//   float4    .x (g, 2t)   .y (g, 2t + 1)   .z (g + 8, 2t)   .w (g + 8, 2t + 1)
template <class P, class Models>
__device__ void update_conv2(const State& s, float4 (&partial)[kConv2Groups][kConv2Columns], int block) {
  constexpr int kValues = 4 * kConv2Columns;
  const int tid = threadIdx.x, column = tid % kConv2Columns, group = tid / kConv2Columns;
  // Threads from kValues on repeat others, and stop before they store.
  const int e = block * kValues + tid % kValues, value = e & 3, thread = e / 4 % 512, tap = e / (4 * 512);
  const int warp = thread / 32, lane = thread % 32;
  const int out = (warp & 3) * 16 + (value >> 1) * 8 + (lane >> 2);
  const int in = (warp >> 2) * 8 + 2 * (lane & 3) + (value & 1);
  const auto at = kParameters[kConv2Weight].offset + (out * kConv1Channels + in) * kTaps + tap;
  const float old = s.parameters[at], rate = *s.learning_rate;
  wait_for_predecessor();  // conv2_backward: conv2_sums, bn2's update and the scale
  trace(s, Phase::kUpdate, 1, tid == 0);
  const float scale = kHasScales<P> ? s.scales[kNextConv2Scale] : 1.f;
  const float old_sign = s.bn2_sign[out];
  const float sign = s.parameters[kParameters[kBn2Weight].offset + out] < 0 ? -1.f : 1.f;
  if (group < kConv2Groups)  // not the last warp
    partial[group][column] = sum_rows<kConv2Groups, kUpdateLoads<Models>.conv2>(
        s.conv2_sums, s.conv2_backward_blocks, kConv2Values, block * kConv2Columns + column, group);
  __syncthreads();  // the groups' sums are complete
  trace(s, Phase::kUpdate, 2, tid == 0);
  if (tid >= kValues) return;
  const float dw = old_sign * sum_groups(partial, tid);
  const float w = sgd(old, dw, rate);
  s.parameters[at] = w;
  if (s.gradients) s.gradients[at] = dw;
  repack_conv2<P>(s, sign * w, tap, out, in, inverse_of(scale));
  if constexpr (kHasScales<P>) {
    if (block == 0 && tid == 0) {
      s.scales[kConv2Scale] = scale;
      if constexpr (P::kScaled) s.scales[kFc1Scale] = s.scales[kNextFc1Scale];
    }
    const float largest = warp_max(fabsf(w));
    if (tid % 32 == 0) s.conv2_max[(block * kValues + tid) / 32] = largest;
  }
}

// ---- fc2, fc1.bias, the loss and the hits ---------------------------------------------------------------------------

// Values 256 * block .. of head_sums. head wrote them phases ago, so this waits only at its end.
template <class Models>
__device__ __forceinline__ void update_head(const State& s, float4 (&partial)[kUpdateGroups][64], int graph_step,
                                            int block) {
  constexpr int kWeights = kClasses * kHidden;
  const int tid = threadIdx.x, column = tid & 63, group = tid >> 6, i = block * 256 + tid;
  const auto at = i < kWeights             ? kParameters[kFc2Weight].offset + i
                  : i < kWeights + kHidden ? kParameters[kFc1Bias].offset + i - kWeights
                                           : kParameters[kFc2Bias].offset + i - kWeights - kHidden;
  const bool is_parameter = tid < 256 && i < kHeadValues - 2;
  const float old = is_parameter ? s.parameters[at] : 0.f, rate = *s.learning_rate;
  partial[group][column] = sum_rows<kUpdateGroups, kUpdateLoads<Models>.head>(
      s.head_sums, s.head_blocks, kHeadValues, min(block * 64 + column, kHeadValues / 4 - 1), group);
  __syncthreads();  // the groups' sums are complete
  const float total = tid < 256 && i < kHeadValues ? sum_groups(partial, tid) : 0.f;
  wait_for_predecessor();  // conv2_backward, although nothing here depends on it: see wait_for_predecessor()
  if (is_parameter) {
    s.parameters[at] = sgd(old, total, rate);
    if (s.gradients) s.gradients[at] = total;
  } else if (tid < 256 && i == kHeadValues - 2) {
    s.results[graph_step].loss = double(total) / s.batch;
  } else if (tid < 256 && i == kHeadValues - 1) {
    s.results[graph_step].correct = int(total);
  }
}

union UpdateScratch {
  Bn1Scratch bn1;
  float4 head[kUpdateGroups][64];
  float4 conv2[kConv2Groups][kConv2Columns];
};
template <class P, class Models>
__device__ __forceinline__ void update(const State& s, UpdateScratch& scratch, int graph_step, int block) {
  trace(s, Phase::kUpdate, 0, threadIdx.x == 0);
  if (block < kConv1Blocks)
    update_conv1<P, Models>(s, scratch.bn1, block);
  else if (block < kConv1Blocks + kHeadBlocks)
    update_head<Models>(s, scratch.head, graph_step, block - kConv1Blocks);
  else
    update_conv2<P, Models>(s, scratch.conv2, block - kConv1Blocks - kHeadBlocks);
  trace(s, Phase::kUpdate, 7, threadIdx.x == 0);
}

template <class P, class Models>
__global__ void __launch_bounds__(kUpdateThreads, kUpdateLoads<Models>.resident_blocks)
    update_kernel(Models models, int graph_step) {
  __shared__ UpdateScratch scratch;
  update<P, Models>(state_of_block(models), scratch, graph_step, int(blockIdx.x));
}

}  // namespace mnist::fused
