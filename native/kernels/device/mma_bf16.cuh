// mma_bf16: one warp multiplies 16x8 += 16x16 by 16x8 on the tensor cores, operands bfloat16.
#pragma once

#include <cstdint>

namespace mnist::kernels::device {

// c += a b, two operands a register, the lower one in the lower half. Fragments: PTX ISA, "Matrix Fragments for
// mma.m16n8k16"; c is as in mma_tf32.
__device__ inline void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace mnist::kernels::device
