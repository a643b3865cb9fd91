// delay(): a warp sleeps for a random while in debug builds (CMake's MNIST_DELAYS), at every barrier, copy, fence and
// start of a kernel of `fused`: roles and blocks come there in unusual orders, and the results have to stay the same.
#pragma once

#include "cuda/delays.h"

#ifdef MNIST_DELAYS

#include <cstdint>

#include "cuda/check.h"

namespace mnist::kernels::device {

static __device__ std::uint32_t delay_seed;

__device__ __forceinline__ std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

// Mostly next to nothing, at times 1 us; a warp in four, others every millisecond, eight times as long. Without a
// branch, so that products in flight stay in flight.
__device__ __forceinline__ void delay() {
  const std::uint64_t now = clock64();
  const std::uint32_t warp = blockIdx.x * 32 + threadIdx.x / 32, random = mixed(std::uint32_t(now) ^ delay_seed ^ warp);
  const std::uint32_t slow = mixed(std::uint32_t(now >> 21) + delay_seed + threadIdx.x / 32) % 4 == 0 ? 3 : 0;
  __nanosleep((random & 1023) >> (random >> 10 & 15) << slow);
}

// Before the first launch of a source file's kernels, which is never recorded into a graph.
static inline void seed_delays() {
  static const bool seeded = [] {
    const std::uint32_t seed = cuda::delays_seed();
    MNIST_CHECK(cudaMemcpyToSymbol(delay_seed, &seed, sizeof seed));
    return true;
  }();
  (void)seeded;
}

}  // namespace mnist::kernels::device

// CUDA's own barrier of a block, too, in what follows.
#define __syncthreads() (::mnist::kernels::device::delay(), __syncthreads(), ::mnist::kernels::device::delay())

#else

namespace mnist::kernels::device {

__device__ __forceinline__ void delay() {}
inline void seed_delays() {}

}  // namespace mnist::kernels::device

#endif
