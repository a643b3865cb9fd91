// The ladder of linear forward: y = x w^T + bias, shapes y (B,O) <- x (B,I), w (O,I), bias (O), float32; sets.
//
//   cost     linear_cost (kernels/cost.h)
// Any B, I, O >= 1. The backward has naive's kernels only (naive_ops.h), and a table for bench/ladders.h to
// put the libraries' beside them. Both matrices hold the summed index I side by side, so a tile of either is read row
// by row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/variant.h"

namespace mnist::kernels {

// `partial` is scratch of linear_partial_size(B,I,O) floats.
using LinearForward = void (*)(float* y, float* partial, const float* x, const float* w, const float* bias,
                               std::int64_t batch, int in, int out, cudaStream_t stream);
std::span<const Variant<LinearForward>> linear_forward_variants();

using LinearBackward = void (*)(float* dx, float* dw, float* dbias, const float* dy, const float* x, const float* w,
                                std::int64_t batch, int in, int out, cudaStream_t stream);
std::span<const Variant<LinearBackward>> linear_backward_variants();

// linear_forward_coalesced: a warp an output; its lanes walk the dot product side by side.
//   launch   8 warps a block, one output each
//   numerics 32 partial sums, added as a tree
//   why      a warp reads 128 bytes that lie together, where naive's 32 threads read 32 rows of w
void linear_forward_coalesced(float* y, float*, const float* x, const float* w, const float* bias, std::int64_t batch,
                              int in, int out, cudaStream_t stream);

// linear_forward_tiled: 32x32 tiles of x and w pass through shared memory.
//   launch   one block of 32x32 threads a 32x32 tile of y, one thread an output
//   numerics I terms added one after the other
//   why      each number read from memory serves 32 outputs. fc1's 128 outputs make few blocks that walk all of I: an
//            H200 takes the same time for batches of 64, 256 and 1024, and less than by `coalesced` only for 1024
void linear_forward_tiled(float* y, float*, const float* x, const float* w, const float* bias, std::int64_t batch,
                          int in, int out, cudaStream_t stream);

// Where few outputs make few 64x64 tiles, the two products below sum slices of I in blocks of their own: slice s, of
// `depth` terms, goes to partial[s] (B,O). The cut depends on the shapes alone, so the same input gives the same bits.
inline constexpr int kLinearTile = 64, kLinearSliceUnit = 32;  // a depth is a multiple of the unit
struct LinearSlices {
  int count, depth;
};
LinearSlices linear_slices(std::int64_t batch, int in, int out);
std::int64_t linear_partial_size(std::int64_t batch, int in, int out);

// linear_add_slices: y[b,o] = sum over s of partial[s,b,o], first slice first, + bias[o].
void linear_add_slices(float* y, const float* partial, const float* bias, std::int64_t batch, int out, int slices,
                       cudaStream_t stream);

// linear_forward_register_tiled: 64x64 tiles, and 4x4 outputs in the registers of each thread.
//   launch   one block of 16x16 threads a 64x64 tile of y and slice of I; then one thread an output adds the slices
//   numerics the terms of a slice added one after the other, then the slices, first to last
//   why      8 loads of shared memory serve 16 multiply-adds. fc1 has 128 outputs: at batch 256 that is 8 tiles, and
//            without slices 8 blocks took 7 times as long as `coalesced` on an H200, while the rest of the GPU idled
void linear_forward_register_tiled(float* y, float* partial, const float* x, const float* w, const float* bias,
                                   std::int64_t batch, int in, int out, cudaStream_t stream);

// linear_forward_tensor_cores: the same tiles multiplied by mma.sync m16n8k8 in tf32.
//   launch   one block of 4 warps a 64x64 tile of y and slice of I, 32x32 a warp; then as `register_tiled`
//   numerics inputs rounded to 11 bits, sums in float32, the slices first to last
//   why      one instruction multiplies 16x8x8 numbers; what the tiles take to load stays
void linear_forward_tensor_cores(float* y, float* partial, const float* x, const float* w, const float* bias,
                                 std::int64_t batch, int in, int out, cudaStream_t stream);

}  // namespace mnist::kernels
