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
#include "kernels/fused/state.h"

namespace mnist::fused {

inline constexpr int kUpdateThreads = 512;
inline constexpr int kUpdateGroups = kUpdateThreads / 64;
inline constexpr int kConv2Blocks = kConv2Values / (4 * 64);  // a block adds up 64 float4 columns
inline constexpr int kHeadBlocks = (kHeadValues / 4 + 63) / 64;
inline constexpr int kLoadsInFlight = 17;  // of a thread; eight groups cover a block of B2 an SM in one round
inline constexpr int kUpdateBlocks = 1 + kHeadBlocks + kConv2Blocks;

struct Bn1Scratch {
  double moments[64], pbar[9], covariance[9][9];
  double weights[kConv1Channels][kTaps];
  double parts[kUpdateGroups][64];
  float g1[4][512];
};

// Row of conv2_forward that holds a channel; see forward1.cuh.
__device__ __forceinline__ int forward_row(int channel) {
  const int r = channel & 15;
  return (channel & 48) + 8 * (r >> 1 & 1) + 2 * (r >> 2) + (r & 1);
}

template <class P>
__device__ __forceinline__ void pack_conv2(const State& s, float value, int tap, int out, int in) {
  using T = typename P::T;
  static_cast<T*>(s.conv2_forward)[(forward_row(out) * kTaps + tap) * kConv1Channels + in] = P::store(value);
  static_cast<T*>(s.conv2_data)[(in * kTaps + (kTaps - 1 - tap)) * kConv2Channels + out] = P::store(value);
}

// pbar and C from scratch.moments, which are sums of v' = v - kZeroPixel over 1 / inv_n positions.
__device__ __forceinline__ void covariance_of(Bn1Scratch& scratch, double inv_n) {
  const int tid = threadIdx.x;
  if (tid < 9) scratch.pbar[tid] = kPixelScale * inv_n * scratch.moments[tid];
  __syncthreads();
  if (tid < 81) {
    const int j = min(tid / 9, tid % 9), k = max(tid / 9, tid % 9);
    const double second = scratch.moments[9 + j * 9 - j * (j - 1) / 2 + (k - j)];
    scratch.covariance[tid / 9][tid % 9] =
        kPixelScale * kPixelScale * inv_n * second - scratch.pbar[j] * scratch.pbar[k];
  }
  __syncthreads();
}

__device__ __forceinline__ double sum_of_8_lanes(double x) {
#pragma unroll
  for (int mask = 4; mask > 0; mask >>= 1) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

// k index of tap (u, v) in a packed conv1 filter.
__device__ __forceinline__ int packed_tap(int tap) { return tap / 3 * 4 + tap % 3; }

// The weight a packed filter stands for: the sum of its parts, sign folded in.
template <class P>
__device__ __forceinline__ double packed_weight(const State& s, int channel, int tap) {
  const auto* packed = static_cast<const typename P::Pixel*>(s.conv1);
  double w = 0;
#pragma unroll
  for (int part = 0; part < P::kConv1Terms; ++part)
    w += double(from_pixel(packed[(part * kConv1Channels + channel) * 16 + packed_tap(tap)]));
  return w;
}

// Packs conv1 and sets bn1 for the batch whose covariance is in scratch. Thread c*8 + i serves channel c, tap i
// (and i = 0 tap 8 as well).
template <class P>
__device__ __forceinline__ void begin_conv1(const State& s, Bn1Scratch& scratch) {
  using Pixel = typename P::Pixel;
  if (threadIdx.x >= 8 * kConv1Channels) return;
  const int channel = threadIdx.x >> 3, i = threadIdx.x & 7;
  const float gamma = s.parameters[kParameters[kBn1Weight].offset + channel];
  const float beta = s.parameters[kParameters[kBn1Bias].offset + channel];
  const float sign = gamma < 0 ? -1.f : 1.f;
  auto* packed = static_cast<Pixel*>(s.conv1);
  for (int tap = i; tap < kTaps; tap += 8) {
    const float exact = sign * s.parameters[kParameters[kConv1Weight].offset + channel * kTaps + tap];
    float rest = exact;
#pragma unroll
    for (int part = 0; part < P::kConv1Terms; ++part) {
      const Pixel value = to_pixel<Pixel>(rest);
      packed[(part * kConv1Channels + channel) * 16 + packed_tap(tap)] = value;
      rest -= from_pixel(value);
    }
    scratch.weights[channel][tap] = double(exact) - rest;
  }
  __syncwarp();
  double w[kTaps], total = 0, mean = 0, var = 0;
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    w[tap] = scratch.weights[channel][tap];
    total += w[tap];
    mean += w[tap] * scratch.pbar[tap];
  }
  for (int tap = i; tap < kTaps; tap += 8) {
    double cw = 0;
#pragma unroll
    for (int k = 0; k < kTaps; ++k) cw += scratch.covariance[tap][k] * w[k];
    double own = 0;
#pragma unroll
    for (int k = 0; k < kTaps; ++k) own = k == tap ? w[k] : own;
    var += own * cw;
  }
  var = fmax(sum_of_8_lanes(var), 0.0);
  if (i == 0) {
    const double scale = fabs(double(gamma)) * rsqrt(var + kBatchNormEpsilon);
    s.bn1[channel] = float(scale * kPixelScale);
    s.bn1[32 + channel] = float(beta - scale * (mean + kPixelScale * kZeroPixelExact * total));
    s.bn1[64 + channel] = gamma == 0.f ? 1.f : 0.f;
  }
}

// Sum over `blocks` rows of `width` values at `from`, for columns column and column + 1 .. as a float4; this thread
// takes rows group, group + groups, ...
template <int kGroups>
__device__ __forceinline__ float4 sum_rows(const float* from, int blocks, int width, int column4, int group) {
  float4 total = {};
  for (int first = group; first < blocks; first += kGroups * kLoadsInFlight) {
    float4 x[kLoadsInFlight];
#pragma unroll
    for (int k = 0; k < kLoadsInFlight; ++k) {
      const int b = first + kGroups * k;
      x[k] = b < blocks ? reinterpret_cast<const float4*>(from + std::size_t(b) * width)[column4] : float4{};
    }
#pragma unroll
    for (int k = 0; k < kLoadsInFlight; ++k) total.x += x[k].x, total.y += x[k].y, total.z += x[k].z, total.w += x[k].w;
  }
  return total;
}

// Value i of the 64 float4 columns, over all groups in their order.
__device__ __forceinline__ float sum_groups(const float4 (&parts)[kUpdateGroups][64], int i) {
  float total = 0;
#pragma unroll
  for (int k = 0; k < kUpdateGroups; ++k) total += reinterpret_cast<const float*>(parts[k])[i];
  return total;
}

__device__ __forceinline__ void set_moments(const State& s, Bn1Scratch& scratch) {
  const int tid = threadIdx.x;
  if (tid >= kMoments) return;
  double total = 0;
#pragma unroll
  for (int k = 0; k < kUpdateGroups; ++k) total += scratch.parts[k][tid];
  scratch.moments[tid] = total;
  s.moments[tid] = total;
}

template <class P>
__device__ void update_conv1(const State& s, Bn1Scratch& scratch) {
  const int tid = threadIdx.x, group = tid >> 6, column = tid & 63;
  reinterpret_cast<float4*>(scratch.g1[tid >> 7])[tid & 127] =
      sum_rows<4>(s.g1_sums, s.b2_blocks, 512, tid & 127, tid >> 7);
  double next = 0;
  if (column < kMoments)
    for (int first = group; first < s.head_blocks; first += kUpdateGroups * kLoadsInFlight) {
      double x[kLoadsInFlight];
#pragma unroll
      for (int k = 0; k < kLoadsInFlight; ++k) {
        const int b = first + kUpdateGroups * k;
        x[k] = b < s.head_blocks ? s.moment_sums[std::size_t(b) * kMoments + column] : 0.0;
      }
#pragma unroll
      for (int k = 0; k < kLoadsInFlight; ++k) next += x[k];
    }
  scratch.parts[group][column] = next;
  if (tid < kMoments) scratch.moments[tid] = s.moments[tid];
  __syncthreads();
  covariance_of(scratch, s.inv_n1);

  const int channel = tid >> 3 & 31, i = tid & 7;  // the upper half of the threads repeats the lower without storing
  const bool stores = tid < 8 * kConv1Channels;
  const auto g1 = [&](int c) {
    return (double(scratch.g1[0][channel * 16 + c]) + scratch.g1[1][channel * 16 + c]) +
           (double(scratch.g1[2][channel * 16 + c]) + scratch.g1[3][channel * 16 + c]);
  };
  constexpr auto weight_at = kParameters[kConv1Weight].offset, gamma_at = kParameters[kBn1Weight].offset,
                 beta_at = kParameters[kBn1Bias].offset;
  const float gamma = s.parameters[gamma_at + channel], learning_rate = s.scalars[0];
  const double sign = gamma < 0 ? -1 : 1, d = g1(9);
  double w[kTaps], cw[2] = {}, gt[2] = {}, w_gt = 0, var = 0;
#pragma unroll
  for (int k = 0; k < kTaps; ++k) w[k] = sign * packed_weight<P>(s, channel, k);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int tap = i + 8 * n;
    if (tap >= kTaps) continue;
    gt[n] = kPixelScale * (g1(tap) - kZeroPixelExact * d) - d * scratch.pbar[tap];
    double own = 0;
#pragma unroll
    for (int k = 0; k < kTaps; ++k) {
      cw[n] += scratch.covariance[tap][k] * w[k];
      own = k == tap ? w[k] : own;
    }
    w_gt += own * gt[n];
    var += own * cw[n];
  }
  w_gt = sum_of_8_lanes(w_gt);
  var = fmax(sum_of_8_lanes(var), 0.0);
  const double inv_sigma = rsqrt(var + kBatchNormEpsilon), inv_var = inv_sigma * inv_sigma;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int tap = i + 8 * n;
    if (tap >= kTaps) continue;
    const float dw = float(double(gamma) * inv_sigma * (gt[n] - w_gt * inv_var * cw[n]));
    if (!stores) continue;
    s.parameters[weight_at + channel * kTaps + tap] -= learning_rate * dw;
    if (s.gradients) s.gradients[weight_at + channel * kTaps + tap] = dw;
  }
  if (i == 0 && stores) {
    s.parameters[gamma_at + channel] = gamma - learning_rate * float(w_gt * inv_sigma);
    s.parameters[beta_at + channel] -= learning_rate * float(d);
    if (s.gradients) {
      s.gradients[gamma_at + channel] = float(w_gt * inv_sigma);
      s.gradients[beta_at + channel] = float(d);
    }
  }
  __syncthreads();
  set_moments(s, scratch);
  __syncthreads();
  covariance_of(scratch, s.inv_n1);
  begin_conv1<P>(s, scratch);
}

