// The table of the histogram.
#include "kernels/histogram/histogram.h"

namespace mnist::kernels {

std::span<const Variant<Histogram>> histogram_variants() {
  static constexpr Variant<Histogram> kTable[] = {
      {"naive", histogram_naive, "one atomicAdd to global memory per pixel, most of them to the background's counter"},
      // Threads meet at their block's own counters, in shared memory, instead of all at one place in global memory.
      {"privatised", histogram_privatised,
       "counters of each block in shared memory, 16 pixels per thread; 256 additions per block to global memory"},
      // The background's counter, which most pixels want, gets one addition per warp instead of one per pixel.
      {"voted", histogram_voted, "privatised, but a warp counts its background pixels by one vote"},
  };
  return kTable;
}

}  // namespace mnist::kernels
