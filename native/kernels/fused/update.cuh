// U: block sums added up in a fixed order, the closed form of conv1's backward, SGD, and what the next step starts
// from: repacked filters and bn1's scale and shift for the next batch.
//
// bn1 without a pass over conv1's output: with p the 9 pixels under a filter, mean_c = w_c . pbar and
// var_c = w_c^T C w_c, where pbar and C are mean and covariance of p over all positions of the batch. And backward,
// with G_c and d_c from B2, sigma_c = sqrt(var_c + eps), s = gamma/sigma and Gt = G - d pbar:
//   d gamma = w . Gt / sigma,   d beta = d,   dw = s (Gt - (w . Gt / sigma^2) C w),   d bias = 0.
// w is the rounded weight the tensor cores used, so that the statistics are those of the values they made.
#pragma once

#include "kernels/fused/conv1.cuh"
#include "kernels/fused/parts.cuh"
#include "kernels/fused/state.h"

namespace mnist::fused {

inline constexpr int kUpdateThreads = 512;
inline constexpr int kUpdateGroups = kUpdateThreads / 64;
inline constexpr int kConv1Share = kConv1Channels / kConv1Blocks;  // channels of a block, a warp each
inline constexpr int kG1Groups = kUpdateThreads / (kConv1Share * kG1Columns / 4);
// A block adds up 48 float4 columns: then 96 blocks, nearly as many as there are multiprocessors, read B2's sums.
inline constexpr int kConv2Columns = 48, kConv2Groups = kUpdateThreads / kConv2Columns;
inline constexpr int kConv2Blocks = kConv2Values / (4 * kConv2Columns);
inline constexpr int kLoadsInFlight = 14;     // of a thread; its groups cover a block an SM in one round
inline constexpr int kHeadLoadsInFlight = 6;  // of H's sums, which are few, or complete long before they are needed
inline constexpr int kHeadBlocks = (kHeadValues / 4 + 63) / 64;
inline constexpr int kUpdateBlocks = kConv1Blocks + kHeadBlocks + kConv2Blocks;

// Mean and covariance of the 9 pixels under a filter over a batch.
struct PixelStatistics {
  double mean[kTaps], covariance[kTaps][kTaps];
};

struct Bn1Scratch {
  double moments[kMoments], next_moments[kMoments];
  PixelStatistics batch, next;
  double parts[kUpdateGroups][64];
  alignas(16) float g1[kG1Groups][kConv1Share * kG1Columns + 16];  // padded: rows next to each other lie in other banks
};

// Row of conv2_forward that holds a channel; see forward1.cuh.
__device__ __forceinline__ int forward_row(int channel) {
  const int r = channel & 15;
  return (channel & 48) + 8 * (r >> 1 & 1) + 2 * (r >> 2) + (r & 1);
}

// `inverse_unit` is used where there are parts of fp16 only.
template <class P>
__device__ __forceinline__ void pack_conv2(const State& s, float value, int tap, int out, int in, float inverse_unit) {
  using T = typename P::T;
  constexpr int kChunks = kConv1Channels / kChunk<P>;
  const T stored = P::store(value);
  const int flipped = kTaps - 1 - tap;
  if constexpr (P::kParts > 0)
    if (s.wgmma) {
      __half2 parts[P::kParts];
      split(value * inverse_unit, 0.f, parts);
#pragma unroll
      for (int part = 0; part < P::kParts; ++part) {
        static_cast<__half*>(
            s.conv2_forward)[(((part * kTaps + tap) * (kConv1Channels / 8) + in / 8) * kConv2Channels + out) * 8 +
                             in % 8] = parts[part].x;
        const int piece = (part * 3 + flipped / 3) * (kConv2Channels / 8) + out / 8;
        static_cast<__half*>(s.conv2_pieces)[((piece * 3 + 2 - flipped % 3) * kConv1Channels + in) * 8 + out % 8] =
            parts[part].x;
      }
      return;
    }
  const bool wgmma = s.wgmma;
  const int forward = wgmma ? ((tap * kChunks + in / kChunk<P>)*kConv2Channels + out) * kChunk<P> + in % kChunk<P>
                            : (forward_row(out) * kTaps + tap) * kConv1Channels + in;
  static_cast<T*>(s.conv2_forward)[forward] = stored;
  static_cast<T*>(s.conv2_data)[(in * kTaps + flipped) * kConv2Channels + out] = stored;
  if constexpr (sizeof(T) == 2) {
    using Filter = DgradFilter;
    const int piece = flipped / 3 * Filter::kChunks + out / 8;
    const int at = piece * Filter::kPieceBytes + Filter::kZeroBytes + (2 - flipped % 3) * Filter::kTapBytes + in * 16;
    if (wgmma) static_cast<T*>(s.conv2_pieces)[at / 2 + out % 8] = stored;
  }
}

// From sums of v' = v - kZeroPixel and of its products over 1 / inv_n positions; threads 0 .. 80 of those that call.
__device__ __forceinline__ void set_statistics(PixelStatistics& to, const double (&moments)[kMoments], double inv_n,
                                               int thread) {
  if (thread < 0 || thread >= kTaps * kTaps) return;
  const int row = thread / kTaps, column = thread % kTaps, j = min(row, column), k = max(row, column);
  const auto mean = [&](int tap) { return kPixelScale * inv_n * moments[tap]; };
  const double second = moments[kTaps + j * kTaps - j * (j - 1) / 2 + (k - j)];
  to.covariance[row][column] = kPixelScale * kPixelScale * inv_n * second - mean(j) * mean(k);
  if (row == column) to.mean[row] = mean(row);
}

__device__ __forceinline__ double sum_of_16_lanes(double x) {
#pragma unroll
  for (int mask = 8; mask > 0; mask >>= 1) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

// A filter before the pixels of a batch, by a warp: lane l, and lane l + 16 again, holds tap l, or 0 from 9 on.
struct Filtered {
  double total, mean, variance;  // sum of w; mean and variance of w . p
  double cw;                     // this lane's value of C w
};
__device__ __forceinline__ Filtered filtered(const PixelStatistics& pixels, double own) {
  const int tap = min(int(threadIdx.x) & 15, kTaps - 1);
  Filtered f{};
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
    const double w = __shfl_sync(0xffffffffu, own, k);
    f.total += w;
    f.mean += w * pixels.mean[k];
    f.cw += pixels.covariance[tap][k] * w;
  }
  f.variance = fmax(sum_of_16_lanes(own * f.cw), 0.0);
  return f;
}

// The power of two below a channel's largest weight, by a warp that holds the weights as filtered() has them. What the
// tensor cores get is divided by it: 16-bit parts then lose nothing where weights are small.
__device__ __forceinline__ float filter_unit(float weight) {
  float largest = fabsf(weight);
#pragma unroll
  for (int mask = 8; mask > 0; mask >>= 1) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
  const unsigned exponent = __float_as_uint(largest) & 0x7f800000u;
  return exponent == 0 ? 1.f : __uint_as_float(exponent);
}

// Splits a weight of conv1 into what the tensor cores get, store(part, value), and returns what that adds up to.
template <class P, class Store>
__device__ __forceinline__ double split_weight(float weight, float unit, Store store) {
  float rest = weight / unit;
#pragma unroll
  for (int part = 0; part < P::kConv1Terms; ++part) {
    const auto value = to_pixel<typename P::Pixel>(rest);
    store(part, value);
    rest -= from_pixel(value);
  }
  return double(weight) - double(rest) * unit;
}

// Packs a channel of conv1 and sets its bn1 for a batch with these pixels, by a warp that holds the weights as
// filtered() has them.
template <class P>
__device__ __forceinline__ void begin_conv1(const State& s, const PixelStatistics& pixels, int channel, float weight,
                                            float gamma, float beta) {
  using Pixel = typename P::Pixel;
  const int lane = threadIdx.x & 31, row = lane >> 2 & 3, column = lane & 3;
  // Lane l writes element l % 16 of the 4 x 4 patch, for positions 0 and 1 or 2 and 3 of the filter in it. Where gamma
  // is 0 every position ties and the first one must win: there all of them are the first.
  const auto store = [&](int part, Pixel value) {
    const unsigned bits = *reinterpret_cast<const std::uint16_t*>(&value);
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int position = 2 * (lane >> 4) + x, u = row - (gamma == 0 ? 0 : lane >> 4),
                v = column - (gamma == 0 ? 0 : x);
      const bool inside = u >= 0 && u < 3 && v >= 0 && v < 3;
      const unsigned tap = __shfl_sync(0xffffffffu, bits, inside ? 3 * u + v : 0);
      static_cast<std::uint16_t*>(s.conv1)[((part * 4 + position) * kConv1Channels + channel) * 16 + lane % 16] =
          std::uint16_t(inside ? tap : 0);
    }
  };
  const float unit = filter_unit(weight);
  const Filtered f = filtered(pixels, split_weight<P>(gamma < 0 ? -weight : weight, unit, store));
  const double scale = fabs(double(gamma)) * rsqrt(f.variance + kBatchNormEpsilon);
  float most = 0;  // of conv1, in pixel units
  if constexpr (P::kParts > 0) {
    const float w = gamma < 0 ? -weight : weight;
    most = fmaxf(w * kLargestPixel, w * kSmallestPixel);
#pragma unroll
    for (int mask = 8; mask > 0; mask >>= 1) most += __shfl_xor_sync(0xffffffffu, most, mask);
  }
  if (lane == 0) {
    const float shift = float(beta - scale * (f.mean + kPixelScale * kZeroPixelExact * f.total));
    s.bn1[channel] = float(scale * kPixelScale);
    s.bn1[32 + channel] = shift;
    if constexpr (P::kParts > 0)
      s.bn1[64 + channel] = fmaxf(fmaf(float(scale * kPixelScale), float(kRoundingSlack) * most, shift), 0.f);
    s.bn1[96 + channel] = unit;
  }
}

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
__device__ __forceinline__ float sum_groups(const float4 (&parts)[kGroups][kColumns], int i) {
  float total = 0;
#pragma unroll
  for (int k = 0; k < kGroups; ++k) total += reinterpret_cast<const float*>(parts[k])[i];
  return total;
}

