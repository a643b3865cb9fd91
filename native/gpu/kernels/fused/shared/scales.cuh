// Scales: fp16 has few exponents, so values are divided by a power of two before they become fp16. tf32 stores each
// tensor as fp16 with a scale; fp32 multiplies two fp16 terms a value.
#pragma once

#include "kernels/device/lane.cuh"
#include "kernels/device/loads.cuh"
#include "kernels/fused/shared/numbers.cuh"
#include "kernels/fused/state.h"

namespace mnist::fused {

__device__ __forceinline__ float inverse_of(float scale) {
  return __uint_as_float((254u << 23) - __float_as_uint(scale));
}

// The largest of kCount values, by a warp.
template <int kCount>
__device__ __forceinline__ float largest_of(const float* values, int lane) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < (kCount + 31) / 32; ++i)
    if (kCount % 32 == 0 || i * 32 + lane < kCount) largest = fmaxf(largest, values[i * 32 + lane]);
  return warp_max(largest);
}

// The scale that update will give conv2's weights, by a warp.
__device__ __forceinline__ void choose_conv2_scale(const State& s, int lane) {
  const float scale = weight_scale(largest_of<kConv2Values / 32>(s.conv2_max, lane));
  if (lane == 0) s.scales[kNextConv2Scale] = scale;
}

// a1's, by a warp.
__device__ __forceinline__ float a1_scale(const State& s, int lane) {
  return power_of_two_scale<15, -60>(warp_max(s.bn1.largest_a1(lane)));
}

// ---- tf32: a scale for each tensor ----------------------------------------------------------------------------------

// tf32's tensors are fp16 in memory and in the tensor cores, each divided by a scale.
//
// fp16 has tf32's 11 significant bits but few exponents. So a scale is a power of two of which the largest value that
// the tensor can hold is less than 2^15; fp16 ends at 65504, and what rounding adds on the way is far below the rest.
// Beyond its significant bits a value loses at most 2^-25 scales, 2^-39 of that largest one: a bound that is a thousand
// times too large does no harm, and none needs a pass of its own. All are known before the tensor is written:
//   a1       largest_a1: from bn1's scale and shift, the filter and the range of a pixel
//   conv2    from the weights before their last update, the largest of which was below 2^7 scales: their own maximum
//            would be known a phase too late. In one update they may grow 512 times, and always up to 16; beyond,
//            results stop being finite
//   z2       sums of 288 products of a1 and the weights, by the weights' own maximum, which is known by now
//   a2       |gamma| sqrt(N) + |beta|, because none of N values is farther than sqrt(N) of their standard deviations
//            from their mean; with the population's statistics from the scale, the shift and where z2 ends
//   fc1      as conv2
//   dh       twice the upstream gradient times the largest weight of fc2: |softmax - one-hot| adds up to at most 2
//   dy2      sums of 128 products, by the largest dh (in fc by what dh cannot exceed) and the largest weight of fc1
//   dz2      from the largest dy2 and bn2's sums, with sqrt(N) as above: see make_bn2_backward()
//   da1      sums of 576 products of dz2 and conv2's weights
// Only sqrt(N) relies on something: that the variance, a difference of sums, is accurate. Where the mean is so much
// larger that it is not, floats are no better, and a2 and dz2 saturate at fp16's end, so that everything stays finite.
// Sums leave a kernel as they are, in float; bn2's are of z2 as it is stored (see finish_bn2()).

// The scale of a tensor that cannot exceed `largest`.
__device__ __forceinline__ float scale_of(float largest) { return largest > 0 ? power_of_two_scale<15>(largest) : 1.f; }

// z2's, by a warp. The first block of conv_forward leaves it, with conv2's largest weight, for the phases behind.
__device__ __forceinline__ float z2_scale_of(const State& s, float conv2, int lane) {
  return scale_of(float(kConv1Channels * kTaps) * warp_max(s.bn1.largest_a1(lane)) * conv2);
}
__device__ __forceinline__ float make_z2_scale(const State& s, int lane) {
  const float conv2 = largest_of<kConv2Values / 32>(s.conv2_max, lane), scale = z2_scale_of(s, conv2, lane);
  if (blockIdx.x == 0 && lane == 0) s.scales[kZ2Scale] = scale, s.scales[kLargestConv2] = conv2;
  return scale;
}

// The factor from sums of a1 and conv2's weights, both as stored or as terms, to z2 as stored, by a warp.
template <class P>
__device__ __forceinline__ float z2_acc_scale(const State& s, int lane) {
  if constexpr (!kHasScales<P>) return 1;
  const float scale = a1_scale(s, lane) * s.scales[kConv2Scale];
  if constexpr (P::kScaled) return scale / make_z2_scale(s, lane);
  return scale;
}

