// Between the fused engine's layouts and PyTorch's, on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/fused/state.h"

namespace mnist::fused {

// fc1.weight's columns: PyTorch flattens (channel, cell), the engine keeps (cell, channel).
inline std::int64_t torch_feature(std::int64_t feature) {
  return feature % kConv2Channels * kCells2 + feature / kConv2Channels;
}

// pool1's routing as Routing has it, from the words that Conv1::row() packed.
std::vector<std::uint8_t> unpack_route1(std::span<const std::uint32_t> words);

}  // namespace mnist::fused
