// Barriers of some of a block's threads: by number (bar.sync), and in shared memory (mbarrier).
#pragma once

#include <cstdint>

#include "kernels/device/delays.cuh"
#include "kernels/device/shared_memory.cuh"

namespace mnist::kernels::device {

// kCount named barriers of a block, from number kFirst of its 16 on, each for kThreads of its threads, whole warps. A
// thread that only arrives does not wait, but what it wrote is visible to those that do.
template <int kFirst, int kThreads, int kCount = 1>
struct NamedBarrier {
  static_assert(kFirst >= 0 && kFirst + kCount <= 16 && kThreads % 32 == 0);
  static __device__ __forceinline__ void sync(int which = 0) {
    delay();
    asm volatile("bar.sync %0, %1;" ::"r"(kFirst + which), "n"(kThreads) : "memory");
    delay();
  }
  static __device__ __forceinline__ void arrive(int which = 0) {
    delay();
    asm volatile("bar.arrive %0, %1;" ::"r"(kFirst + which), "n"(kThreads) : "memory");
    delay();
  }
};

// A barrier in shared memory, at which threads and copies may arrive. It has phases, whose parities are 0, 1, 0, ...; a
// phase ends when all have arrived. A wait is for the end of a phase, this one's or the last one's, by its parity.
struct MBarrier {
  std::uint64_t state;

  // By one thread, before others use it.
  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals) : "memory");
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");  // for copies and send()
#endif
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  // An arrival that also says how many bytes copy_bulk() or send() brings in this phase; some may have arrived before.
  __device__ __forceinline__ void expect(int bytes) {
    delay();
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                 : "memory");
    delay();
  }
  // wait() for what blocks of a cluster send().
  __device__ __forceinline__ void wait_for_cluster(int parity) {
    std::uint32_t done;
    do
      asm volatile(
          "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
          "selp.b32 %0, 1, 0, p;\n\t}"
          : "=r"(done)
          : "r"(shared_address(this)), "r"(parity)
          : "memory");
    while (!done);
    delay();
  }
#endif
  __device__ __forceinline__ void arrive() {
    delay();
    asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared.b64 state, [%0];\n\t}" ::"r"(shared_address(this))
                 : "memory");
    delay();
  }
  // Arrives once this thread's cp.async copies are done.
  __device__ __forceinline__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(this)) : "memory");
  }
  __device__ __forceinline__ void wait(int parity) {
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
          : "r"(shared_address(this)), "r"(parity)
          : "memory");
    } while (!done);
    delay();
  }
};

// A barrier for each of the stages that items take in turns: item k has stage k % kStages, for the k / kStages-th time.
template <int kStages>
struct Ring {
  MBarrier stages[kStages];

  static __device__ __forceinline__ int stage(int item) { return int(unsigned(item) % kStages); }
  __device__ __forceinline__ MBarrier& operator[](int item) { return stages[stage(item)]; }
  __device__ __forceinline__ void wait(int item) { (*this)[item].wait(int(unsigned(item) / kStages & 1)); }
};

}  // namespace mnist::kernels::device
