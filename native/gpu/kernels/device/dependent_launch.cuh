// wait_for_predecessor: a kernel that started early waits here for the one before it, and then lets the next one start.
#pragma once

#include "kernels/device/delays.cuh"

namespace mnist::kernels::device {

// Programmatic dependent launch (Hopper and newer): a phase starts while its predecessor still runs, does what does not
// depend on it, and waits here for all of its results. Every phase lets its successor start only after its own wait,
// so what earlier phases wrote is complete even before the wait. Elsewhere launches are serial and these are empty.
__device__ __forceinline__ void wait_for_predecessor() {
  delay();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
  delay();
}

}  // namespace mnist::kernels::device
