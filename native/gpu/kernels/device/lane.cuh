// Where a lane stands in its warp, and what the lanes of a warp do together.
#pragma once

#include <cstdint>

namespace mnist::kernels::device {

// A lane's place in the fragments of mma and wgmma: thread t of group g (PTX ISA, "Matrix Fragments for mma.m16n8k16"
// and "Register Fragments and Shared Memory Matrix Layouts" of wgmma). Its sums are those of rows g and g + 8:
//   columns   8n + 2t, 8n + 2t + 1
//   row g        4n      4n + 1       index of the sum, d[i]: row g + (i >> 1 & 1) * 8,
//   row g + 8    4n + 2  4n + 3                               column i / 4 * 8 + 2 * t + (i & 1)
struct FragmentPlace {
  int g, t;
};
__device__ __forceinline__ FragmentPlace fragment_place(int lane) { return {lane >> 2, lane & 3}; }

// What a warp's lanes agree on, as the compiler can see: operands of wgmma are then made by the uniform datapath.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

// The largest of a warp's values, none of them negative.
__device__ __forceinline__ float warp_max(float x) {
  return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(x)));
}

}  // namespace mnist::kernels::device
