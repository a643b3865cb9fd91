// The ladder of conv2d forward: 3x3, padding 1; shapes y (B,O,S,S) <- x (B,I,S,S), w (O,I,3,3), bias (O), float32;
// sets.
//
//   cost     conv2d_cost (profile/cost.h)
// Any sizes >= 1, but `tiled` takes sides up to 52, `register_tiled` up to 96 and `tensor_cores` up to 224. One more
// variant keeps memory of its own: fft.h. The backwards have tables too: dx by data, dw by weight.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/variant.h"

namespace mnist::kernels {

using Conv2dForward = void (*)(float* y, const float* x, const float* w, const float* bias, std::int64_t batch, int in,
                               int out, int side, cudaStream_t stream);
std::span<const Variant<Conv2dForward>> conv2d_forward_variants();

using Conv2dBackwardData = void (*)(float* dx, const float* dy, const float* w, std::int64_t batch, int in, int out,
                                    int side, cudaStream_t stream);
std::span<const Variant<Conv2dBackwardData>> conv2d_backward_data_variants();

// Of the launches of conv2d_backward_weight, at most: thread blocks, and floats of partial sums, conv2's in 128 chunks.
inline constexpr std::int64_t kBackwardWeightBlocks = 512, kBackwardWeightPartial = 9 << 18;

// `partial` is scratch of conv2d_backward_weight_partial_size(B,I,O) floats, the most that any row needs.
using Conv2dBackwardWeight = void (*)(float* dw, float* partial, const float* dy, const float* x, std::int64_t batch,
                                      int in, int out, int side, cudaStream_t stream);
std::span<const Variant<Conv2dBackwardWeight>> conv2d_backward_weight_variants();
std::int64_t conv2d_backward_weight_partial_size(std::int64_t batch, int in, int out);
// Chunks of the batch that `register_tiled` sums by themselves.
std::int64_t conv2d_backward_weight_chunks(std::int64_t batch, int in, int out, int side);

// conv2d_forward_tiled: padded planes of x and the filters of 8 outputs in shared memory, 8 outputs a thread.
//   launch   one block an image, 256 positions and 8 output channels, one thread a position
//   numerics 9 I terms added one after the other
//   why      no test for the border inside the loops, and a number of x serves 8 outputs and all positions around it
void conv2d_forward_tiled(float* y, const float* x, const float* w, const float* bias, std::int64_t batch, int in,
                          int out, int side, cudaStream_t stream);

// conv2d_forward_implicit_gemm: the matrix product y[n,o] = sum over k of column[n,k] * w[o,k], n = (b,p,q) and
// k = (i,u,v), where the 9-fold larger matrix `column` exists only as tiles that are gathered from x.
//   launch   one block of 16x16 threads 64 positions and 64 output channels, 4x4 a thread
//   numerics 9 I terms added one after the other
//   why      it is linear's register-tiled product, whatever the layer's shape
void conv2d_forward_implicit_gemm(float* y, const float* x, const float* w, const float* bias, std::int64_t batch,
                                  int in, int out, int side, cudaStream_t stream);

// conv2d_backward_data_implicit_gemm: the same for dx. dx[i,r,s] takes dy[o,r-u+1,s-v+1] times w[o,i,u,v], which is a
// forward convolution of dy with the filters rotated by 180 degrees and with inputs and outputs exchanged.
//   launch, numerics as forward, 9 O terms; with the network's 32 inputs half of each tile is idle
//   why      no kernel of its own: only the place of a weight differs
void conv2d_backward_data_implicit_gemm(float* dx, const float* dy, const float* w, std::int64_t batch, int in, int out,
                                        int side, cudaStream_t stream);

// conv2d_forward_register_tiled: `tiled` with seven rows of a column a thread, too: 7x8 outputs in registers.
//   launch   one block an image, up to 32 columns or columns and runs of 7 rows, and 64 output channels; a thread 7
//            rows of a column and 8 channels. 8 input channels in shared memory at a time
//   numerics 9 I terms added one after the other
//   why      an input channel takes a thread 45 loads of shared memory for 504 multiply-adds: nine values of x serve
//            three taps of seven rows, and a weight all of them; `tiled` takes 27 for 72
void conv2d_forward_register_tiled(float* y, const float* x, const float* w, const float* bias, std::int64_t batch,
                                   int in, int out, int side, cudaStream_t stream);

// conv2d_backward_data_register_tiled: the same for dx, as `implicit_gemm` does it; the network's 32 inputs make 4
// groups of channels, so nothing is idle.
void conv2d_backward_data_register_tiled(float* dx, const float* dy, const float* w, std::int64_t batch, int in,
                                         int out, int side, cudaStream_t stream);

// conv2d_backward_weight_tiled: strips of 7 rows of dy and of the 9 of x around them in shared memory.
//   launch   one block of 4 warps a chunk of images, 4 output channels and up to 32 input channels; a thread nine taps
//            of one pair of channels; then 8 threads a weight add the chunks
//   needs    a side whose strip fits in shared memory (checked): 46 for `register_tiled`
//   numerics positions of a chunk one after the other, chunks in eighths, then the eighths
//   why      no border test, no division and no sum over the block: a lane walks down a column with nine pixels in
//            registers, three of them new in each row
void conv2d_backward_weight_tiled(float* dw, float* partial, const float* dy, const float* x, std::int64_t batch,
                                  int in, int out, int side, cudaStream_t stream);

// conv2d_add_chunks: dw[o,i,tap] = partial[0,tap,o,i] + partial[1,tap,o,i] + ..., the last launch of both.
//   launch   8 threads a weight, each an eighth of the chunks
void conv2d_add_chunks(float* dw, const float* partial, int in, int out, int chunks, cudaStream_t stream);

// conv2d_backward_weight_register_tiled: the same with 8 output channels a thread.
//   launch   as `tiled`, 32 output channels a block
//   why      5 loads of shared memory serve 72 multiply-adds, where `tiled` takes 4 for 9
void conv2d_backward_weight_register_tiled(float* dw, float* partial, const float* dy, const float* x,
                                           std::int64_t batch, int in, int out, int side, cudaStream_t stream);

// conv2d_forward_tensor_cores: `register_tiled`'s planes and filters, multiplied by mma.sync m16n8k8 in tf32.
//   launch   one block of 7 warps an image, 28 tiles of 8 positions and 64 output channels; a warp 4 tiles. 8 input
//            channels are multiplied, nine products of depth 8, while cp.async brings the next
//   numerics inputs rounded to 11 bits, sums in float32
//   why      nothing is gathered: a tap's positions lie side by side in a plane, rows and columns from their place
void conv2d_forward_tensor_cores(float* y, const float* x, const float* w, const float* bias, std::int64_t batch,
                                 int in, int out, int side, cudaStream_t stream);

}  // namespace mnist::kernels
