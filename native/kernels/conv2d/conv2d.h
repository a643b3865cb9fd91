// The ladder of conv2d forward: 3x3, padding 1; shapes y (B,O,S,S) <- x (B,I,S,S), w (O,I,3,3), bias (O), float32;
// sets.
//
//   cost     bytes 4 (B I S^2 + B O S^2 + 9 I O), flops 18 B I O S^2
// Any sizes >= 1, but `tiled` takes sides up to 52.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/variant.h"

namespace mnist::kernels {

using Conv2dForward = void (*)(float* y, const float* x, const float* w, const float* bias, std::int64_t batch, int in,
                               int out, int side, cudaStream_t stream);
std::span<const Variant<Conv2dForward>> conv2d_forward_variants();

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

// conv2d_forward_tensor_cores: the implicit product on the tensor cores, in tf32.
//   launch   one block of 4 warps 64 positions and 64 output channels, 32x32 a warp
//   numerics inputs rounded to 11 bits, sums in float32
//   why      the multiplications no longer cost anything: gathering the tiles does
void conv2d_forward_tensor_cores(float* y, const float* x, const float* w, const float* bias, std::int64_t batch,
                                 int in, int out, int side, cudaStream_t stream);

}  // namespace mnist::kernels