// The groups' shares of the next batch's moments, to `to` and to the block's own copy in global memory.
__device__ __forceinline__ void set_moments(const State& s, double (&to)[kMoments],
                                            const double (&parts)[kUpdateGroups][64], int block) {
  const int tid = threadIdx.x;
  if (tid >= kMoments) return;
  double total = 0;
#pragma unroll
  for (int k = 0; k < kUpdateGroups; ++k) total += parts[k][tid];
  to[tid] = total;
  s.moments[block * kMoments + tid] = total;
}

// conv1 and bn1, channels kConv1Share * block .. After the sums over B2's blocks everything stays in the registers of
// a warp a channel.
template <class P>
__device__ void update_conv1(const State& s, Bn1Scratch& scratch, int block) {
  constexpr auto weight_at = kParameters[kConv1Weight].offset, gamma_at = kParameters[kBn1Weight].offset,
                 beta_at = kParameters[kBn1Bias].offset;
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, tap = lane & 15;
  const int channel = block * kConv1Share + warp % kConv1Share;
  const bool has_tap = tap < kTaps, computes = warp < kConv1Share;

  // B2 has no part in the pixels of either batch (H summed the next one's) nor in this step's weights.
  const float weight = has_tap ? s.parameters[weight_at + channel * kTaps + tap] : 0.f;
  float gamma = s.parameters[gamma_at + channel], beta = s.parameters[beta_at + channel];
  const float learning_rate = *s.learning_rate;
  {
    const int group = tid >> 6, column = min(tid & 63, kMoments - 1);
    const double current = s.moments[block * kMoments + column];
    double next = 0;
    for_rows<kUpdateGroups, kHeadLoadsInFlight>(
        s.head_blocks, group, [&](int b) { return s.moment_sums[std::size_t(b) * kMoments + column]; },
        [&](double x, int) { next += x; });
    if (tid < kMoments) scratch.moments[tid] = current;
    scratch.parts[group][tid & 63] = next;
  }
  __syncthreads();
  set_moments(s, scratch.next_moments, scratch.parts, block);
  __syncthreads();
  set_statistics(scratch.batch, scratch.moments, s.inv_n1, tid);
  set_statistics(scratch.next, scratch.next_moments, s.inv_n1, tid - 128);
  __syncthreads();
  const double own =
      split_weight<P>(weight, filter_unit(weight), [](int, auto) {});  // as F1 used it, without gamma's sign
  double cw = 0, pixel_mean = 0, inv_sigma = 0;
  if (computes) {
    const Filtered f = filtered(scratch.batch, own);
    cw = f.cw;
    pixel_mean = scratch.batch.mean[min(tap, kTaps - 1)];
    inv_sigma = rsqrt(f.variance + kBatchNormEpsilon);
  }

  wait_for_predecessor();  // B2: g1_sums
  constexpr int kColumns4 = kUpdateThreads / kG1Groups;
  const int column4 = tid % kColumns4, group = tid / kColumns4;
  reinterpret_cast<float4*>(scratch.g1[group])[column4] = sum_rows<kG1Groups, 9>(
      s.g1_sums + block * kColumns4 * 4, s.b2_blocks, kConv1Channels * kG1Columns, column4, group);
  __syncthreads();
  if (!computes) return;
  // Each half of the warp adds up every other group, four at a time in float.
  double g = 0;
#pragma unroll
  for (int k = 0; k < kG1Groups / 2; k += 4) {
    const auto part = [&](int i) { return scratch.g1[2 * (k + i) + (lane >> 4)][warp * kG1Columns + tap]; };
    g += (part(0) + part(1)) + (part(2) + part(3));
  }
  g += __shfl_xor_sync(0xffffffffu, g, 16);
  const double d = __shfl_sync(0xffffffffu, g, kTaps);  // column 9
  const double gt = kPixelScale * (g - kZeroPixelExact * d) - d * pixel_mean;
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

// Values 256 * block .. of head_sums, which H wrote: only the end of the step has to be waited for.
__device__ __forceinline__ void update_head(const State& s, float4 (&parts)[kUpdateGroups][64], int slot, int block) {
  constexpr int kWeights = kClasses * kHidden;
  const int tid = threadIdx.x, column = tid & 63, group = tid >> 6, i = block * 256 + tid;
  const auto at = i < kWeights             ? kParameters[kFc2Weight].offset + i
                  : i < kWeights + kHidden ? kParameters[kFc1Bias].offset + i - kWeights
                                           : kParameters[kFc2Bias].offset + i - kWeights - kHidden;
  const bool is_parameter = tid < 256 && i < kHeadValues - 2;
  const float old = is_parameter ? s.parameters[at] : 0.f, learning_rate = *s.learning_rate;
  parts[group][column] = sum_rows<kUpdateGroups, kHeadLoadsInFlight>(
      s.head_sums, s.head_blocks, kHeadValues, min(block * 64 + column, kHeadValues / 4 - 1), group);
  __syncthreads();
  const float total = tid < 256 && i < kHeadValues ? sum_groups(parts, tid) : 0.f;
  wait_for_predecessor();  // B2, although it has no part in this: see wait_for_predecessor()
  if (is_parameter) {
    s.parameters[at] = old - learning_rate * total;
    if (s.gradients) s.gradients[at] = total;
  } else if (tid < 256 && i == kHeadValues - 2) {
    s.results[slot].loss = double(total) / s.batch;
  } else if (tid < 256 && i == kHeadValues - 1) {
    s.results[slot].correct = int(total);
  }
}

template <class P>
__device__ void update_conv2(const State& s, float4 (&parts)[kConv2Groups][kConv2Columns], int block) {
  constexpr int kValues = 4 * kConv2Columns;
  const int tid = threadIdx.x, column = tid % kConv2Columns, group = tid / kConv2Columns;
  // B2's order: tiles of 16 of conv2's channels by 8 of conv1's, each as a warp holds an mma result. Threads from
  // kValues on repeat others, and stop before they store.
  const int e = block * kValues + tid % kValues, value = e & 3, thread = e / 4 % 512, tap = e / (4 * 512);
  const int warp = thread / 32, lane = thread % 32;
  const int out = (warp & 3) * 16 + (value >> 1) * 8 + (lane >> 2);
  const int in = (warp >> 2) * 8 + 2 * (lane & 3) + (value & 1);
  const auto at = kParameters[kConv2Weight].offset + (out * kConv1Channels + in) * kTaps + tap;
  const float old = s.parameters[at], learning_rate = *s.learning_rate;
  wait_for_predecessor();  // B2: conv2_sums, bn2's update and the unit
  const bool splits = P::kParts > 0 && s.wgmma;
  const float unit = splits ? s.conv2_units[1] : 1.f;
  const float old_sign = s.bn2_sign[out];
  const float sign = s.parameters[kParameters[kBn2Weight].offset + out] < 0 ? -1.f : 1.f;
  if (group < kConv2Groups)  // but for the last warp
    parts[group][column] = sum_rows<kConv2Groups, kLoadsInFlight>(s.conv2_sums, s.b2_blocks, kConv2Values,
                                                                  block * kConv2Columns + column, group);
  __syncthreads();
  if (tid >= kValues) return;
  const float dw = old_sign * sum_groups(parts, tid);
  const float w = old - learning_rate * dw;
  s.parameters[at] = w;
  if (s.gradients) s.gradients[at] = dw;
  pack_conv2<P>(s, sign * w, tap, out, in, inverse_of(unit));
  if (splits) {
    if (block == 0 && tid == 0) s.conv2_units[0] = unit;
    const float largest = warp_max(fabsf(w));
    if (tid % 32 == 0) s.conv2_max[(block * kValues + tid) / 32] = largest;
  }
}

template <class P>
__global__ void __launch_bounds__(kUpdateThreads, 1) update_kernel(State s, int slot) {
  __shared__ union {
    Bn1Scratch bn1;
    float4 head[kUpdateGroups][64];
    float4 conv2[kConv2Groups][kConv2Columns];
  } scratch;
  const int block = blockIdx.x;
  if (block < kConv1Blocks)
    update_conv1<P>(s, scratch.bn1, block);
  else if (block < kConv1Blocks + kHeadBlocks)
    update_head(s, scratch.head, slot, block - kConv1Blocks);
  else
    update_conv2<P>(s, scratch.conv2, block - kConv1Blocks - kHeadBlocks);
}

// After parameters were set: every operand copy from the slab.
template <class P>
__global__ void pack_kernel(State s) {
  wait_for_predecessor();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kHidden * kFeatures)
    static_cast<typename P::T*>(s.fc1)[i] = P::store(s.parameters[kParameters[kFc1Weight].offset + i]);
  if (i < kConv2Values) {
    float unit = 1;
    if (P::kParts > 0 && s.wgmma) {
      const float* weights = s.parameters + kParameters[kConv2Weight].offset;
      float largest = 0;
      for (int k = threadIdx.x & 31; k < kConv2Values; k += 32) largest = fmaxf(largest, fabsf(weights[k]));
      unit = conv2_unit_of(warp_max(largest));
      if (i == 0) s.conv2_units[0] = unit;
      largest = warp_max(fabsf(weights[i]));
      if (i % 32 == 0) s.conv2_max[i / 32] = largest;
    }
    const int tap = i % kTaps, in = i / kTaps % kConv1Channels, out = i / (kTaps * kConv1Channels);
    const float sign = s.parameters[kParameters[kBn2Weight].offset + out] < 0 ? -1.f : 1.f;
    pack_conv2<P>(s, sign * s.parameters[kParameters[kConv2Weight].offset + i], tap, out, in, inverse_of(unit));
  }
}

