// The tables of linear.
#include "kernels/linear/linear.h"

#include "kernels/naive/linear.h"

namespace mnist::kernels {

std::span<const Variant<LinearForward>> linear_forward_variants() {
  static constexpr Variant<LinearForward> kTable[] = {
      {"naive", naive::linear_forward, "one thread an output; a warp reads 32 rows of w at once"},
      {"coalesced", linear_forward_coalesced, "one warp an output; it reads 128 bytes that lie together"},
      {"tiled", linear_forward_tiled, "32x32 tiles in shared memory; a number read serves 32 outputs"},
      {"register_tiled", linear_forward_register_tiled,
       "4x4 outputs a thread; 128 outputs make too few blocks for it to win"},
      {"tensor_cores", linear_forward_tensor_cores, "mma.sync in tf32 on the same few blocks: it waits for memory",
       1e-3, Unit::kTensorTf32},
  };
  return kTable;
}

std::span<const Variant<LinearBackward>> linear_backward_variants() {
  static constexpr Variant<LinearBackward> kTable[] = {
      {"naive", naive::linear_backward, "one thread a dx, a dw, a dbias; neighbours read what lies together"},
  };
  return kTable;
}

}  // namespace mnist::kernels
