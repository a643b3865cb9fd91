// wait_for_predecessor: a kernel that started early waits here for the one before it, and then lets the next one start.
#pragma once

#include "kernels/device/delays.cuh"

namespace mnist::kernels::device {

// Programmatic dependent launch (Hopper and newer; elsewhere launches are serial): waits for all results of the phase
// before. That one passed its own wait before this one started, so what phases before that one wrote is complete
// already, even before this wait.
__device__ __forceinline__ void wait_for_predecessor() {
  delay();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
  delay();
}

}  // namespace mnist::kernels::device
