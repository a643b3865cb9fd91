// One step of the fused engine seen from inside, in PyTorch's layouts.
#pragma once

#include "engines/fused/steps.h"

namespace mnist::fused {

// Runs a step on `batch` images without keeping its update, and reads what it left. Waits. `staging` is room for
// kParameterCount floats; there is room for the batch, and `samples` are it, in their order.
Probe probe_step(Steps& steps, cuda::Stream& stream, const Samples& samples, std::int64_t batch, double upstream,
                 float* staging);

// fc1.weight's columns: PyTorch flattens (channel, cell), the engine keeps (cell, channel).
inline std::int64_t torch_feature(std::int64_t feature) {
  return feature % kConv2Channels * kCells2 + feature / kConv2Channels;
}

// pool1's routing as Routing has it, from the words that Conv1::row() packed.
std::vector<std::uint8_t> unpack_route1(std::span<const std::uint32_t> words);

// A slab from the engine's order to PyTorch's, by way of `staging`; waits.
std::vector<double> read_slab(const float* slab, float* staging, cudaStream_t stream);

}  // namespace mnist::fused
