// The table of relu forward.
#include "kernels/relu/relu.h"

#include "kernels/relu/naive_ops.h"

namespace mnist::kernels {

std::span<const Variant<ReluForward>> relu_forward_variants() {
  static constexpr Variant<ReluForward> kTable[] = {
      {"naive", naive::relu_forward, "one element per thread"},
      // The same bytes take a quarter of the loads, stores and threads.
      {"float4", relu_forward_float4, "four elements per thread, 16 bytes per load"},
  };
  return kTable;
}

}  // namespace mnist::kernels
