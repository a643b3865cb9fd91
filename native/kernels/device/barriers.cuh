// Barriers of some of a block's threads: by number (bar.sync), and in shared memory (mbarrier).
#pragma once

#include <cstdint>

#include "kernels/device/delays.cuh"
#include "kernels/device/shared_memory.cuh"

namespace mnist::kernels::device {

// Named barriers, for kCount of a block's threads. Who only arrives does not wait, but what it wrote is visible to
// those that do.
template <int kCount>
__device__ __forceinline__ void barrier_sync(int id) {
  delay();
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kCount) : "memory");
  delay();
}
template <int kCount>
__device__ __forceinline__ void barrier_arrive(int id) {
  delay();
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kCount) : "memory");
  delay();
}

// A barrier in shared memory, which copies may arrive at.
__device__ __forceinline__ void mbarrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");  // for the copy engine
#endif
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// The one arrival at a barrier, and how many bytes copy_bulk() has to bring, of which some may have arrived before.
__device__ __forceinline__ void mbarrier_expect(std::uint64_t* barrier, int bytes) {
  delay();
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
  delay();
}
#endif
__device__ __forceinline__ void mbarrier_arrive(std::uint64_t* barrier) {
  delay();
  asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared.b64 state, [%0];\n\t}" ::"r"(shared_address(barrier))
               : "memory");
  delay();
}
__device__ __forceinline__ void mbarrier_wait(std::uint64_t* barrier, int parity) {
  std::uint32_t done;
  do {
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\t"  // sleeps for a while
#else
        "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\t"
#endif
        "selp.b32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (!done);
  delay();
}

}  // namespace mnist::kernels::device
