// The table of row sums.
#include "kernels/row_sums/row_sums.h"

namespace mnist::kernels {

std::span<const Variant<RowSums>> row_sums_variants() {
  static constexpr Variant<RowSums> kTable[] = {
      {"naive", row_sums_naive, "one thread per row: a warp diverges, its lanes wait for the longest row"},
      // It is not: no lane waits long for another, but a warp's rows lie far apart, and here memory decides.
      {"sorted", row_sums_sorted,
       "the same, rows of about the same length in a warp: no divergence, the same loads; 1.2x naive's time at B=256 "
       "on an H200"},
      // The lanes of a warp read neighbours of one row, a few sectors per load instead of one per lane.
      {"warp", row_sums_warp, "one warp per row: no lane waits for another row, and loads are coalesced"},
  };
  return kTable;
}

}  // namespace mnist::kernels
