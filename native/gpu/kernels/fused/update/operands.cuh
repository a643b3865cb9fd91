// What update leaves for the next step: bn1's scale and shift, without a pass over conv1's output, and repacked weights
// of conv1 and conv2.
//
// bn1: with p the 9 pixels under a filter, mean_c = w_c . pbar and var_c = w_c^T C w_c, where pbar and C are mean and
// covariance of p over all positions of the batch. w is the rounded weight that the tensor cores used, so that the
// statistics describe the values that they made.
#pragma once

#include "kernels/fused/shared/image.cuh"
#include "kernels/fused/shared/scales.cuh"

namespace mnist::fused {

// ---- bn1 ------------------------------------------------------------------------------------------------------------

// Mean and covariance of the 9 pixels under a filter over a batch.
struct PixelStatistics {
  double mean[kTaps], covariance[kTaps][kTaps];
};

// From sums of v - MomentPixels::kZero and of its products over 1 / inv_n positions; `thread` is 0 .. 80, the callers
// with other numbers do nothing.
__device__ __forceinline__ void set_statistics(PixelStatistics& to, const double (&moments)[kMoments], double inv_n,
                                               int thread) {
  if (thread < 0 || thread >= kTaps * kTaps) return;
  const int row = thread / kTaps, column = thread % kTaps, j = min(row, column), k = max(row, column);
  constexpr double kScale = MomentPixels::kScale;
  const auto mean = [&](int tap) { return kScale * inv_n * moments[tap]; };
  const double second = moments[kTaps + j * kTaps - j * (j - 1) / 2 + (k - j)];
  to.covariance[row][column] = kScale * kScale * inv_n * second - mean(j) * mean(k);
  if (row == column) to.mean[row] = mean(row);
}

__device__ __forceinline__ double sum_of_16_lanes(double x) {
#pragma unroll
  for (int mask = 8; mask > 0; mask >>= 1) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

// What a filter makes of a batch's pixels, by a warp: lanes l and l + 16 hold tap l, or 0 from 9 on.
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

// ---- Repacking ------------------------------------------------------------------------------------------------------

// Row of conv2_forward that holds a channel: see conv2_rows() in conv_forward/mma_products.cuh.
__device__ __forceinline__ int conv2_forward_row(int channel) {
  const int r = channel & 15;
  return (channel & 48) + 8 * (r >> 1 & 1) + 2 * (r >> 2) + (r & 1);
}

// Stores a weight of conv2 in the copies that the next step's products read. A chunk is 16 bytes, here 8 values:
//
//                   mma.sync               wgmma, 16 bits            wgmma, fp16 terms
//   conv2_forward   [row of out][tap][in]  [tap][in / 8][out][8]     [term][tap][in / 8][out][8]
//   conv2_dgrad     [in][flipped][out]     DgradFilter, see below    [term][v][out / 8][2 - u][in][8]
//
// For mma.sync operand_at() says where the last index and a term lie.
// `flipped` is the tap of dgrad's filter, 8 - tap: filter row v = flipped / 3, column u = flipped % 3.
// DgradFilter has a piece for each [v][out / 8], with zeros ahead of its taps (state.h):
//
//   | zeros | column tap 2: [in][8 of out] | column tap 1 | column tap 0 | zeros of the next piece ...
//
// `inverse_scale` is used in tf32 and for fp16 terms only.
template <class P>
__device__ __forceinline__ void repack_conv2(const State& s, float value, int tap, int out, int in,
                                             float inverse_scale) {
  using T = typename Operand<P>::T;
  using Filter = DgradFilter;
  constexpr int kChunks = kConv1Channels / 8;
  const int flipped = kTaps - 1 - tap;
  T terms[kTerms<P>];
  float rest = kHasScales<P> ? value * inverse_scale : value;
#pragma unroll
  for (int term = 0; term < kTerms<P>; ++term) {
    terms[term] = Operand<P>::store(rest);
    rest -= Operand<P>::load(terms[term]);
  }
#pragma unroll
  for (int term = 0; term < kTerms<P>; ++term) {
    const int piece = (term * 3 + flipped / 3) * Filter::kChunks + out / 8, place = 2 - flipped % 3;
    int forward = (((term * kTaps + tap) * kChunks + in / 8) * kConv2Channels + out) * 8 + in % 8;
    int dgrad = kTerms<P> == 1 ? (piece * Filter::kPieceBytes + Filter::kZeroBytes + place * Filter::kTapBytes) / 2
                               : piece * 3 * kConv1Channels * 8 + place * kConv1Channels * 8;
    dgrad += in * 8 + out % 8;
    if (!s.wgmma) {
      const int at = term * kTermBytes / 2;
      forward = (conv2_forward_row(out) * kTaps + tap) * kConv1Channels * kTerms<P> + operand_at<P>(in) / 2 + at;
      dgrad = (in * kTaps + flipped) * kConv2Channels * kTerms<P> + operand_at<P>(out) / 2 + at;
    }
    static_cast<T*>(s.conv2_forward)[forward] = terms[term];
    static_cast<T*>(s.conv2_dgrad)[dgrad] = terms[term];
  }
}

// The power of two below a channel's largest weight, by a warp that holds the weights as filtered() expects them. The
// tensor cores get weights divided by it: 16-bit terms then lose nothing where weights are small.
__device__ __forceinline__ float filter_scale(float weight) {
  float largest = fabsf(weight);
#pragma unroll
  for (int mask = 8; mask > 0; mask >>= 1) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
  const unsigned exponent = __float_as_uint(largest) & 0x7f800000u;
  return exponent == 0 ? 1.f : __uint_as_float(exponent);
}

// Splits a weight of conv1 into the terms that the tensor cores get, store(term, value), and returns their sum.
template <class P, class Store>
__device__ __forceinline__ double split_weight(float weight, float divisor, Store store) {
  float rest = weight / divisor;
#pragma unroll
  for (int term = 0; term < P::kConv1Terms; ++term) {
    const __half value = __float2half_rn(rest);
    store(term, value);
    rest -= __half2float(value);
  }
  return double(weight) - double(rest) * divisor;
}

// Repacks a channel of conv1 and sets its bn1 for a batch with these pixels, by a warp that holds the weights as
// filtered() expects them.
template <class P>
__device__ __forceinline__ void begin_conv1(const State& s, const PixelStatistics& pixels, int channel, float weight,
                                            float gamma, float beta) {
  const int lane = threadIdx.x & 31, row = lane >> 2 & 3, column = lane & 3;
  // conv1's operand is the filter at its four positions in a 4 x 4 patch: see Conv1 in conv_forward/mma_products.cuh.
  // Lane l writes element l % 16 of the patch, for positions 0 and 1 or 2 and 3. Where gamma is 0 every position ties
  // and the first one must win: there all of them are the first.
  const auto store = [&](int term, __half value) {
    const unsigned bits = *reinterpret_cast<const std::uint16_t*>(&value);
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int position = 2 * (lane >> 4) + x, u = row - (gamma == 0 ? 0 : lane >> 4),
                v = column - (gamma == 0 ? 0 : x);
      const bool inside = u >= 0 && u < 3 && v >= 0 && v < 3;
      const unsigned tap = __shfl_sync(0xffffffffu, bits, inside ? 3 * u + v : 0);
      static_cast<std::uint16_t*>(s.conv1)[((term * 4 + position) * kConv1Channels + channel) * 16 + lane % 16] =
          std::uint16_t(inside ? tap : 0);
    }
  };
  const float divisor = filter_scale(weight);
  const Filtered f = filtered(pixels, split_weight<P>(gamma < 0 ? -weight : weight, divisor, store));
  const double scale = fabs(double(gamma)) * rsqrt(f.variance + kBatchNormEpsilon);
  float most = 0;  // of conv1, in pixel units
  if constexpr (kHasScales<P>) {
    const float w = gamma < 0 ? -weight : weight;
    most = fmaxf(w * Pixels<P>::kLargest, w * Pixels<P>::kSmallest);
#pragma unroll
    for (int mask = 8; mask > 0; mask >>= 1) most += __shfl_xor_sync(0xffffffffu, most, mask);
  }
  if (lane == 0) {
    const float shift = float(beta - scale * (f.mean + Pixels<P>::kScale * Pixels<P>::kZero * f.total));
    s.bn1.scale(channel) = float(scale * Pixels<P>::kScale);
    s.bn1.shift(channel) = shift;
    if constexpr (kHasScales<P>)
      s.bn1.largest_a1(channel) =
          fmaxf(fmaf(float(scale * Pixels<P>::kScale), float(kRoundingSlack) * most, shift), 0.f);
    s.bn1.filter_scale(channel) = divisor;
  }
}

}  // namespace mnist::fused
