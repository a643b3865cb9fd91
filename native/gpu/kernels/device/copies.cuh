// Copies that run while their threads go on: cp.async, up to 16 bytes a thread; from Hopper on cp.async.bulk, blocks.
#pragma once

#include <cstdint>

#include "kernels/device/barriers.cuh"
#include "kernels/device/delays.cuh"
#include "kernels/device/shared_memory.cuh"

namespace mnist::kernels::device {

__device__ __forceinline__ void copy_async_16(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// 4 or 16 bytes, or as many zeros.
template <int kBytes>
__device__ __forceinline__ void copy_async_or_zero(std::uint32_t shared, const void* global, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(kBytes),
               "r"(inside ? kBytes : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
  delay();
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  delay();
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// From global to shared memory by the copy engine, which reports the bytes at the barrier; multiples of 16 bytes.
__device__ __forceinline__ void copy_bulk(std::uint32_t shared, const void* global, int bytes, MBarrier& arrived) {
  delay();
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(shared_address(&arrived))
               : "memory");
}
// From shared to global memory by the copy engine; multiples of 16 bytes. One thread starts and awaits them.
__device__ __forceinline__ void store_bulk(void* global, std::uint32_t shared, int bytes) {
  delay();
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
               : "memory");
}
// As store_bulk(), of what has to make room first where L2 does not hold everything.
__device__ __forceinline__ void store_bulk_evict_first(void* global, std::uint32_t shared, int bytes) {
  delay();
  asm volatile(
      "{\n\t.reg .b64 policy;\n\tcreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n\t"
      "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, policy;\n\t}" ::"l"(global),
      "r"(shared), "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void store_bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void store_bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  delay();
}
__device__ __forceinline__ void store_bulk_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  delay();
}
#endif

}  // namespace mnist::kernels::device
