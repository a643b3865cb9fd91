// permute_bytes: bytes of a word, or their signs, in another order.
#pragma once

#include <cstdint>

namespace mnist::kernels::device {

// Bytes of `x` chosen by the selector's nibbles; a nibble above 7 repeats that byte's sign bit eight times.
__device__ __forceinline__ std::uint32_t permute_bytes(std::uint32_t x, std::uint32_t selector) {
  std::uint32_t result;
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(result) : "r"(x), "r"(selector));
  return result;
}

}  // namespace mnist::kernels::device
