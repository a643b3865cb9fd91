// The table of the histogram.
#include "kernels/histogram/histogram.h"

namespace mnist::kernels {

std::span<const Variant<Histogram>> histogram_variants() {
  static constexpr Variant<Histogram> kTable[] = {
      {"naive", histogram_naive, "one atomicAdd to global memory per pixel, most of them to the background's counter"},
      {"privatised", histogram_privatised,
       "counters of each block in shared memory, 16 pixels per thread; 256 additions per block to global memory"},
      {"voted", histogram_voted, "privatised, but a warp counts its background pixels by one vote"},
  };
  return kTable;
}

}  // namespace mnist::kernels
