// The tables of log_softmax.
#include "kernels/log_softmax/log_softmax.h"

#include "kernels/log_softmax/naive_ops.h"

namespace mnist::kernels {

std::span<const Variant<LogSoftmaxForward>> log_softmax_forward_variants() {
  static constexpr Variant<LogSoftmaxForward> kTable[] = {
      {"naive", naive::log_softmax_forward, "one thread per row, three passes: maximum, sum, result"},
      // No gain: two walks along ten numbers instead of three, in a kernel that is mostly launch.
      {"online", log_softmax_forward_online,
       "maximum and sum in one pass: nothing gained, 1.0x naive's time at B=256 on an H200, 1.1x at 65536"},
      // Lanes load neighbours, and 5 exchanges replace the walk along the row.
      {"warp", log_softmax_forward_warp,
       "the same, one warp per row: ten classes keep 10 of 32 lanes busy; 0.96x online's time at B=256 on an H200, "
       "2.4x at 65536"},
  };
  return kTable;
}

std::span<const Variant<LogSoftmaxNllBackward>> log_softmax_nll_backward_variants() {
  static constexpr Variant<LogSoftmaxNllBackward> kTable[] = {
      {"naive", naive::log_softmax_nll_backward, "one element per thread"},
      // The same bytes take a quarter of the instructions, which a launch hides at this size.
      {"float4", log_softmax_nll_backward_float4,
       "four elements per thread, 16 bytes per load: at B=256 on an H200 a launch takes the time, 0.86x naive's at "
       "65536"},
  };
  return kTable;
}

}  // namespace mnist::kernels
