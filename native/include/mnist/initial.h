// Initial parameters: numpy's PCG64 stream turned into the values that mnist_cuda.init_parameters defines.
//
// Weights and biases of conv and linear layers take the stream's doubles in the order of kParameters; batch norm starts
// at scale 1 and shift 0 and takes none. Shared by host and device code.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "mnist/model.h"

namespace mnist {

// PCG64, which is PCG XSL RR 128/64 (O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good
// Algorithms for Random Number Generation", 2014), as numpy.random.PCG64 has it: one step, then the output.
struct Pcg64 {
  __extension__ using Word = unsigned __int128;
  static constexpr Word kMultiplier = Word(0x2360ED051FC65DA4) << 64 | 0x4385DF649FCCF645;

  Word state = 0, increment = 0;

  constexpr std::uint64_t next() {
    state = state * kMultiplier + increment;
    const auto word = std::uint64_t(state >> 64) ^ std::uint64_t(state);
    const auto turn = unsigned(state >> 122);
    return word >> turn | word << (-turn & 63);
  }

  // As `count` calls of next() would leave it: `count` applications of an affine map, by squaring.
  constexpr void skip(std::uint64_t count) {
    Word multiplier = kMultiplier, addend = increment, all_multiplier = 1, all_addend = 0;
    for (; count > 0; count >>= 1) {
      if (count & 1) {
        all_multiplier *= multiplier;
        all_addend = all_addend * multiplier + addend;
      }
      addend *= multiplier + 1;
      multiplier *= multiplier;
    }
    state = all_multiplier * state + all_addend;
  }
};

// A double of the stream in [0, 1): 53 bits.
constexpr double unit_interval(std::uint64_t bits) { return double(bits >> 11) * 0x1p-53; }

// How a parameter starts: uniform on (-bound, bound), bound = 1 / sqrt(fan in) of its layer's weight, from the stream's
// doubles draws .. draws + size; or, where bound is 0, all at `value`.
struct InitialTensor {
  std::int64_t offset, size, draws;  // elements of the slab; doubles that the parameters before it have taken
  double bound;
  float value;
};
inline std::array<InitialTensor, kParameterTensors> initial_tensors() {
  std::array<InitialTensor, kParameterTensors> tensors{};
  std::int64_t draws = 0;
  for (int p = 0; p < kParameterTensors; ++p) {
    const Parameter& weight = kParameters[p - p % 2];  // a layer's weight stands before its bias
    const bool drawn = weight.ndim > 1;                // batch norm's has no inputs
    const double bound = drawn ? 1 / std::sqrt(double(weight.size / weight.shape[0])) : 0;
    tensors[p] = {kParameters[p].offset, kParameters[p].size, draws, bound, p % 2 == 0 ? 1.f : 0.f};
    if (drawn) draws += kParameters[p].size;
  }
  return tensors;
}

}  // namespace mnist
