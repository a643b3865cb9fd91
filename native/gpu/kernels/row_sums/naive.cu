// row sums: one thread per row, in the order of the rows or by their length.
#include "cuda/check.h"
#include "kernels/row_sums/row_sums.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kBlock = 256;

// `order`: which row a thread takes; null: that of its number.
__global__ void row_sums_kernel(float* __restrict__ y, const float* __restrict__ x, const int* __restrict__ length,
                                const int* __restrict__ order, std::int64_t rows, int columns) {
  const std::int64_t n = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (n >= rows) return;
  const std::int64_t r = order ? order[n] : n;
  const int count = length[r];
  float sum = 0;
  for (int k = 0; k < count; ++k) sum += x[r * columns + k];  // the lanes leave this loop at different times
  y[r] = sum;
}

void launch(float* y, const float* x, const int* length, const int* order, std::int64_t rows, int columns,
            cudaStream_t stream) {
  MNIST_REQUIRE(rows > 0 && columns > 0,
                "row_sums: " << rows << " rows of " << columns << " columns, expected at least 1 of both");
  row_sums_kernel<<<unsigned(ceil_div(rows, kBlock)), kBlock, 0, stream>>>(y, x, length, order, rows, columns);
  MNIST_CHECK_LAUNCH();
}

}  // namespace

void row_sums_naive(float* y, const float* x, const int* length, const int*, std::int64_t rows, int columns,
                    cudaStream_t stream) {
  launch(y, x, length, nullptr, rows, columns, stream);
}

void row_sums_sorted(float* y, const float* x, const int* length, const int* order, std::int64_t rows, int columns,
                     cudaStream_t stream) {
  launch(y, x, length, order, rows, columns, stream);
}

}  // namespace mnist::kernels
