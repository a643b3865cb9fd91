// What the instructions of include/ptx.h do with the registers of a warp.
#include "ptx.h"

#include <bit>

#include "machine.h"

namespace emulator {
namespace {

#define HERE (std::uint64_t(__builtin_return_address(0)) - 1)

// All lanes of a warp show each other registers: of(lane, k) is the k-th of a lane. A lane may be at its next exchange
// while others still read this one's, but no further.
class Exchange {
 public:
  Exchange(std::uint64_t place, std::initializer_list<std::uint32_t> registers) {
    Thread& thread = *machine.current;
    warp_ = &thread - thread.lane();
    turn_ = thread.turn ^= 1;
    std::copy(registers.begin(), registers.end(), thread.given[turn_]);
    meet_at(place, ~0u, 0, false);
  }
  std::uint32_t of(int lane, int k) const { return warp_[lane].given[turn_][k]; }

 private:
  const Thread* warp_;
  int turn_;
};

// d = a b + c. With g = lane / 4 and t = lane % 4: c and d are 16x8 with (g,2t), (g,2t+1), (g+8,2t), (g+8,2t+1).
// left(row, k) and right(k, column) are the factors; of 10 bits of mantissa at most, so a product is exact as a double.
template <class Left, class Right>
void multiply(float (&d)[4], const float (&c)[4], int depth, Left left, Right right) {
  const int g = machine.current->lane() / 4, t = machine.current->lane() % 4;
  for (int e = 0; e < 4; ++e) {
    double sum = c[e];
    for (int k = 0; k < depth; ++k) sum += double(left(g + e / 2 * 8, k)) * double(right(k, 2 * t + e % 2));
    d[e] = float(sum);
  }
}

// a is 16x16 with (g,2t), (g+8,2t), (g,2t+8), (g+8,2t+8) and their right neighbours, b is 16x8 with (2t,g), (2t+8,g)
// and what is below them.
template <class Format>
void multiply_16_bits(std::uint64_t place, float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                      const float (&c)[4]) {
  const Exchange all(place, {a[0], a[1], a[2], a[3], b[0], b[1]});
  const auto value = [](std::uint32_t pair, int upper) { return Format::exact(std::uint16_t(pair >> 16 * upper)); };
  multiply(
      d, c, 16, [&](int row, int k) { return value(all.of(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2), k % 2); },
      [&](int k, int column) { return value(all.of(column * 4 + k % 8 / 2, 4 + k / 8), k % 2); });
}

}  // namespace

// a is 16x8 with (g,t), (g+8,t), (g,t+4), (g+8,t+4), b is 8x8 with (t,g), (t+4,g). Of a factor the tensor cores read 10
// bits of mantissa.
__attribute__((noinline)) void multiply_tf32(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                                             const float (&c)[4]) {
  const Exchange all(HERE, {a[0], a[1], a[2], a[3], b[0], b[1]});
  const auto value = [](std::uint32_t bits) { return std::bit_cast<float>(bits & ~0x1fffu); };
  multiply(
      d, c, 8, [&](int row, int k) { return value(all.of(row % 8 * 4 + k % 4, row / 8 + k / 4 * 2)); },
      [&](int k, int column) { return value(all.of(column * 4 + k % 4, 4 + k / 4)); });
}
__attribute__((noinline)) void multiply_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                                             const float (&c)[4]) {
  multiply_16_bits<Bf16>(HERE, d, a, b, c);
}
__attribute__((noinline)) void multiply_fp16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                                             const float (&c)[4]) {
  multiply_16_bits<Fp16>(HERE, d, a, b, c);
}
// Of row r, the two of the q-th four are stored at columns 2q and 2q + 1. Their places, two bits each, are with lane
// r % 8 * 4 + q / 4, in the half r / 8 of the register, from bit 4 (q % 4) on. What b has at the other two is not read.
__attribute__((noinline)) void multiply_sparse_bf16(float (&d)[4], const std::uint32_t (&a)[4],
                                                    const std::uint32_t (&b)[4], const float (&c)[4],
                                                    std::uint32_t places) {
  const auto place = HERE;
  const Exchange all(place, {a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], places});
  const auto value = [](std::uint32_t pair, int upper) { return Bf16::exact(std::uint16_t(pair >> 16 * upper)); };
  const int g = machine.current->lane() / 4, t = machine.current->lane() % 4;
  for (int e = 0; e < 4; ++e) {
    const int row = g + e / 2 * 8, column = 2 * t + e % 2;
    double sum = c[e];
    for (int n = 0; n < 16; ++n) {
      const std::uint32_t of_four = all.of(row % 8 * 4 + n / 8, 8) >> 16 * (row / 8) >> 4 * (n / 2 % 4);
      const int first = int(of_four & 3), second = int(of_four >> 2 & 3);
      if (first >= second) add_fault("instruction", "mma.sp: the places of two weights do not increase", place);
      const int k = n / 2 * 4 + (n % 2 ? second : first);
      sum += double(value(all.of(row % 8 * 4 + n % 8 / 2, row / 8 + n / 8 * 2), n % 2)) *
             double(value(all.of(column * 4 + k % 8 / 2, 4 + k / 8), k % 2));
    }
    d[e] = float(sum);
  }
}

// Lane 8 m + r says where row r of matrix m lies; lane 4 r + t gets its values 2t and 2t + 1, or if it is transposed
// those of column r in rows 2t and 2t + 1.
__attribute__((noinline)) void load_matrices(std::uint32_t (&registers)[4], std::uint32_t address, bool transposed) {
  const auto place = HERE;
  const char* from = shared_pointer(address, 16, place);
  access(from, 16, false, Strength::kPlain, place);
  std::uint32_t row[4];
  copy_bytes(row, from, 16);
  const Exchange all(place, {row[0], row[1], row[2], row[3]});
  const int g = machine.current->lane() / 4, t = machine.current->lane() % 4;
  for (int m = 0; m < 4; ++m) {
    const auto value = [&](int r, int column) { return all.of(8 * m + r, column / 2) >> column % 2 * 16 & 0xffff; };
    registers[m] = transposed ? value(2 * t, g) | value(2 * t + 1, g) << 16 : all.of(8 * m + g, t);
  }
}

__attribute__((noinline)) std::uint32_t transpose_matrix(std::uint32_t pair) {
  const Exchange all(HERE, {pair});
  const int g = machine.current->lane() / 4, t = machine.current->lane() % 4;
  const auto value = [&](int row, int column) { return all.of(row * 4 + column / 2, 0) >> column % 2 * 16 & 0xffff; };
  return value(2 * t, g) | value(2 * t + 1, g) << 16;
}

}  // namespace emulator