// Values 256 * block .. of head_sums.
__device__ __forceinline__ void update_head(const State& s, float4 (&parts)[kUpdateGroups][64], int slot, int block) {
  const int tid = threadIdx.x, column = tid & 63, group = tid >> 6;
  if (block * 64 + column < kHeadValues / 4)
    parts[group][column] = sum_rows<kUpdateGroups>(s.head_sums, s.head_blocks, kHeadValues, block * 64 + column, group);
  __syncthreads();
  const int i = block * 256 + tid;
  if (tid >= 256 || i >= kHeadValues) return;
  const float total = sum_groups(parts, tid);
  constexpr int kWeights = kClasses * kHidden;
  if (i >= kHeadValues - 2) {
    if (i == kHeadValues - 2)
      s.results[slot].loss = double(total) / s.batch;
    else
      s.results[slot].correct = int(total);
    return;
  }
  const auto at = i < kWeights             ? kParameters[kFc2Weight].offset + i
                  : i < kWeights + kHidden ? kParameters[kFc1Bias].offset + i - kWeights
                                           : kParameters[kFc2Bias].offset + i - kWeights - kHidden;
  s.parameters[at] -= s.scalars[0] * total;
  if (s.gradients) s.gradients[at] = total;
}

template <class P>
__device__ void update_conv2(const State& s, float4 (&parts)[kUpdateGroups][64], int block) {
  const int tid = threadIdx.x, column = tid & 63, group = tid >> 6;
  parts[group][column] = sum_rows<kUpdateGroups>(s.conv2_sums, s.b2_blocks, kConv2Values, block * 64 + column, group);
  __syncthreads();
  if (tid >= 256) return;
  // What B2's thread held: warp tiles of 16 of conv2's channels by 8 of conv1's, in the order of an mma result.
  const int e = block * 256 + tid, value = e & 3, thread = e / 4 % 512, tap = e / (4 * 512);
  const int warp = thread / 32, lane = thread % 32;
  const int out = (warp & 3) * 16 + (value >> 1) * 8 + (lane >> 2);
  const int in = (warp >> 2) * 8 + 2 * (lane & 3) + (value & 1);
  const float dw = s.dbn2[out] * sum_groups(parts, tid);
  const auto at = kParameters[kConv2Weight].offset + (out * kConv1Channels + in) * kTaps + tap;
  const float w = s.parameters[at] - s.scalars[0] * dw;
  s.parameters[at] = w;
  if (s.gradients) s.gradients[at] = dw;
  const float sign = s.parameters[kParameters[kBn2Weight].offset + out] < 0 ? -1.f : 1.f;
  pack_conv2<P>(s, sign * w, tap, out, in);
}

