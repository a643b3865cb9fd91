// Numbers of the fused kernels: for each precision a policy, which says how a value is stored and how a warp multiplies
// matrices; and neighbouring values in words of 8 and 16 bytes.
//
// Everything is addressed in 16-byte chunks. A k-step is two chunks: 16 values of 16 bits (mma.m16n8k16) or 8 floats
// (mma.m16n8k8). Because ldmatrix moves 16-byte rows whatever they contain, the same addresses feed both, and the
// same registers serve as the A operand (16 rows) or as two B operands (2 x 8 columns).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/device/mma.cuh"
#include "mnist/engine.h"

namespace mnist::fused {

using namespace kernels::device;  // the vocabulary of PTX (kernels/device/), in all fused kernels

// A float as two values of tf32. big is rounded to the nearest, so that the rest, small, has either sign, and the bits
// that the tensor cores cut off small are no bias. (Where images are flat dz2 is the same everywhere, and sums that
// cancel would show a bias of 2^-23.)
__device__ __forceinline__ std::uint32_t big_term(std::uint32_t x) { return (x + 0x1000u) & 0xffffe000u; }
__device__ __forceinline__ std::uint32_t small_term(std::uint32_t x) {
  return __float_as_uint(__uint_as_float(x) - __uint_as_float(big_term(x)));
}

template <Precision kPrecision>
struct Policy;

// bf16: operands rounded to bf16, sums in float.
template <>
struct Policy<Precision::kBf16> {
  using T = __nv_bfloat16;
  static constexpr std::uint32_t kOnes = 0x3f803f80u;  // two values of 1
  static constexpr int kConv1Terms = 1;   // fp16 terms that a weight of conv1 is split into; pixels are exact in one
  static constexpr int kFp16Terms = 0;    // fp16 terms that are multiplied instead of T: see scales.cuh
  static constexpr bool kScaled = false;  // values are divided by a scale for each tensor: see scales.cuh
  static constexpr bool kDrainAccumulators = false;
  static __device__ __forceinline__ T store(float x) { return __float2bfloat16_rn(x); }
  static __device__ __forceinline__ float load(T x) { return __bfloat162float(x); }
  // Two values as they are stored; the packed conversion is four times as fast as two single ones.
  using Pair = __nv_bfloat162;
  static __device__ __forceinline__ Pair pack(float x, float y) { return __floats2bfloat162_rn(x, y); }
  static __device__ __forceinline__ float2 unpack(Pair pair) { return __bfloat1622float2(pair); }
  // The same for a word; and relu's results, where a NaN stays.
  static __device__ __forceinline__ float2 unpack_word(std::uint32_t word) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
  }
  static __device__ __forceinline__ std::uint32_t pack_relu(float x, float y) {
    std::uint32_t result;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(y), "f"(x));
    return result;
  }
  static __device__ __forceinline__ Pair max(Pair x, Pair y) { return __hmax2(x, y); }
  static __device__ __forceinline__ void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    mma_bf16(c, a, b0, b1);
  }
};

// tf32: operands and stored activations rounded to tf32's 11 significant bits, as fp16 divided by a scale for each
// tensor; sums in float. It shares bf16's kernels, except for conv1's sums, and has half the bytes and twice the
// products per second of the tensor cores' own tf32.
template <>
struct Policy<Precision::kTf32> {
  using T = __half;
  static constexpr std::uint32_t kOnes = 0x3c003c00u;
  static constexpr int kConv1Terms = 2;  // without them conv1.weight has the largest error of all gradients
  static constexpr int kFp16Terms = 0;
  static constexpr bool kScaled = true;
  static constexpr bool kDrainAccumulators = false;
  static __device__ __forceinline__ T store(float x) { return __float2half_rn(x); }
  static __device__ __forceinline__ float load(T x) { return __half2float(x); }
  using Pair = __half2;
  static __device__ __forceinline__ Pair pack(float x, float y) { return __floats2half2_rn(x, y); }
  static __device__ __forceinline__ float2 unpack(Pair pair) { return __half22float2(pair); }
  static __device__ __forceinline__ float2 unpack_word(std::uint32_t word) {
    return unpack(reinterpret_cast<const Pair&>(word));
  }
  // Saturates where fp16 ends: see scales.cuh.
  static __device__ __forceinline__ Pair pack_bounded(float x, float y) {
    std::uint32_t result;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(y), "f"(x));
    return reinterpret_cast<const Pair&>(result);
  }
  static __device__ __forceinline__ std::uint32_t pack_relu(float x, float y) {
    std::uint32_t result;
    asm("cvt.rn.relu.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(y), "f"(x));
    return result;
  }
  static __device__ __forceinline__ Pair max(Pair x, Pair y) { return __hmax2(x, y); }
  static __device__ __forceinline__ void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    mma_fp16(c, a, b0, b1);
  }
};

// fp32: each product x*y as big*big + big*small + small*big, which keeps float's accuracy (what is dropped is below
// 2^-20 of a product). The terms are of fp16 where values have scales, in the convolutions and by wgmma (scales.cuh),
// and of tf32 elsewhere, by mma(). Tensor cores truncate as they add, so long sums over pixels are moved out of their
// accumulators every few products (kDrainAccumulators).
template <>
struct Policy<Precision::kFp32> {
  using T = float;
  static constexpr int kConv1Terms = 2;
  static constexpr int kFp16Terms = 2;
  static constexpr bool kScaled = false;
  static constexpr bool kDrainAccumulators = true;
  static __device__ __forceinline__ T store(float x) { return x; }
  static __device__ __forceinline__ float load(T x) { return x; }
  using Pair = float2;
  static __device__ __forceinline__ Pair pack(float x, float y) { return make_float2(x, y); }
  static __device__ __forceinline__ float2 unpack(Pair pair) { return pair; }
  static __device__ __forceinline__ Pair max(Pair x, Pair y) { return make_float2(fmaxf(x.x, y.x), fmaxf(x.y, y.y)); }
  static __device__ __forceinline__ void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    const std::uint32_t a_big[4] = {big_term(a[0]), big_term(a[1]), big_term(a[2]), big_term(a[3])};
    const std::uint32_t a_small[4] = {small_term(a[0]), small_term(a[1]), small_term(a[2]), small_term(a[3])};
    mma_tf32(c, a_small, big_term(b0), big_term(b1));
    mma_tf32(c, a_big, small_term(b0), small_term(b1));
    mma_tf32(c, a_big, big_term(b0), big_term(b1));
  }
};

// What the convolutions multiply, as a policy: P's own values, or in fp32 so many terms of fp16.
template <class P>
using Operand = std::conditional_t<(P::kFp16Terms > 0), Policy<Precision::kTf32>, P>;
template <class P>
inline constexpr int kTerms = P::kFp16Terms > 0 ? P::kFp16Terms : 1;
template <class P>
inline constexpr bool kHasScales = P::kScaled || P::kFp16Terms > 0;

template <class P>
inline constexpr int kChunk = 16 / sizeof(typename P::T);  // values in 16 bytes
template <class P>
inline constexpr int kStep = 2 * kChunk<P>;  // values of one k-step

__device__ __forceinline__ float relu_keep_nan(float x) { return x <= 0.f ? 0.f : x; }

// ---- Neighbouring values in words of 8 and 16 bytes -----------------------------------------------------------------

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
// relu(scale * x + shift) of neighbouring values.
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
// x where a is positive, 0 elsewhere: relu's gradient.
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
