// The table of batch_norm statistics.
#include "kernels/batch_norm/batch_norm.h"

#include "kernels/naive/batch_norm.h"

namespace mnist::kernels {

std::span<const Variant<BatchNormStatistics>> batch_norm_statistics_variants() {
  static constexpr Variant<BatchNormStatistics> kTable[] = {
      {"naive", naive::batch_norm_statistics, "two passes; blocks sum chunks as trees in shared memory"},
      {"atomics", batch_norm_statistics_atomics,
       "one pass, two atomicAdd a thread: slow, inexact, never the same twice", 1e-4},
      {"shuffle", batch_norm_statistics_shuffle,
       "two passes; a block's sum takes one barrier. The reads decide: nothing gained"},
      {"welford", batch_norm_statistics_welford,
       "one pass, exact; a division a number costs more than the second pass"},
  };
  return kTable;
}

}  // namespace mnist::kernels
