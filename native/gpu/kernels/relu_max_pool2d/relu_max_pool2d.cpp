// The tables of relu_max_pool2d.
#include "kernels/relu_max_pool2d/relu_max_pool2d.h"

#include "kernels/relu_max_pool2d/naive_ops.h"

namespace mnist::kernels {

std::span<const Variant<ReluMaxPool2dForward>> relu_max_pool2d_forward_variants() {
  static constexpr Variant<ReluMaxPool2dForward> kTable[] = {
      {"naive", naive::relu_max_pool2d_forward, "a block of 64 threads per plane, four loads per window"},
      // A window takes two loads instead of four, and blocks no longer end with a plane.
      {"float2", relu_max_pool2d_forward_float2, "one thread per window, two 8-byte loads"},
  };
  return kTable;
}

std::span<const Variant<ReluMaxPool2dBackward>> relu_max_pool2d_backward_variants() {
  static constexpr Variant<ReluMaxPool2dBackward> kTable[] = {
      {"naive", naive::relu_max_pool2d_backward, "a block of 64 threads per plane, four stores per window"},
      // A window takes two stores instead of four, and blocks no longer end with a plane.
      {"float2", relu_max_pool2d_backward_float2, "one thread per window, two 8-byte stores"},
  };
  return kTable;
}

}  // namespace mnist::kernels
