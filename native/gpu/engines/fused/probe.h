// One step of the fused engine seen from inside.
#pragma once

#include "engines/fused/steps.h"

namespace mnist::fused {

// Runs a step on `batch` images without keeping its update, and reads what it left. Waits. `exchange` is room for
// kParameterCount floats; there is room for the batch, and `samples` are it, in their order.
Probe probe_step(Steps& steps, cuda::Stream& stream, const Samples& samples, std::int64_t batch, double upstream,
                 float* exchange);

// A slab from the engine's order to PyTorch's, by way of `exchange`; waits.
std::vector<double> read_slab(const float* slab, float* exchange, cudaStream_t stream);

}  // namespace mnist::fused
