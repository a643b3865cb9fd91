// shared_address: shared memory as PTX addresses it, and loads by such an address.
#pragma once

#include <cstdint>

namespace mnist::kernels::device {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ std::uint32_t load_shared_32(std::uint32_t address) {
  std::uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

}  // namespace mnist::kernels::device
