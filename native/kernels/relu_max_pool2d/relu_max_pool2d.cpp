// The table of relu_max_pool2d forward.
#include "kernels/relu_max_pool2d/relu_max_pool2d.h"

#include "kernels/relu_max_pool2d/naive_ops.h"

namespace mnist::kernels {

std::span<const Variant<ReluMaxPool2dForward>> relu_max_pool2d_forward_variants() {
  static constexpr Variant<ReluMaxPool2dForward> kTable[] = {
      {"naive", naive::relu_max_pool2d_forward, "a block of 64 threads a plane, four loads a window"},
      {"float2", relu_max_pool2d_forward_float2, "one thread a window, two 8-byte loads"},
  };
  return kTable;
}

}  // namespace mnist::kernels
