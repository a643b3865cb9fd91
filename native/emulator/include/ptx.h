// PTX instructions for the emulator: rewrite.py makes of asm("a.b.c %0, %1") a call of ptx_a_b_c with the operands in
// the instruction's order, or of unknown_instruction where this file has no such function.
#pragma once

#include <cstdint>

#include "cuda_runtime_api.h"

namespace emulator {

[[noreturn]] void unknown_instruction(const char* instruction);  // reported at its line; ends the launch

// cp.async. What is copied arrives when the thread waits for it; until then the target holds NaN.
void async_copy(std::uint32_t shared, const void* global, int bytes, int given);  // `given` bytes, then zeros
void async_commit();
void async_wait(int pending);  // until only the last `pending` groups of this thread are on their way

// A product of tiles in the registers of a warp, d = a b + c, as the PTX ISA lays them out; all lanes meet.
void multiply_tf32(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], const float (&c)[4]);

#define EMULATOR_PTX inline __attribute__((always_inline)) void
EMULATOR_PTX ptx_cp_async_cg_shared_global(std::uint32_t shared, const void* global) {
  async_copy(shared, global, 16, 16);
}
EMULATOR_PTX ptx_cp_async_ca_shared_global(std::uint32_t shared, const void* global, int bytes, int given) {
  async_copy(shared, global, bytes, given);
}
EMULATOR_PTX ptx_cp_async_commit_group() { async_commit(); }
EMULATOR_PTX ptx_cp_async_wait_group(int pending) { async_wait(pending); }
// To nearest, ties away from zero, 10 bits of mantissa.
EMULATOR_PTX ptx_cvt_rna_tf32_f32(std::uint32_t& bits, float value) {
  const std::uint32_t whole = std::uint32_t(to_bits(value));
  bits = (whole & 0x7f800000) == 0x7f800000 ? whole : (whole + 0x1000) & ~0x1fffu;
}
EMULATOR_PTX ptx_mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(float& d0, float& d1, float& d2, float& d3,
                                                                    std::uint32_t a0, std::uint32_t a1,
                                                                    std::uint32_t a2, std::uint32_t a3,
                                                                    std::uint32_t b0, std::uint32_t b1, float c0,
                                                                    float c1, float c2, float c3) {
  float d[4];
  multiply_tf32(d, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3});
  d0 = d[0];
  d1 = d[1];
  d2 = d[2];
  d3 = d[3];
}
#undef EMULATOR_PTX

}  // namespace emulator
