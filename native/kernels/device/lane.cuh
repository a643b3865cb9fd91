// Where a lane stands in its warp, and what the lanes of a warp do together.
#pragma once

#include <cstdint>

namespace mnist::kernels::device {

// A lane's place in the fragments of mma and wgmma, as PTX's figures name it: thread t of group g. Of an accumulator it
// holds rows g and g + 8, columns 2 t and 2 t + 1.
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
