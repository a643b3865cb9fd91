// What the tiled products of linear share: how a summed index is cut into slices, and the passes that end them.
//
// Where few outputs make few tiles, slices of the summed index are summed in blocks of their own: slice s, of `depth`
// terms, goes to partial[s]. The cut depends on the shapes alone, so the same input gives the same bits.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

namespace mnist::kernels {

// Outputs of a block.
struct LinearTile {
  int rows, columns;
};
inline constexpr LinearTile kLinearTile{32, 32}, kLinearRegisterTile{64, 64}, kLinearProductTile{128, 64};

struct LinearSlices {
  int count, depth;  // depth is a multiple of the unit
};
inline constexpr int kLinearSliceUnit = 32;
LinearSlices linear_slices(const LinearTile& tile, std::int64_t rows, std::int64_t columns, std::int64_t terms);

// linear_forward_slices: partial[s,b,o], slice s of x w^T, by prefetched's product; returns the number of slices.
int linear_forward_slices(float* partial, const float* x, const float* w, std::int64_t batch, int in, int out,
                          cudaStream_t stream);

// The most that size(b) is for any batch b up to `batch`: smaller ones may be cut finer.
template <class Size>
std::int64_t most_of_batches(std::int64_t batch, Size size) {
  std::int64_t most = 0;
  for (std::int64_t b = 1; b <= batch; ++b) most = std::max<std::int64_t>(most, size(b));
  return most;
}

// Scratch of linear_forward_int8 (linear.h), in floats.
std::int64_t linear_int8_partial_size(std::int64_t batch, int in, int out);

// linear_add_slices: y[r,c] = sum over s of partial[s,r,c], first slice first, + bias[c] unless that is null.
void linear_add_slices(float* y, const float* partial, const float* bias, std::int64_t rows, int columns, int slices,
                       cudaStream_t stream);

// linear_backward_bias: dbias[o] = sum over b of dy[b,o].
//   launch   one block of 32x32 threads 32 outputs; each thread every 32nd row, then one thread an output adds them
void linear_backward_bias(float* dbias, const float* dy, std::int64_t batch, int out, cudaStream_t stream);

}  // namespace mnist::kernels
