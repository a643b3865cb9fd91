// 8x8 matrices of 16-bit values, or rows of 16 bytes whatever they hold, between shared memory and the fragments that a
// warp multiplies: ldmatrix, stmatrix, movmatrix.
#pragma once

#include <cstdint>

namespace mnist::kernels::device {

__device__ __forceinline__ void load_matrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void load_matrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// This lane's row address for load_matrix_x4 of 16 rows by one k-step, rows `pitch` bytes apart. The four registers
// come in the order in which mma reads them, so that no moves are needed:
//   as an A operand:  (rows 0-7, chunk 0), (rows 8-15, chunk 0), (rows 0-7, chunk 1), (rows 8-15, chunk 1)
//   as B operands:    (rows 0-7, chunk 0), (rows 0-7, chunk 1), (rows 8-15, chunk 0), (rows 8-15, chunk 1)
__device__ __forceinline__ std::uint32_t a_lane_offset(int lane, int pitch) {
  return ((lane & 7) + (lane >> 3 & 1) * 8) * pitch + (lane >> 4) * 16;
}
__device__ __forceinline__ std::uint32_t b_lane_offset(int lane, int pitch) {
  return ((lane & 7) + (lane >> 4) * 8) * pitch + (lane >> 3 & 1) * 16;
}

// Transposes an 8x8 matrix: lane (g, t) has columns 2t and 2t + 1 of row g, and gets rows 2t and 2t + 1 of column g.
template <class Pair>
__device__ __forceinline__ Pair transposed(Pair pair) {
  std::uint32_t turned;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
      : "=r"(turned)
      : "r"(*reinterpret_cast<const std::uint32_t*>(&pair)));
  return *reinterpret_cast<const Pair*>(&turned);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// Stores 8x8 matrices of 16-bit values, held as transposed() has them, column by column: lane 8 m + c says where column
// c of matrix m goes.
template <class Pair>
__device__ __forceinline__ void store_columns_x4(std::uint32_t to, const Pair (&matrices)[4]) {
  const auto bits = [&](int i) { return *reinterpret_cast<const std::uint32_t*>(&matrices[i]); };
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(bits(0)),
               "r"(bits(1)), "r"(bits(2)), "r"(bits(3))
               : "memory");
}
template <class Pair>
__device__ __forceinline__ void store_columns_x2(std::uint32_t to, const Pair (&matrices)[2]) {
  const auto bits = [&](int i) { return *reinterpret_cast<const std::uint32_t*>(&matrices[i]); };
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(to), "r"(bits(0)), "r"(bits(1))
               : "memory");
}
#endif

}  // namespace mnist::kernels::device
