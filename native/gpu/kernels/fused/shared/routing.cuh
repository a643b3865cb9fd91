// pool1's routing: a byte a value, 0x80 >> the position in its pooling window that it came from, or 0 where relu made a
// zero and in padding.
#pragma once

#include "kernels/fused/shared/numbers.cuh"

namespace mnist::fused {

// bn1, relu and pooling of a window's four positions. Byte `byte` of route gets 0x80 >> the position that the value
// came from, or stays 0 where relu made a zero or the cell is padding.
__device__ __forceinline__ float pooled(const float (&z)[4], float scale, float shift, bool padding, int byte,
                                        std::uint32_t& route) {
  const float best = fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3]));
  std::uint32_t where = 0x10u << 8 * byte;  // the first of equals wins
  where = z[2] == best ? 0x20u << 8 * byte : where;
  where = z[1] == best ? 0x40u << 8 * byte : where;
  where = z[0] == best ? 0x80u << 8 * byte : where;
  const float value = fmaf(scale, best, shift);
  const bool dead = value <= 0.f || padding;  // not NaN
  route |= dead ? 0u : where;
  return dead ? 0.f : value;
}

// Ones where slots 2t and 2t + 1 of a plane are cells and no padding, in 16 bits each.
__device__ __forceinline__ std::uint32_t cells_inside(int plane, int t) {
  return plane == 0 ? (t == 0 ? 0xffff0000u : ~0u) : t == 3 ? 0x0000ffffu : ~0u;
}

// pooled() of two cells side by side, in 16 bits: z is the four positions of both, `inside` is cells_inside().
// Comparisons give 16 ones or zeros a cell, so that a choice is one LOP3 for both; a cell is dead where its value,
// rounded, is 0. `route` gets the two bytes.
template <class P>
__device__ __forceinline__ typename P::Pair pooled_pair(const __half2 (&z)[4], float scale, float shift,
                                                        std::uint32_t inside, std::uint16_t& route) {
  using Pair = typename P::Pair;
  const __half2 best = __hmax2(__hmax2(z[0], z[1]), __hmax2(z[2], z[3]));
  const std::uint32_t is[3] = {__heq2_mask(z[0], best), __heq2_mask(z[1], best), __heq2_mask(z[2], best)};
  std::uint32_t where = (is[2] & 0x00200020u) | (~is[2] & 0x00100010u);  // the first of equals wins
  where = (is[1] & 0x00400040u) | (~is[1] & where);
  where = (is[0] & 0x00800080u) | (~is[0] & where);
  const float2 wide = __half22float2(best);
  const std::uint32_t value = P::pack_relu(fmaf(scale, wide.x, shift), fmaf(scale, wide.y, shift));
  const std::uint32_t alive = __hneu2_mask(*reinterpret_cast<const Pair*>(&value), Pair{}) & inside;
  route = std::uint16_t(__byte_perm(where & alive, 0, 0x4420));
  const std::uint32_t kept = value & alive;
  return *reinterpret_cast<const Pair*>(&kept);
}

// Bytes of `x` chosen by the selector's nibbles; a nibble above 7 repeats that byte's sign bit eight times.
__device__ __forceinline__ std::uint32_t permute_bytes(std::uint32_t x, std::uint32_t selector) {
  std::uint32_t result;
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(result) : "r"(x), "r"(selector));
  return result;
}

// Of values 2 pair and 2 pair + 1 of four, which have 16 bits and whose bytes `route` holds, all bits of those that go
// to `position` and none of the others. The bit becomes its byte's sign by a shift.
__device__ __forceinline__ std::uint32_t routing_mask_16(std::uint32_t route, int position, int pair) {
  return permute_bytes(route << position, pair ? 0xbbaa : 0x9988);
}

}  // namespace mnist::fused
