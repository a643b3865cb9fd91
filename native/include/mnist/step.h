// What kernels of a training step write for the host: its result, and the decisions of pooling.
#pragma once

#include <cstdint>

namespace mnist {

// What one training step reports: mean loss over the batch before the update, and how many it got right.
struct StepResult {
  double loss = 0;
  std::int32_t correct = 0;
};

// A pooled cell whose maximum ReLU stopped, where others have the position of the maximum in their window.
inline constexpr std::uint8_t kDead = 4;

}  // namespace mnist
