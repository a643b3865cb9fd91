// The benchmark of the ops: every row of every ladder (bench/ladders.h), checked against the reference and then timed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mnist/kernel_use.h"

namespace mnist {

// What this GPU was measured to do at its best, the ceilings that `percent of roof` is of.
struct Roofs {
  double bytes_per_second = 0;  // a large copy, read and written bytes both counted
  double fma_flops = 0;         // float32 multiply-adds from registers
  double tf32_flops = 0;        // mma.sync m16n8k8 from registers; 0 where no code of ours can do that
  double bf16_flops = 0;        // mma.sync m16n8k16 from registers; the same

  // Of a row's unit; 0 where it was not measured.
  double flops(const std::string& unit) const {
    return unit == "fma" ? fma_flops : unit == "tf32" ? tf32_flops : unit == "bf16" ? bf16_flops : 0;
  }
};

// Throws UnavailableError without a GPU.
Roofs measure_roofs(int device);

struct OpTiming {
  std::string op, shape, variant, why;
  bool library = false;         // a call of NVIDIA's
  std::string unit;             // what multiplies: a name_of(kernels::Unit)
  std::string absent;           // why it did not run here, and no time or error follows; empty if it did
  double bytes = 0, flops = 0;  // the least that the op has to move and to compute
  double cold_seconds = 0;      // median with nothing of it in the L2 cache
  double warm_seconds = 0;      // median of back-to-back runs on the same buffers
  double error = 0, bound = 0;  // relative L2 against float64, and the most that passes
  double percent_of_roof = 0;   // the larger of bytes and flops at their roof, over the cold time; 0 without that roof
  double library_ratio = 0;     // cold time over that of the op's fastest library row of the same unit; 0 if there is
                                // none
  std::vector<KernelUse> kernels;  // that a run launches
};

struct OpReport {
  Roofs roofs;
  std::vector<OpTiming> rows;
};

// `op` empty: all of them; `variant` empty: all of each. `batch`: images. Throws ArgumentError for an unknown op,
// UnavailableError without a GPU.
OpReport bench_ops(const std::string& op, const std::string& variant, std::int64_t batch, int device);

}  // namespace mnist