template <class P>
__global__ void __launch_bounds__(kUpdateThreads) update_kernel(State s, int slot) {
  __shared__ union {
    Bn1Scratch bn1;
    float4 parts[kUpdateGroups][64];
  } scratch;
  const int block = blockIdx.x;
  wait_for_predecessor();  // B2
  if (block == 0)
    update_conv1<P>(s, scratch.bn1);
  else if (block <= kHeadBlocks)
    update_head(s, scratch.parts, slot, block - 1);
  else
    update_conv2<P>(s, scratch.parts, block - 1 - kHeadBlocks);
}

// After parameters were set: every operand copy from the slab.
template <class P>
__global__ void pack_kernel(State s) {
  wait_for_predecessor();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kHidden * kFeatures)
    static_cast<typename P::T*>(s.fc1)[i] = P::store(s.parameters[kParameters[kFc1Weight].offset + i]);
  if (i < kConv2Values) {
    const int tap = i % kTaps, in = i / kTaps % kConv1Channels, out = i / (kTaps * kConv1Channels);
    const float sign = s.parameters[kParameters[kBn2Weight].offset + out] < 0 ? -1.f : 1.f;
    pack_conv2<P>(s, sign * s.parameters[kParameters[kConv2Weight].offset + i], tap, out, in);
  }
}

// One block: the moments of a slot's batch, then conv1 as U leaves it.
template <class P>
__global__ void __launch_bounds__(kUpdateThreads) prepare_kernel(State s, int slot) {
  __shared__ Bn1Scratch scratch;
  const int tid = threadIdx.x, group = tid >> 6, column = tid & 63;
  wait_for_predecessor();
  double total = 0;
  if (column < kMoments)
#pragma unroll 8
    for (int b = group; b < s.batch; b += kUpdateGroups)
      total += s.samples.moments[std::size_t(s.samples.order[std::size_t(slot) * s.batch + b]) * kMoments + column];
  scratch.parts[group][column] = total;
  __syncthreads();
  set_moments(s, scratch);
  __syncthreads();
  covariance_of(scratch, s.inv_n1);
  begin_conv1<P>(s, scratch);
}

}  // namespace mnist::fused
