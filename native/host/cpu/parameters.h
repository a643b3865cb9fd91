// The parameters as the cpu engine keeps them: float32, each tensor on a cache line, the two large ones reordered.
#pragma once

#include <span>

#include "cpu/aligned.h"
#include "mnist/model.h"

namespace mnist::cpu {

// conv2.weight is (in, tap, out) and fc1.weight (pixel, channel, hidden); the others are as in PyTorch.
class Parameters {
 public:
  Parameters();

  float* operator[](ParameterIndex index) const { return values_.data() + offsets_[index]; }
  // All tensors one after the other, with zeros between them.
  std::span<float> values() const { return {values_.data(), values_.size()}; }

  // From and to a slab of kParameterCount values in PyTorch's order.
  void assign(std::span<const double> slab);
  void copy_to(std::span<double> slab) const;

 private:
  std::array<std::int64_t, kParameterTensors> offsets_;
  AlignedArray<float> values_;
};

}  // namespace mnist::cpu
