// bn2's scale and shift from conv_forward's channel sums, and bn2 with relu of an operand of fc1.
#pragma once

#include "kernels/fused/shared/layout.cuh"
#include "kernels/fused/shared/scales.cuh"

namespace mnist::fused {

inline constexpr int kSliceChannels = kConv2Channels / 2;  // of a slice of the features: see mma.cuh

// bn2's scale and shift for one half of the channels in shared memory: from conv_forward's block sums in training, from
// s.bn2 otherwise.
struct __align__(16) Bn2 {
  using Threads = NamedBarrier<1, kThreads>;  // that make it: the block's first
  static constexpr int kGroups = kThreads / 16;
  double partial[kGroups][2][kSliceChannels + 2];  // sums and squares; padded for finish_bn2()'s reads
  float scale[kSliceChannels], shift[kSliceChannels];
};

__device__ __forceinline__ void sum_bn2(const State& s, Bn2& bn, int channel_half) {
  if (s.bn2_given) return;
  const int column = threadIdx.x & 15, group = threadIdx.x >> 4;
  // Four rows are added in float: conversions to double are slow.
  float4 four = {};
  double total[4] = {};
  const auto flush = [&] {
    total[0] += four.x, total[1] += four.y, total[2] += four.z, total[3] += four.w;
    four = {};
  };
  const float* sums = s.z2_sums + (column >> 3) * kConv2Channels + channel_half * kSliceChannels + (column & 7) * 4;
  const auto load = [&](int row) {
    return *reinterpret_cast<const float4*>(sums + std::size_t(row) * 2 * kConv2Channels);
  };
  const auto add = [&](float4 x, int k) {
    four.x += x.x, four.y += x.y, four.z += x.z, four.w += x.w;
    if (k % 4 == 3) flush();
  };
  if (s.conv_forward_blocks > Bn2::kGroups * 4)
    for_rows<Bn2::kGroups, 9>(s.conv_forward_blocks, group, load, add);  // a row an SM in one round
  else
    for_rows<Bn2::kGroups, 4>(s.conv_forward_blocks, group, load, add);
  flush();
  auto* to = reinterpret_cast<double2*>(bn.partial[group][column >> 3]) + (column & 7) * 2;
  to[0] = make_double2(total[0], total[1]);
  to[1] = make_double2(total[2], total[3]);
}

// A channel's bn2 from the sums of its values and of their squares over the batch. Stores what s.bn2 holds of it if it
// `leaves` that. In tf32 everything is about z2 as it is stored, divided by z2_scale; so the epsilon next to its
// variance is divided, too.
struct Bn2Channel {
  float scale, shift, mean, inv_sigma;
};
template <class P>
__device__ __forceinline__ Bn2Channel bn2_channel(const State& s, int channel, double sum, double squares, float gamma,
                                                  float beta, float z2_scale, bool leaves) {
  const double mean = sum * s.inv_n2, var = fmax(squares * s.inv_n2 - mean * mean, 0.0);
  const double epsilon =
      P::kScaled ? kBatchNormEpsilon * inverse_of(z2_scale) * double(inverse_of(z2_scale)) : kBatchNormEpsilon;
  const double inv_sigma = rsqrt(var + epsilon);
  const double exact = fabs(double(gamma)) * inv_sigma;  // conv2's filters carry gamma's sign
  const Bn2Channel bn{float(exact), float(beta - exact * mean), float(mean), float(inv_sigma)};
  if (leaves) {
    s.bn2.scale(channel) = bn.scale;
    s.bn2.shift(channel) = bn.shift;
    s.bn2.mean(channel) = bn.mean;
    s.bn2.inv_sigma(channel) = bn.inv_sigma;
    s.bn2.mean_rest(channel) = float(mean - double(bn.mean));
  }
  return bn;
}

// After sum_bn2(). Threads 8c .. 8c + 7 finish channel c of the half, and pass its gamma and beta.
template <class P>
__device__ __forceinline__ void finish_bn2(const State& s, Bn2& bn, int channel_half, float gamma, float beta,
                                           float z2_scale) {
  const int tid = threadIdx.x;
  if (s.bn2_given) {
    if (tid < kSliceChannels) {
      const float scale = s.bn2.scale(channel_half * kSliceChannels + tid);
      bn.scale[tid] = P::kScaled ? scale * z2_scale : scale;
      bn.shift[tid] = s.bn2.shift(channel_half * kSliceChannels + tid);
    }
    Bn2::Threads::sync();
    return;
  }
  Bn2::Threads::sync();  // the partial sums are complete
  const int channel = tid >> 3, which = tid & 1, quarter = tid >> 1 & 3;
  double sum = 0;
#pragma unroll
  for (int k = 0; k < Bn2::kGroups; k += 4) sum += bn.partial[k + quarter][which][channel];
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  sum += __shfl_xor_sync(0xffffffffu, sum, 4);
  const double other = __shfl_xor_sync(0xffffffffu, sum, 1);
  if ((tid & 7) == 0) {
    const bool leaves = blockIdx.x == 0 && blockIdx.y < 2;  // the first slice of each half
    const Bn2Channel of =
        bn2_channel<P>(s, channel_half * kSliceChannels + channel, sum, other, gamma, beta, z2_scale, leaves);
    bn.scale[channel] = of.scale;
    bn.shift[channel] = of.shift;
  }
  Bn2::Threads::sync();  // scale and shift are complete
}

// relu(scale * x + shift) of the values in one register of an operand, rounded as they are stored.
template <class P, int kCount>
__device__ __forceinline__ std::uint32_t bn2_relu(std::uint32_t x, const float (&scale)[kCount],
                                                  const float (&shift)[kCount], int first) {
  if constexpr (sizeof(typename P::T) == 2) {
    const float2 two = P::unpack_word(x);
    return P::pack_relu(fmaf(scale[first], two.x, shift[first]), fmaf(scale[first + 1], two.y, shift[first + 1]));
  } else {
    return __float_as_uint(P::store(relu_keep_nan(fmaf(scale[first], __uint_as_float(x), shift[first]))));
  }
}

}  // namespace mnist::fused
