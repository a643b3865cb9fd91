// The ladders of linear: y = x w^T + bias, and its gradients dx = dy w, dw = dy^T x and dbias, float32; they set.
//
//   shapes   y, dy (B,O), x, dx (B,I), w, dw (O,I), bias, dbias (O); any B, I, O >= 1
//   cost     linear_cost, linear_backward_cost (profile/cost.h)
// Both matrices of the forward product hold the summed index I side by side, so a tile of either is read row by row.
// Of those of dw neither does: its summed index is the batch.
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

// `partial` is scratch of linear_backward_partial_size(B,I,O) floats.
using LinearBackward = void (*)(float* dx, float* dw, float* dbias, float* partial, const float* dy, const float* x,
                                const float* w, std::int64_t batch, int in, int out, cudaStream_t stream);
std::span<const Variant<LinearBackward>> linear_backward_variants();

// linear_forward_coalesced: a warp an output; its lanes walk the dot product side by side.
//   launch   8 warps a block, one output each
//   numerics 32 partial sums, added as a tree
//   why      a warp reads 128 bytes that lie together, where naive's 32 threads read 32 rows of w
void linear_forward_coalesced(float* y, float*, const float* x, const float* w, const float* bias, std::int64_t batch,
                              int in, int out, cudaStream_t stream);

// linear_forward_tiled: 32x32 tiles of x and w pass through shared memory.
//   launch   one block of 32x32 threads a 32x32 tile of y and slice of I (slices.h), one thread an output; then one
//            thread an output adds the slices
//   numerics the terms of a slice added one after the other, then the slices, first to last
//   why      each number read from memory serves 32 outputs. Without slices fc1's 128 outputs made so few blocks that
//            it took 2.8 times as long as `coalesced` at batch 256 on an H200
void linear_forward_tiled(float* y, float* partial, const float* x, const float* w, const float* bias,
                          std::int64_t batch, int in, int out, cudaStream_t stream);

// linear_forward_register_tiled: 64x64 tiles, and 4x4 outputs in the registers of each thread.
//   launch   one block of 16x16 threads a 64x64 tile of y and slice of I; then one thread an output adds the slices
//   numerics the terms of a slice added one after the other, then the slices, first to last
//   why      2 loads of shared memory serve 16 multiply-adds. fc1 has 128 outputs: at batch 256 that is 8 tiles, and
//            without slices 8 blocks took 7 times as long as `coalesced` on an H200, while the rest of the GPU idled
void linear_forward_register_tiled(float* y, float* partial, const float* x, const float* w, const float* bias,
                                   std::int64_t batch, int in, int out, cudaStream_t stream);

// linear_forward_prefetched: 128x64 tiles, 8x8 outputs a thread, and while a tile is multiplied the next one is on its
// way through registers into the other half of shared memory.
//   launch   one block of 128 threads a 128x64 tile of y and slice of I; then as `register_tiled`
//   numerics as `register_tiled`
//   why      4 loads of shared memory serve 64 multiply-adds, one barrier a tile, and loads overlap products
void linear_forward_prefetched(float* y, float* partial, const float* x, const float* w, const float* bias,
                               std::int64_t batch, int in, int out, cudaStream_t stream);

// linear_forward_tensor_cores: `prefetched`'s tiles multiplied by mma.sync m16n8k8 in tf32.
//   launch   one block of 4 warps a 128x64 tile of y and slice of I, 64x32 a warp; then as `register_tiled`
//   numerics inputs rounded to 11 bits, sums in float32, the slices first to last
//   why      one instruction multiplies 16x8x8 numbers; meanwhile cp.async copies two tiles past the registers
void linear_forward_tensor_cores(float* y, float* partial, const float* x, const float* w, const float* bias,
                                 std::int64_t batch, int in, int out, cudaStream_t stream);

// linear_forward_int8: x and w rounded to 8 bits, each row in units of max |row| / 127; sums in int32.
//   launch   one block per row of x and of w, which rounds it; register_tiled's launch; one thread per output adds the
//            slices and scales the sum
//   needs    at most 133,144 features (checked), so that no sum exceeds 32 bits
//   numerics an approximation. A number is off by at most half a unit, by the root of a twelfth of a unit in the mean
//            square: (max / rms) / (127 sqrt(12)) of its row. Two such factors of normal numbers, whose max is at most
//            6 times their rms, give sqrt(2) * 6 / 440 = 2e-2 of the product, which is own_error; 1e-2 is usual. The
//            sums themselves are exact, and the same in any order. A NaN makes all of its row's outputs NaN
//   why      dp4a adds four products per instruction, on any GPU from compute capability 6.1 on. A trained network
//            would keep w rounded; here each call rounds both
void linear_forward_int8(float* y, float* partial, const float* x, const float* w, const float* bias,
                         std::int64_t batch, int in, int out, cudaStream_t stream);

// linear_backward_tiled: both products through 32x32 tiles.
//   launch   one block of 32x32 threads a 32x32 tile of dx and of dw, one thread an output; linear_backward_bias
//   numerics O or B terms added one after the other
//   why      each number read from memory serves 32 outputs; dw's threads no longer walk the batch one row at a time
void linear_backward_tiled(float* dx, float* dw, float* dbias, float*, const float* dy, const float* x, const float* w,
                           std::int64_t batch, int in, int out, cudaStream_t stream);

// linear_backward_prefetched: both by the product of `linear_forward_prefetched`; the batch in slices for dw.
//   launch   one block of 128 threads a 128x64 tile of dx, and of dw and a slice of the batch; then one thread a weight
//            adds the slices; linear_backward_bias
//   numerics O terms, or those of a slice, added one after the other, then the slices, first to last
//   why      as forward; fc1's dw has 49 tiles, too few for a GPU without slices
void linear_backward_prefetched(float* dx, float* dw, float* dbias, float* partial, const float* dy, const float* x,
                                const float* w, std::int64_t batch, int in, int out, cudaStream_t stream);

// The most scratch that any row needs.
std::int64_t linear_partial_size(std::int64_t batch, int in, int out);
std::int64_t linear_backward_partial_size(std::int64_t batch, int in, int out);

}  // namespace mnist::kernels
