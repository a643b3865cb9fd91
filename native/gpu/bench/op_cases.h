// An op on this network's shapes: buffers, the reference's answer, and every row of its ladder ready to run.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/ladders.h"
#include "cuda/buffer.h"
#include "profile/cost.h"

namespace mnist::bench {

struct OpCase {
  std::string shape;
  kernels::Cost cost;
  Ladder<void (*)(cudaStream_t)> ladder;  // with all other arguments bound
  cuda::DeviceBuffer<float> output;       // what is compared with `want`
  bool counts = false;                    // the output holds integers of 32 bits
  int channels = 1, area = 1;             // of it, where rows leave it channels last
  std::vector<double> want;
  double bound = 0;                               // relative L2 error that a plain sum in float32 may have
  std::vector<cuda::DeviceBuffer<float>> floats;  // inputs and scratch, kept alive
  std::vector<cuda::DeviceBuffer<int>> ints;
  cuda::DeviceBuffer<std::uint8_t> decisions;
};

// Relative L2 distance of as many numbers as `want` has; NaN or infinity if any is not finite.
double relative_error(std::span<const double> got, std::span<const double> want);

// What the last run left.
std::vector<double> output_of(const OpCase& op, cudaStream_t stream);

struct OpEntry {
  const char* name;
  OpCase (*make)(std::int64_t batch, cudaStream_t stream);
};
std::span<const OpEntry> op_entries();

}  // namespace mnist::bench
