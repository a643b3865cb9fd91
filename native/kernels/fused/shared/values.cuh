// Neighbouring values in words of 8 and 16 bytes.
#pragma once

#include <cstdint>

#include "kernels/fused/shared/policy.cuh"

namespace mnist::fused {

// Four neighbouring values as two pairs.
template <class P>
struct Four {
  typename P::Pair pair[2];
  __device__ __forceinline__ void store(typename P::T* to) const {
    if constexpr (sizeof(typename P::T) == 2)
      *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(pair);
    else
      *reinterpret_cast<float4*>(to) = make_float4(pair[0].x, pair[0].y, pair[1].x, pair[1].y);
  }
};

// 16 bytes of shared or device memory as kChunk values, and back.
template <class P>
__device__ __forceinline__ void unpack(float (&x)[kChunk<P>], uint4 packed) {
  const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if constexpr (sizeof(typename P::T) == 2) {
      const float2 pair = P::unpack_word(words[i]);
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    } else {
      x[i] = __uint_as_float(words[i]);
    }
}
template <class P>
__device__ __forceinline__ uint4 pack(const float (&x)[kChunk<P>]) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if constexpr (sizeof(typename P::T) == 2) {
      const auto pair = P::pack(x[2 * i], x[2 * i + 1]);
      words[i] = reinterpret_cast<const std::uint32_t&>(pair);
    } else {
      words[i] = __float_as_uint(P::store(x[i]));
    }
  return make_uint4(words[0], words[1], words[2], words[3]);
}
// relu(scale * x + shift), of values that lie side by side.
template <class P>
__device__ __forceinline__ uint4 bn2_relu(float (&x)[kChunk<P>], const float (&scale)[kChunk<P>],
                                          const float (&shift)[kChunk<P>]) {
#pragma unroll
  for (int i = 0; i < kChunk<P>; ++i) {
    x[i] = fmaf(scale[i], x[i], shift[i]);
    if constexpr (!P::kScaled) x[i] = relu_keep_nan(x[i]);
  }
  if constexpr (P::kScaled)  // in one instruction, as fc1_forward does
    return make_uint4(P::pack_relu(x[0], x[1]), P::pack_relu(x[2], x[3]), P::pack_relu(x[4], x[5]),
                      P::pack_relu(x[6], x[7]));
  else
    return pack<P>(x);
}
// The values of x where that of a is positive, 0 for the others: relu's gradient.
template <class P>
__device__ __forceinline__ std::uint32_t where_positive(std::uint32_t a, std::uint32_t x) {
  if constexpr (sizeof(typename P::T) == 2) {
    const std::uint32_t zero = 0;
    return x &
           __hgt2_mask(reinterpret_cast<const typename P::Pair&>(a), reinterpret_cast<const typename P::Pair&>(zero));
  } else {
    return __uint_as_float(a) > 0.f ? x : 0;
  }
}
template <class P>
__device__ __forceinline__ uint4 where_positive(uint4 a, uint4 x) {
  return make_uint4(where_positive<P>(a.x, x.x), where_positive<P>(a.y, x.y), where_positive<P>(a.z, x.z),
                    where_positive<P>(a.w, x.w));
}

}  // namespace mnist::fused
