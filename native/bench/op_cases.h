// An op on this network's shapes: buffers, the reference's answer, and every variant of its table ready to run.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cuda/buffer.h"
#include "kernels/cost.h"
#include "kernels/variant.h"

namespace mnist::bench {

struct OpVariant {
  const char* name;
  const char* why;
  double own_error;
  kernels::Unit unit;
  std::function<void(cudaStream_t)> run;
};

struct OpCase {
  std::string shape;
  kernels::Cost cost;
  std::vector<OpVariant> variants;
  cuda::DeviceBuffer<float> output;  // what is compared; `want` is the answer for its beginning
  std::vector<double> want;
  double bound = 0;                               // relative L2 error that a plain sum in float32 may have
  std::vector<cuda::DeviceBuffer<float>> floats;  // inputs and scratch, kept alive
  cuda::DeviceBuffer<std::uint8_t> decisions;
};

struct OpEntry {
  const char* name;
  OpCase (*make)(std::int64_t batch, cudaStream_t stream);
};
std::span<const OpEntry> op_entries();

}  // namespace mnist::bench
