// fp16 terms: conv2's operands in fp32 by wgmma, which is twice as fast with fp16 as with tf32 and has the layouts of a
// weight gradient for 16-bit values only.
//
// x becomes two terms, big = fp16(x / scale) and small = fp16(x / scale - big), together 22 bits; three products, big x
// big + big x small + small x big, then keep float's accuracy as 3xTF32 does. (tf32 needs none: see fp16_scales.cuh.)
//
// fp16's exponents are few, so each tensor is divided by a scale: a power of two, such that the largest value that the
// tensor can hold is below 2^15 scales. (fp16 ends at 2^16.) Beyond its significant bits a value loses at most 2^-25
// scales, 2^-39 of that largest one: a bound that is a thousand times too large does no harm.
//   a1      from bn1's scale and shift, the filter and the range of a pixel: nothing larger is possible
//   conv2   from the weights before their last update: their own maximum would be known a phase too late. It was below
//           2^7 scales and a scale is at least 2^-12, so that in one update weights may grow 512 times, and always up
//           to 16; beyond, results stop being finite. (A channel with small weights is magnified by batch norm: what it
//           loses is 2^-32 of the largest weight.)
//   dz2     from the largest dy2 and bn2's sums: |xhat| cannot exceed sqrt(N)
//   da1     from its own values, by channel: see conv2_backward/half_images_products.cuh
// Tensors stay float in memory, but for a1 on its way from conv_forward to conv2_backward.
#pragma once

#include "kernels/fused/shared/scales.cuh"

namespace mnist::fused {

// What wgmma multiplies, where P's own values have 32 bits.
struct Fp16Operands {
  using T = __half;
};

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

}  // namespace mnist::fused
