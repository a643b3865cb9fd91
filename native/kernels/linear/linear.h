// The ladder of linear forward: y = x w^T + bias, shapes y (B,O) <- x (B,I), w (O,I), bias (O), float32; sets.
//
//   cost     linear_cost (kernels/cost.h)
// Any B, I, O >= 1. The backward has naive's kernels only (kernels/naive/linear.h), and a table for bench/ladders.h to
// put the libraries' beside them. Both matrices hold the summed index I side by side, so a tile of either is read row
// by row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/variant.h"

namespace mnist::kernels {

using LinearForward = void (*)(float* y, const float* x, const float* w, const float* bias, std::int64_t batch, int in,
                               int out, cudaStream_t stream);
std::span<const Variant<LinearForward>> linear_forward_variants();

using LinearBackward = void (*)(float* dx, float* dw, float* dbias, const float* dy, const float* x, const float* w,
                                std::int64_t batch, int in, int out, cudaStream_t stream);
std::span<const Variant<LinearBackward>> linear_backward_variants();

// linear_forward_coalesced: a warp an output; its lanes walk the dot product side by side.
//   launch   8 warps a block, one output each
//   numerics 32 partial sums, added as a tree
//   why      a warp reads 128 bytes that lie together, where naive's 32 threads read 32 rows of w
void linear_forward_coalesced(float* y, const float* x, const float* w, const float* bias, std::int64_t batch, int in,
                              int out, cudaStream_t stream);

// linear_forward_tiled: 32x32 tiles of x and w pass through shared memory.
//   launch   one block of 32x32 threads a 32x32 tile of y, one thread an output
//   numerics I terms added one after the other
//   why      each number read from memory serves 32 outputs; the loads of shared memory, two a multiply-add, decide now
void linear_forward_tiled(float* y, const float* x, const float* w, const float* bias, std::int64_t batch, int in,
                          int out, cudaStream_t stream);

// linear_forward_register_tiled: 64x64 tiles, and 4x4 outputs in the registers of each thread.
//   launch   one block of 16x16 threads a 64x64 tile of y
//   numerics I terms added one after the other
//   why      8 loads of shared memory serve 16 multiply-adds. fc1 has 128 outputs: at batch 256 that is 8 blocks, the
//            rest of the GPU idles, and it takes 7 times as long as `coalesced`. It wants a split sum, or large batches
void linear_forward_register_tiled(float* y, const float* x, const float* w, const float* bias, std::int64_t batch,
                                   int in, int out, cudaStream_t stream);

// linear_forward_tensor_cores: the same tiles multiplied by mma.sync m16n8k8 in tf32.
//   launch   one block of 4 warps a 64x64 tile of y, 32x32 a warp
//   numerics inputs rounded to 11 bits, sums in float32
//   why      one instruction multiplies 16x8x8 numbers; starved like `register_tiled`, by as much
void linear_forward_tensor_cores(float* y, const float* x, const float* w, const float* bias, std::int64_t batch,
                                 int in, int out, cudaStream_t stream);

}  // namespace mnist::kernels