// kConv1Blocks blocks: the moments of a slot's batch, then their channels of conv1 as U leaves them.
template <class P>
__global__ void __launch_bounds__(kUpdateThreads) prepare_kernel(State s, int slot) {
  __shared__ Bn1Scratch scratch;
  const int tid = threadIdx.x, group = tid >> 6, column = tid & 63, warp = tid >> 5, tap = tid & 15;
  wait_for_predecessor();
  double total = 0;
  if (column < kMoments)
#pragma unroll 8
    for (int b = group; b < s.batch; b += kUpdateGroups)
      total += s.samples.moments[std::size_t(s.samples.order[std::size_t(slot) * s.batch + b]) * kMoments + column];
  scratch.parts[group][column] = total;
  __syncthreads();
  set_moments(s, scratch.moments, scratch.parts, blockIdx.x);
  __syncthreads();
  set_statistics(scratch.batch, scratch.moments, s.inv_n1, tid);
  __syncthreads();
  if (warp >= kConv1Share) return;
  const int channel = blockIdx.x * kConv1Share + warp;
  begin_conv1<P>(s, scratch.batch, channel,
                 tap < kTaps ? s.parameters[kParameters[kConv1Weight].offset + channel * kTaps + tap] : 0.f,
                 s.parameters[kParameters[kBn1Weight].offset + channel],
                 s.parameters[kParameters[kBn1Bias].offset + channel]);
}

}  // namespace mnist::fused
