// Clusters: thread blocks that run at the same time and reach each other's shared memory (Hopper and newer).
#pragma once

#include <cstdint>

#include "kernels/device/barriers.cuh"
#include "kernels/device/delays.cuh"
#include "kernels/device/shared_memory.cuh"

namespace mnist::kernels::device {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// The barrier of all threads of a cluster. What a thread wrote before it is visible to all behind it.
__device__ __forceinline__ void cluster_sync() {
  delay();
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  delay();
}

// Where block `rank` of the cluster has what lies at `address` of this block's shared memory.
__device__ __forceinline__ std::uint32_t remote_address(std::uint32_t address, int rank) {
  std::uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
// Stores to the same place in the shared memory of block `rank`, and reports the bytes at the barrier that is there in
// the place of `arrived`: see MBarrier::wait_for_cluster().
__device__ __forceinline__ void send(void* shared, MBarrier& arrived, int rank, uint2 value) {
  delay();
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
                   remote_address(shared_address(shared), rank)),
               "r"(value.x), "r"(value.y), "r"(remote_address(shared_address(&arrived), rank))
               : "memory");
}
#endif

}  // namespace mnist::kernels::device
