// gather: elements of the matrix that a 3x3 convolution is the product of, without ever forming it.
#pragma once

#include <cstdint>

#include "mnist/model.h"

namespace mnist::kernels {

// Row n = (b,p,q) of the matrix: where its image starts and which position it is.
struct GatherRow {
  const float* image;  // null outside the batch
  int p, q;
};

__device__ inline GatherRow gather_row(const float* x, std::int64_t n, std::int64_t rows, int in, int side) {
  const int area = side * side, position = int(n % area);
  return {n < rows ? x + n / area * in * area : nullptr, position / side, position % side};
}

// Column k = (i,u,v): x[b,i,p+u-1,q+v-1], 0 outside the image.
__device__ inline float gather(const GatherRow& row, int k, int depth, int side) {
  const int i = k / kTaps, tap = k % kTaps, r = row.p + tap / 3 - 1, s = row.q + tap % 3 - 1;
  const bool inside = row.image && k < depth && r >= 0 && r < side && s >= 0 && s < side;
  return inside ? row.image[(i * side + r) * side + s] : 0;
}

}  // namespace mnist::kernels
