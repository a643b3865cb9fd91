// The table of transpose.
#include "kernels/transpose/transpose.h"

namespace mnist::kernels {

std::span<const Variant<Transpose>> transpose_variants() {
  static constexpr Variant<Transpose> kTable[] = {
      {"naive", transpose_naive, "reads along rows and stores down a column: 32 sectors per store of a warp"},
      // A warp stores 128 adjacent bytes instead of 32 sectors: the tile turns in shared memory.
      {"tiled", transpose_tiled,
       "stores through shared memory: a tile turns there, both sides move 128 adjacent bytes; 32-way bank conflicts"},
      // Reading a column of the tile takes one turn of the banks instead of 32.
      {"padded", transpose_padded, "one more number per row of the tile: a column has 32 banks"},
      // No gain: the same turns, but the tile needs no extra column.
      {"swizzled", transpose_swizzled,
       "the same without padding: (r,c) lies at column c ^ r; padded's time at B=256 on an H200"},
  };
  return kTable;
}

}  // namespace mnist::kernels
