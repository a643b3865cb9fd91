// transpose: straight from memory to memory.
#include "cuda/check.h"
#include "kernels/transpose/transpose.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kTile = kTransposeTile, kRows = kTransposeRows;

// blockIdx.x = which 32 rows of x, blockIdx.y = which 32 columns; threadIdx.x = column, threadIdx.y = every 8th row
// from which on.
__global__ void transpose_naive_kernel(float* __restrict__ y, const float* __restrict__ x, std::int64_t rows,
                                       int columns) {
  const int c = int(blockIdx.y) * kTile + int(threadIdx.x);
  for (int n = int(threadIdx.y); n < kTile; n += kRows) {
    const std::int64_t r = std::int64_t(blockIdx.x) * kTile + n;
    if (r < rows && c < columns) y[c * rows + r] = x[r * columns + c];
  }
}

}  // namespace

dim3 transpose_grid(std::int64_t rows, int columns) {
  MNIST_REQUIRE(rows > 0 && columns > 0,
                "transpose: " << rows << " rows of " << columns << " columns, expected at least 1 of both");
  return {unsigned(ceil_div(rows, kTile)), unsigned(ceil_div(columns, kTile))};
}

void transpose_naive(float* y, const float* x, std::int64_t rows, int columns, cudaStream_t stream) {
  const dim3 block(kTile, kRows);
  transpose_naive_kernel<<<transpose_grid(rows, columns), block, 0, stream>>>(y, x, rows, columns);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
