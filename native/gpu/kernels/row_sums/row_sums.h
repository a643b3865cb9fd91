// The ladder of row sums: y[r] = the sum of the first length[r] numbers of row r; sets. Rows of different lengths are
// what makes the lanes of a warp diverge.
//
//   shapes   y (R) <- x (R,C), length (R), each 0 to C, order (R); float32 and int32
//   cost     row_sums_cost (profile/cost.h), of the numbers that are summed; memory bound
// `order` names the rows from the longest to the shortest, as a program knows them that sorts its batch by length.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/variant.h"

namespace mnist::kernels {

using RowSums = void (*)(float* y, const float* x, const int* length, const int* order, std::int64_t rows, int columns,
                         cudaStream_t stream);
std::span<const Variant<RowSums>> row_sums_variants();

// row_sums_naive: one thread per row.
//   launch   one thread per row; block 256
//   numerics the terms of a row added one after the other
//   why      the plainest: a warp goes round as often as its longest row is long, and lanes with shorter rows idle
void row_sums_naive(float* y, const float* x, const int* length, const int* order, std::int64_t rows, int columns,
                    cudaStream_t stream);

// row_sums_sorted: one thread per row, neighbours in `order` side by side.
//   launch, numerics as naive
//   why      the same loads by the same number of threads, but the rows of a warp are about as long: what it gains over
//            naive is what the idle lanes cost
void row_sums_sorted(float* y, const float* x, const int* length, const int* order, std::int64_t rows, int columns,
                     cudaStream_t stream);

// row_sums_warp: one warp per row.
//   launch   8 warps per block, one row each
//   numerics 32 partial sums, added as a tree
//   why      no lane waits for another row, whatever the order; and a warp reads 128 bytes that lie together, where the
//            others read 32 rows at once
void row_sums_warp(float* y, const float* x, const int* length, const int* order, std::int64_t rows, int columns,
                   cudaStream_t stream);

}  // namespace mnist::kernels
