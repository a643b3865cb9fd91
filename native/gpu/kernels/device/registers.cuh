// How many registers the threads of a warpgroup have (setmaxnreg), in code for sm_90a.
#pragma once

#include "kernels/device/delays.cuh"

namespace mnist::kernels::device {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// How many registers each thread of this warpgroup may have from here on, a multiple of 8. A warpgroup that takes more
// than the kernel was started with waits until others have given some back.
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
  delay();
}
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
  delay();
}

#endif

}  // namespace mnist::kernels::device
