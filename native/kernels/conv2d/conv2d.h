// The ladder of conv2d forward: 3x3, padding 1; shapes y (B,O,S,S) <- x (B,I,S,S), w (O,I,3,3), bias (O), float32;
// sets.
//
//   cost     conv2d_cost (kernels/cost.h)
// Any sizes >= 1, but `tiled` takes sides up to 52. One more variant keeps memory of its own: fft.h. The backwards
// have tables too; naive's kernels are in naive_ops.h, and bench/ladders.h puts the libraries' beside them.
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

// `partial` is scratch of conv2d_partial_size(B,I,O) floats.
using Conv2dBackwardWeight = void (*)(float* dw, float* partial, const float* dy, const float* x, std::int64_t batch,
                                      int in, int out, int side, cudaStream_t stream);
std::span<const Variant<Conv2dBackwardWeight>> conv2d_backward_weight_variants();

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
// forward convolution of dy with the filters turned by half a circle and with inputs and outputs exchanged.
//   launch, numerics as forward, 9 O terms; with the network's 32 inputs half of each tile is idle
//   why      no kernel of its own: only the place of a weight differs
void conv2d_backward_data_implicit_gemm(float* dx, const float* dy, const float* w, std::int64_t batch, int in, int out,
                                        int side, cudaStream_t stream);

// conv2d_forward_tensor_cores: the implicit product on the tensor cores, in tf32.
//   launch   one block of 4 warps 64 positions and 64 output channels, 32x32 a warp
//   numerics inputs rounded to 11 bits, sums in float32
//   why      the multiplications no longer cost anything: gathering the tiles does
void conv2d_forward_tensor_cores(float* y, const float* x, const float* w, const float* bias, std::int64_t batch,
                                 int in, int out, int side, cudaStream_t stream);

}  // namespace mnist::kernels
