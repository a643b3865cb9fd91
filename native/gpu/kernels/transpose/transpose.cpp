// The table of transpose.
#include "kernels/transpose/transpose.h"

namespace mnist::kernels {

std::span<const Variant<Transpose>> transpose_variants() {
  static constexpr Variant<Transpose> kTable[] = {
      {"naive", transpose_naive, "reads along rows and stores down a column: 32 sectors per store of a warp"},
      {"tiled", transpose_tiled,
       "stores through shared memory: a tile turns there, both sides move 128 adjacent bytes; 32-way bank conflicts"},
      {"padded", transpose_padded, "one more number per row of the tile: a column has 32 banks"},
      {"swizzled", transpose_swizzled, "the same without padding: (r,c) lies at column c ^ r"},
  };
  return kTable;
}

}  // namespace mnist::kernels
