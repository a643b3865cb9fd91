// PTX instructions for the emulator: rewrite.py makes of asm("a.b.c %0, %1") a call of ptx_a_b_c with the operands in
// the instruction's order, or of unknown_instruction where this file has no such function.
#pragma once

#include <cstdint>

#include "cuda_runtime_api.h"

namespace emulator {

// What the translations of ptx_words.py call. A register has as many bits as the instruction, or takes its value.
template <class T, class V>
T in_register(const V& value) {
  if constexpr (std::is_arithmetic_v<V> && sizeof(V) == sizeof(T))
    return from_bits<T>(to_bits(value));
  else
    return T(value);
}
template <class D, class T>
void set_register(D& into, T value) {
  into = in_register<D>(value);
}
template <class V>
auto behind(V at, int bytes) {
  if constexpr (std::is_pointer_v<V>)
    return reinterpret_cast<const volatile char*>(at) + bytes;
  else
    return at + V(bytes);
}
inline const void* shared_memory_at(std::uint64_t address) { return shared_data(std::uint32_t(address)); }
inline const void* memory_at(const volatile void* at) { return const_cast<const void*>(at); }
inline const void* memory_at(std::uint64_t at) { return reinterpret_cast<const void*>(at); }
template <class T, std::size_t kCount>
struct Words {
  T of[kCount];
};
template <class T, class... Registers>
EMULATOR_INLINE void load_words(const void* from, Registers&... to) {
  Words<T, sizeof...(to)> words;
  copy_whole(&words, static_cast<const decltype(words)*>(from));
  int k = 0;
  (set_register(to, words.of[k++]), ...);
}
template <class T, class... Values>
EMULATOR_INLINE void store_words(const void* to, const Values&... values) {
  const Words<T, sizeof...(values)> words{{in_register<T>(values)...}};
  copy_whole(static_cast<Words<T, sizeof...(values)>*>(const_cast<void*>(to)), &words);
}
unsigned warp();
inline unsigned lanes_eq() { return 1u << lane(); }
inline unsigned lanes_lt() { return lanes_eq() - 1; }
inline unsigned lanes_le() { return lanes_lt() | lanes_eq(); }
inline unsigned lanes_gt() { return ~lanes_le(); }
inline unsigned lanes_ge() { return ~lanes_lt(); }

[[noreturn]] void unknown_instruction(const char* instruction);  // reported at its line; ends the launch

// cp.async. What is copied arrives when the thread waits for it; until then the target holds NaN.
void async_copy(std::uint32_t shared, const void* global, int bytes, int given);  // `given` bytes, then zeros
void async_commit();
void async_wait(int pending);  // until only the last `pending` groups of this thread are on their way

void async_finish();  // until all copies of this thread are there

// Barriers of `count` of a block's threads, by a number below 16, and in shared memory.
void named_barrier(int number, int count, bool waits);
void init_mbarrier(std::uint32_t address, int count);
void arrive_at_mbarrier(std::uint32_t address);
void arrive_at_mbarrier_after_copies(std::uint32_t address);
void wait_at_mbarrier(std::uint32_t address, int parity);

// Products of tiles in the registers of a warp, d = a b + c, as the PTX ISA lays them out; all lanes meet.
void multiply_tf32(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], const float (&c)[4]);
void multiply_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], const float (&c)[4]);
void multiply_fp16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], const float (&c)[4]);
// a has two of each four in its registers, and `places` says which.
void multiply_sparse_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[4], const float (&c)[4],
                          std::uint32_t places);
// Four 8x8 matrices of 16 bits; and one, held as a product's.
void load_matrices(std::uint32_t (&registers)[4], std::uint32_t address, bool transposed);
std::uint32_t transpose_matrix(std::uint32_t pair);