// a2's, by a warp; s.bn2 is of z2 as it is stored, and nothing that is stored reaches 2^16 z2_scale.
__device__ __forceinline__ float make_a2_scale(const State& s, int lane, float z2_scale) {
  float largest = 0;
#pragma unroll
  for (int c = lane; c < kConv2Channels; c += 32) {
    const float gamma = s.parameters[kParameters[kBn2Weight].offset + c],
                beta = s.parameters[kParameters[kBn2Bias].offset + c];
    largest = fmaxf(largest, s.bn2_given ? fmaf(fabsf(s.bn2.scale(c)) * z2_scale, 0x1p16f, fabsf(s.bn2.shift(c)))
                                         : fmaf(fabsf(gamma), rsqrtf(float(s.inv_n2)), fabsf(beta)));
  }
  return scale_of(warp_max(largest));
}

// fc1_forward's scales: begin() while conv_forward may still run, finish() after it. The first block leaves a2's for
// fc1_backward.
template <class P>
struct Fc1ForwardScales {
  float z2 = 1, a2 = 1, fc1 = 1;

  __device__ __forceinline__ void begin(const State& s, int lane) {
    if constexpr (P::kScaled)
      if (!s.bn2_given) a2 = make_a2_scale(s, lane, z2);
  }
  __device__ __forceinline__ void finish(const State& s, int lane) {
    if constexpr (P::kScaled) {
      z2 = s.scales[kZ2Scale], fc1 = s.scales[kFc1Scale];
      if (s.bn2_given) a2 = make_a2_scale(s, lane, z2);
      if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) s.scales[kA2Scale] = a2;
    }
  }
};

// dy2's, and the factor from sums of dh and fc1's weights, both as stored, to dy2 as stored: by every warp of
// fc1_backward's dgrad, after head. The first block leaves dy2's for conv2_backward.
struct Dy2Scales {
  float dy2 = 1, of_sums = 1;
};
template <class P>
__device__ __forceinline__ Dy2Scales dy2_scales(const State& s) {
  if constexpr (!P::kScaled) return {};
  const float of_sums = s.scales[kDhScale] * s.scales[kFc1Scale];
  float largest_dh = 0;
  for_rows<32, 5>(
      s.head_blocks, threadIdx.x & 31, [&](int block) { return s.dh_max()[block]; },
      [&](float x, int) { largest_dh = fmaxf(largest_dh, x); });
  const float dy2 = scale_of(float(kHidden) * warp_max(largest_dh) * s.scales[kLargestFc1]);
  if (blockIdx.x == 0 && threadIdx.x == 0) s.scales[kDy2Scale] = dy2;
  return {dy2, of_sums / dy2};
}

// Equal images have equal rounding errors, while the batch's sums nearly cancel. So in larger batches each sample is
// rounded by a draw of 32 bits, which depends only on the sample and the unit or channel, and rounding is right on
// average. In small batches rounding to the nearest is better. (The batch decides, not the kernel: schedules and GPUs
// round alike.)
__device__ __forceinline__ bool rounds_by_draws(const State& s) { return s.batch > 128; }
__device__ __forceinline__ std::uint32_t draw_of(int sample, int unit) {
  return std::uint32_t(sample) * 0x9e3779b9u + std::uint32_t(unit) * 0x85ebca6bu;
}
// dh, up or down.
__device__ __forceinline__ float round_dh(const State& s, float x, int sample, int unit) {
  const std::uint32_t half = rounds_by_draws(s) ? draw_of(sample, unit) >> 19 : 0x1000u;
  return x == x ? __uint_as_float((__float_as_uint(x) + half) & 0xffffe000u) : x;
}
// The factor from a sample's sums to z2: z2_acc_scale(), in training up to half of a rounding larger or smaller, the
// same for the sample's whole channel, so that equal values in it remain equal.
__device__ __forceinline__ float z2_factor(const State& s, float acc_scale, int sample, int channel) {
  if (s.bn2_given || !rounds_by_draws(s)) return acc_scale;
  return acc_scale * fmaf(float(draw_of(sample, channel)), 0x1p-42f, 1.f - 0x1p-11f);
}

// da1's: the divisor of dgrad's sums of dz2 and conv2's weights, both as stored.
__device__ __forceinline__ float da1_scale(const State& s) {
  return power_of_two_scale<15>(float(kConv2Channels * kTaps) * 0x1p15f *
                                (s.scales[kLargestConv2] * inverse_of(s.scales[kConv2Scale])));
}

// ---- fp32: two fp16 terms a value -----------------------------------------------------------------------------------

