// The table of the histogram.
#include "kernels/histogram/histogram.h"

namespace mnist::kernels {

std::span<const Variant<Histogram>> histogram_variants() {
  static constexpr Variant<Histogram> kTable[] = {
      {"naive", histogram_naive, "one atomicAdd to global memory per pixel, most of them to the background's counter"},
      // Threads meet at their block's own counters, in shared memory, instead of all at one place in global memory.
      {"privatised", histogram_privatised,
       "counters of each block in shared memory, 16 pixels per thread; 256 additions per block to global memory"},
      // It is not: the machine code of an addition of 1 to shared memory already adds up a warp's equal places.
      {"voted", histogram_voted,
       "privatised, but a warp counts its background pixels by one vote: 1.0x privatised's time at B=256 on an H200"},
  };
  return kTable;
}

}  // namespace mnist::kernels
