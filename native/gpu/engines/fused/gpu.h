// The GPU as `fused` uses it: its limits, and what the code that runs there can do.
#pragma once

#include "kernels/fused/kernels.h"

namespace mnist::fused {

struct Gpu {
  Limits limits;
  Limits step;           // what a training step is cut up for
  bool overlap = false;  // the code has programmatic dependent launch
  bool hopper = false;
  bool limited = false;  // the limits are not the GPU's own
};

// The selected GPU, by its driver; or a smaller one from before Hopper, where the options say so, so that what runs
// there can be tested here. Throws ArgumentError for limits or multiprocessors beyond this GPU's, or too few for the
// kernels.
Gpu gpu_of(const EngineOptions& options, std::span<const KernelRow> rows);

// Its limits with so many of the multiprocessors. Throws ArgumentError for more, and for too few.
Limits limits_for_model(const Limits& limits, int multiprocessors, std::span<const KernelRow> rows);

// For Engine::algorithms(): what is not as one would expect of this GPU.
std::vector<std::string> notes_for_user(const Gpu& gpu);

}  // namespace mnist::fused
