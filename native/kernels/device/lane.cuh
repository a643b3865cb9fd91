// What the lanes of a warp do together.
#pragma once

#include <cstdint>

namespace mnist::kernels::device {

// What a warp's lanes agree on, as the compiler can see: operands of wgmma are then made by the uniform datapath.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

// The largest of a warp's values, none of them negative.
__device__ __forceinline__ float warp_max(float x) {
  return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(x)));
}

}  // namespace mnist::kernels::device
