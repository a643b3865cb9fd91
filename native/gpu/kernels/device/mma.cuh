// mma: a warp multiplies on the tensor cores, operands and sums in registers.
#pragma once

#include <cstdint>

namespace mnist::kernels::device {

// Rounded to nearest with 10 stored bits of mantissa; the tensor cores would drop the rest.
__device__ inline std::uint32_t to_tf32(float value) {
  std::uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

// c += a b. With g = lane/4 and t = lane%4 (PTX ISA, "Matrix Fragments for mma.m16n8k8"):
//   a (16x8):  a[0] = (g, t), a[1] = (g+8, t), a[2] = (g, t+4), a[3] = (g+8, t+4)
//   b (8x8):   b[0] = (t, g), b[1] = (t+4, g)
//   c (16x8):  c[0] = (g, 2t), c[1] = (g, 2t+1), c[2] = (g+8, 2t), c[3] = (g+8, 2t+1)
__device__ inline void mma_tf32(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c += a b, two operands a register, the lower one in the lower half. Fragments: PTX ISA, "Matrix Fragments for
// mma.m16n8k16"; c is as in mma_tf32.
__device__ inline void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same of fp16.
__device__ __forceinline__ void mma_fp16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// a b of fp16 with sums of fp16: a register has two neighbouring columns.
__device__ __forceinline__ void mma_fp16_sums(std::uint32_t (&d)[2], const std::uint32_t (&a)[4], std::uint32_t b0,
                                              std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%8,%8};"
      : "=r"(d[0]), "=r"(d[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

// mma_bf16() and mma_tf32() with b's two registers by name.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  mma_bf16(c, a, {b0, b1});
}
__device__ __forceinline__ void mma_tf32(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  mma_tf32(c, a, {b0, b1});
}

// Of accumulators, by rows and columns of them: to += from, to = from, and x = 0; of kRows rows where `to` has more.
template <int kRows, int kColumns, int kRowsOfTo>
__device__ __forceinline__ void add_accumulators(float (&to)[kRowsOfTo][kColumns][4],
                                                 const float (&from)[kRows][kColumns][4]) {
#pragma unroll
  for (int row = 0; row < kRows; ++row)
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
#pragma unroll
      for (int i = 0; i < 4; ++i) to[row][column][i] += from[row][column][i];
}
template <int kColumns>
__device__ __forceinline__ void add_accumulators(float (&to)[kColumns][4], const float (&from)[kColumns][4]) {
#pragma unroll
  for (int column = 0; column < kColumns; ++column)
#pragma unroll
    for (int i = 0; i < 4; ++i) to[column][i] += from[column][i];
}
template <int kRows, int kColumns>
__device__ __forceinline__ void clear_accumulators(float (&x)[kRows][kColumns][4]) {
#pragma unroll
  for (int row = 0; row < kRows; ++row)
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[row][column][i] = 0.f;
}

}  // namespace mnist::kernels::device
