// row sums: one warp per row.
#include "cuda/check.h"
#include "kernels/row_sums/row_sums.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kWarps = 8;

// threadIdx.x = lane, threadIdx.y = warp.
__global__ void row_sums_warp_kernel(float* __restrict__ y, const float* __restrict__ x, const int* __restrict__ length,
                                     std::int64_t rows, int columns) {
  const std::int64_t r = std::int64_t(blockIdx.x) * kWarps + threadIdx.y;
  if (r >= rows) return;  // the whole warp leaves together
  const int lane = int(threadIdx.x), count = length[r];
  float sum = 0;
  for (int k = lane; k < count; k += 32) sum += x[r * columns + k];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
  if (lane == 0) y[r] = sum;
}

}  // namespace

void row_sums_warp(float* y, const float* x, const int* length, const int*, std::int64_t rows, int columns,
                   cudaStream_t stream) {
  MNIST_REQUIRE(rows > 0 && columns > 0,
                "row_sums: " << rows << " rows of " << columns << " columns, expected at least 1 of both");
  const dim3 block(32, kWarps);
  row_sums_warp_kernel<<<unsigned(ceil_div(rows, kWarps)), block, 0, stream>>>(y, x, length, rows, columns);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