// conv2's operands: the tensor cores are twice as fast with fp16 as with tf32, and only 16-bit values can be transposed
// on their way to them, as a weight gradient needs it.
//
// x becomes two terms, big = fp16(x / scale) and small = fp16(x / scale - big), together 22 bits; three products, big x
// big + big x small + small x big, then keep float's accuracy as 3xTF32 does. (tf32 needs one term.)
//
// Each tensor is divided by a scale as above:
//   a1      as in tf32: nothing larger is possible
//   conv2   as in tf32. (Batch norm magnifies a channel with small weights: it loses 2^-32 of the largest weight.)
//   dz2     from the largest dy2 and bn2's sums: |xhat| cannot exceed sqrt(N)
//   da1     from its own values, by channel: see make_da1_scales()
// Tensors stay float in memory, except a1 on its way from conv_forward to conv2_backward.
//
// By wgmma fc1's operands are terms, too:
//   a2      as in tf32; with the population's statistics z2 ends where a1 and conv2's weights say
//   fc1     each group of 32 columns from its own largest weight, by the block that has just updated them: so the terms
//           depend on nothing but the weights, which may grow as they like
//   dh      as in tf32
// What is 2^-17 of a scale's bound has 22 bits still, and what is smaller is off by at most 2^-40 of that bound. dh is
// small against its bound where softmax nearly is the label: there float itself knows it to 2^-24 of the bound only.
// The largest weight of a group is within 2 of its bound. a2's bound is sqrt(N) deviations, 2^10 in a batch of 4,096,
// and with the population's statistics 288 products without cancellation.

// Two values, divided by their scale already, as terms, the biggest first.
template <int kFp16Terms>
__device__ __forceinline__ void split(float x, float y, __half2 (&terms)[kFp16Terms]) {
#pragma unroll
  for (int term = 0; term < kFp16Terms; ++term) {
    terms[term] = __floats2half2_rn(x, y);
    const float2 big = __half22float2(terms[term]);
    x -= big.x, y -= big.y;
  }
}

// Two values as what the convolutions multiply.
template <class P>
__device__ __forceinline__ void to_operands(float x, float y, typename Operand<P>::Pair (&terms)[kTerms<P>]) {
  if constexpr (kTerms<P> == 1)
    terms[0] = P::pack(x, y);
  else
    split(x, y, terms);
}

// split() where a bound may be exceeded (see a2 above): saturates.
__device__ __forceinline__ void split_bounded(float x, float y, std::uint32_t& big, std::uint32_t& small) {
  const auto pack = [](float x, float y) {
    const __half2 pair = Policy<Precision::kTf32>::pack_bounded(x, y);
    return reinterpret_cast<const std::uint32_t&>(pair);
  };
  big = pack(x, y);
  const float2 two = Policy<Precision::kTf32>::unpack_word(big);
  small = pack(x - two.x, y - two.y);
}

// da1's scale for each of a thread's two channels, by the largest value of its rows of a product, which four lanes
// hold. (No bound of da1 would do: the largest possible sum of its 576 products is thousands of times the usual result,
// and where images are flat, all values of a channel would lose the same to terms too far below the bound.)
template <int kCount>
__device__ __forceinline__ void make_da1_scales(const float (&da1)[kCount], float (&scales)[2]) {
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kCount; i += 4)
      largest = fmaxf(largest, fmaxf(fabsf(da1[i + 2 * upper]), fabsf(da1[i + 2 * upper + 1])));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    scales[upper] = power_of_two_scale<15>(largest);
  }
}

// a2's scale for these terms, by a warp.
__device__ __forceinline__ float a2_terms_scale(const State& s, int lane) {
  const float z2 = s.bn2_given ? z2_scale_of(s, largest_of<kConv2Values / 32>(s.conv2_max, lane), lane) : 1.f;
  return make_a2_scale(s, lane, z2);
}

// Where a feature is among its 8 neighbours in fc1_copy: 0 4 1 5 2 6 3 7. A lane gets features t and t + 4 of them
// from floats in shared memory without bank conflicts, and operands have them next to each other.
__device__ __forceinline__ constexpr int fc1_place(int feature) {
  return (feature & ~7) | (feature & 3) << 1 | (feature >> 2 & 1);
}

// Of one value in these terms.
__device__ __forceinline__ std::size_t fc1_term_at(int term, int unit, int place) {
  return (std::size_t(term) * kHidden + unit) * kFeatures + place;
}

// A group of columns of fc1.weight as terms, by a block.
template <int kBlock>
__device__ __forceinline__ void leave_fc1_terms(const State& s, int group) {
  constexpr int kCount = kHidden * kFc1Columns / kBlock, kUnits = kBlock / kFc1Columns;
  __shared__ float warps[kBlock / 32];
  const int tid = threadIdx.x, column = group * kFc1Columns + tid % kFc1Columns, unit0 = tid / kFc1Columns;
  const float* weights = s.parameters + kParameters[kFc1Weight].offset + column;
  float x[kCount], largest = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    x[i] = weights[std::size_t(unit0 + i * kUnits) * kFeatures];
    largest = fmaxf(largest, fabsf(x[i]));
  }
  largest = warp_max(largest);
  if (tid % 32 == 0) warps[tid / 32] = largest;
  __syncthreads();
  const float scale = scale_of(warp_max(warps[tid % (kBlock / 32)]));
  if (tid == 0) s.fc1_scales[group] = scale;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    __half2 terms[2];
    split(x[i] * inverse_of(scale), 0.f, terms);
#pragma unroll
    for (int term = 0; term < 2; ++term)
      static_cast<__half*>(s.fc1_copy)[fc1_term_at(term, unit0 + i * kUnits, fc1_place(column))] = terms[term].x;
  }
}

}  // namespace mnist::fused