#define EMULATOR_PTX inline __attribute__((always_inline)) void
EMULATOR_PTX ptx_cp_async_cg_shared_global(std::uint32_t shared, const void* global) {
  async_copy(shared, global, 16, 16);
}
EMULATOR_PTX ptx_cp_async_cg_shared_global(std::uint32_t shared, const void* global, int given) {
  async_copy(shared, global, 16, given);
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
// Two values, the first one into the upper half.
template <class Format>
EMULATOR_PTX pack(std::uint32_t& pair, float upper, float lower, bool relu, bool finite) {
  const auto bits = [&](float x) {
    if (relu && x < 0) x = 0;
    if (finite && std::abs(x) > 65504.f) x = x < 0 ? -65504.f : 65504.f;
    return std::uint32_t(Format::rounded(x));
  };
  pair = bits(upper) << 16 | bits(lower);
}
EMULATOR_PTX ptx_cvt_rn_relu_bf16x2_f32(std::uint32_t& pair, float upper, float lower) {
  pack<Bf16>(pair, upper, lower, true, false);
}
EMULATOR_PTX ptx_cvt_rn_satfinite_f16x2_f32(std::uint32_t& pair, float upper, float lower) {
  pack<Fp16>(pair, upper, lower, false, true);
}
EMULATOR_PTX ptx_cvt_rn_relu_satfinite_f16x2_f32(std::uint32_t& pair, float upper, float lower) {
  pack<Fp16>(pair, upper, lower, true, true);
}
EMULATOR_PTX ptx_prmt_b32(std::uint32_t& result, std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  result = __byte_perm(a, b, selector);
}
EMULATOR_PTX ptx_prefetch_global_L2(const void*) {}

EMULATOR_PTX ptx_mbarrier_init_shared_b64(std::uint32_t address, int count) { init_mbarrier(address, count); }
EMULATOR_PTX ptx_mbarrier_arrive_shared_b64(std::uint32_t address) { arrive_at_mbarrier(address); }
EMULATOR_PTX ptx_cp_async_mbarrier_arrive_noinc_shared_b64(std::uint32_t address) {
  arrive_at_mbarrier_after_copies(address);
}
EMULATOR_PTX ptx_mbarrier_test_wait_parity_shared_b64(std::uint32_t address, int parity, std::uint32_t& done) {
  wait_at_mbarrier(address, parity);
  done = 1;
}

EMULATOR_PTX ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(std::uint32_t& r0, std::uint32_t& r1, std::uint32_t& r2,
                                                          std::uint32_t& r3, std::uint32_t address) {
  std::uint32_t r[4];
  load_matrices(r, address, false);
  r0 = r[0], r1 = r[1], r2 = r[2], r3 = r[3];
}
EMULATOR_PTX ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(std::uint32_t& r0, std::uint32_t& r1, std::uint32_t& r2,
                                                                std::uint32_t& r3, std::uint32_t address) {
  std::uint32_t r[4];
  load_matrices(r, address, true);
  r0 = r[0], r1 = r[1], r2 = r[2], r3 = r[3];
}
EMULATOR_PTX ptx_movmatrix_sync_aligned_m8n8_trans_b16(std::uint32_t& turned, std::uint32_t pair) {
  turned = transpose_matrix(pair);
}
#define EMULATOR_MMA(instruction, function)                                                                            \
  EMULATOR_PTX instruction(float& d0, float& d1, float& d2, float& d3, std::uint32_t a0, std::uint32_t a1,             \
                           std::uint32_t a2, std::uint32_t a3, std::uint32_t b0, std::uint32_t b1, float c0, float c1, \
                           float c2, float c3) {                                                                       \
    float d[4];                                                                                                        \
    function(d, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3});                                                         \
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];                                                                        \
  }
EMULATOR_MMA(ptx_mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, multiply_tf32)
EMULATOR_MMA(ptx_mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, multiply_bf16)
EMULATOR_MMA(ptx_mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, multiply_fp16)
#undef EMULATOR_MMA
EMULATOR_PTX ptx_mma_sync_aligned_m16n8k16_row_col_f16_f16_f16_f16(std::uint32_t& d0, std::uint32_t& d1,
                                                                   std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                                                   std::uint32_t a3, std::uint32_t b0, std::uint32_t b1,
                                                                   std::uint32_t c0, std::uint32_t c1) {
  const auto half_of = [](std::uint32_t pair, int i) { return Fp16::exact(std::uint16_t(pair >> 16 * i)); };
  float d[4];
  multiply_fp16(d, {a0, a1, a2, a3}, {b0, b1}, {half_of(c0, 0), half_of(c0, 1), half_of(c1, 0), half_of(c1, 1)});
  pack<Fp16>(d0, d[1], d[0], false, false);
  pack<Fp16>(d1, d[3], d[2], false, false);
}
EMULATOR_PTX ptx_mma_sp_sync_aligned_m16n8k32_row_col_f32_bf16_bf16_f32(
    float& d0, float& d1, float& d2, float& d3, std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
    std::uint32_t b0, std::uint32_t b1, std::uint32_t b2, std::uint32_t b3, float c0, float c1, float c2, float c3,
    std::uint32_t places) {
  float d[4];
  multiply_sparse_bf16(d, {a0, a1, a2, a3}, {b0, b1, b2, b3}, {c0, c1, c2, c3}, places);
  d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}
#undef EMULATOR_PTX

}  // namespace emulator
