// The ladder of transpose: y[c,r] = x[r,c]; sets.
//
//   shapes   y (C,R) <- x (R,C), float32, row by row; any R, C >= 1
//   cost     transpose_cost (profile/cost.h): nothing is computed, each number is read and written once
//   numerics exact
// Of the two arrays one is read or written along its rows, the other down a column, and a column takes a sector of 32
// bytes for each number of 4.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/variant.h"

namespace mnist::kernels {

using Transpose = void (*)(float* y, const float* x, std::int64_t rows, int columns, cudaStream_t stream);
std::span<const Variant<Transpose>> transpose_variants();

// All rows launch one block of 32x8 threads per 32x32 tile; a thread moves four numbers.
inline constexpr int kTransposeTile = 32, kTransposeRows = 8;
dim3 transpose_grid(std::int64_t rows, int columns);  // x counts tiles along the rows of x, y along its columns

// transpose_naive: from memory to memory.
//   why      the plainest: a warp reads 128 bytes that lie together and stores 32 numbers at a distance of 4 R bytes
void transpose_naive(float* y, const float* x, std::int64_t rows, int columns, cudaStream_t stream);

// transpose_tiled: the store goes through shared memory.
//   why      a tile that is written by rows and read by columns turns in shared memory, where a column costs no
//            sectors: loads and stores both take 128 bytes that lie together. But the 32 numbers of a column lie in the
//            same bank, which gives one per turn
void transpose_tiled(float* y, const float* x, std::int64_t rows, int columns, cudaStream_t stream);

// transpose_padded: rows of the tile are 33 numbers apart.
//   why      the number (r,c) lies in bank (33 r + c) % 32 = (r + c) % 32: a row and a column both have 32 banks
void transpose_padded(float* y, const float* x, std::int64_t rows, int columns, cudaStream_t stream);

// transpose_swizzled: the number (r,c) of the tile lies at (r, c ^ r).
//   why      bank c ^ r: a row and a column both have 32 banks, without padding. Bulk copies and wgmma expect tiles in
//            such an order, and where shared memory decides how many blocks fit, the padding would cost
void transpose_swizzled(float* y, const float* x, std::int64_t rows, int columns, cudaStream_t stream);

}  // namespace mnist::kernels
