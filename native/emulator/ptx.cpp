// What the instructions of include/ptx.h do with the registers of a warp.
#include "ptx.h"

#include <bit>

#include "machine.h"

namespace emulator {

// With g = lane / 4 and t = lane % 4: a is 16x8 with (g,t), (g+8,t), (g,t+4), (g+8,t+4), b is 8x8 with (t,g), (t+4,g),
// c and d are 16x8 with (g,2t), (g,2t+1), (g+8,2t), (g+8,2t+1). Of a factor the tensor cores read 10 bits of mantissa.
__attribute__((noinline)) void multiply_tf32(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                                             const float (&c)[4]) {
  Thread& thread = *machine.current;
  const Thread* warp = &thread - thread.lane();
  const int g = thread.lane() / 4, t = thread.lane() % 4;
  const auto value = [](std::uint32_t bits) { return std::bit_cast<float>(bits & ~0x1fffu); };
  // A lane may be at its next product while others still read this one's factors, but no further.
  const int turn = thread.product ^= 1;
  for (int k = 0; k < 4; ++k) thread.factors[turn][k] = value(a[k]);
  for (int k = 0; k < 2; ++k) thread.factors[turn][4 + k] = value(b[k]);
  meet_at(std::uint64_t(__builtin_return_address(0)) - 1, ~0u, 0, false);
  for (int e = 0; e < 4; ++e) {
    double sum = c[e];
    for (int k = 0; k < 8; ++k)
      sum += double(warp[4 * g + k % 4].factors[turn][2 * (k / 4) + e / 2]) *
             double(warp[4 * (2 * t + e % 2) + k % 4].factors[turn][4 + k / 4]);
    d[e] = float(sum);
  }
}

}  // namespace emulator
