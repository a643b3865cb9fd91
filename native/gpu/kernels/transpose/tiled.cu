// transpose: a tile turns in shared memory, whose banks decide how its rows lie.
#include "cuda/check.h"
#include "kernels/transpose/transpose.h"

namespace mnist::kernels {
namespace {

constexpr int kTile = kTransposeTile, kRows = kTransposeRows;

// The number (r,c) of the tile lies at tile[r][c], or with kSwizzled at tile[r][c ^ r]; its rows are kPitch numbers
// apart. blockIdx.x = which 32 rows of x, blockIdx.y = which 32 columns; a warp, of one threadIdx.y, moves every 8th
// row of the tile and then of the turned tile.
template <int kPitch, bool kSwizzled>
__global__ void transpose_tiled_kernel(float* __restrict__ y, const float* __restrict__ x, std::int64_t rows,
                                       int columns) {
  __shared__ float tile[kTile][kPitch];
  const int lane = int(threadIdx.x), first_column = int(blockIdx.y) * kTile;
  const std::int64_t first_row = std::int64_t(blockIdx.x) * kTile;
  for (int n = int(threadIdx.y); n < kTile; n += kRows)
    if (first_row + n < rows && first_column + lane < columns)
      tile[n][kSwizzled ? lane ^ n : lane] = x[(first_row + n) * columns + first_column + lane];
  __syncthreads();  // the tile is complete
  for (int n = int(threadIdx.y); n < kTile; n += kRows)
    if (first_column + n < columns && first_row + lane < rows)
      y[(first_column + n) * rows + first_row + lane] = tile[lane][kSwizzled ? n ^ lane : n];
}

template <int kPitch, bool kSwizzled>
void launch(float* y, const float* x, std::int64_t rows, int columns, cudaStream_t stream) {
  const dim3 grid = transpose_grid(rows, columns), block(kTile, kRows);
  transpose_tiled_kernel<kPitch, kSwizzled><<<grid, block, 0, stream>>>(y, x, rows, columns);
  MNIST_CHECK_LAUNCH();
}

}  // namespace

void transpose_tiled(float* y, const float* x, std::int64_t rows, int columns, cudaStream_t stream) {
  launch<kTile, false>(y, x, rows, columns, stream);
}
void transpose_padded(float* y, const float* x, std::int64_t rows, int columns, cudaStream_t stream) {
  launch<kTile + 1, false>(y, x, rows, columns, stream);
}
void transpose_swizzled(float* y, const float* x, std::int64_t rows, int columns, cudaStream_t stream) {
  launch<kTile, true>(y, x, rows, columns, stream);
}

}  // namespace mnist::kernels
