// conv2d: 3x3, stride 1, one ring of zeros around the image; forward, and backward by data and by weight.
//
// Layouts are PyTorch's: x, dx (B,I,S,S), y, dy (B,O,S,S), w, dw (O,I,3,3), bias (O), with S = side. T is float or
// double; bytes are those of float. The three sums are one relation read in three directions: w[o,i,u,v] connects
// y[o,p,q] with x[i,p+u-1,q+v-1].
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace mnist::kernels::naive {

// conv2d_forward: y[b,o,p,q] = bias[o] + sum over i,u,v of w[o,i,u,v] * x[b,i,p+u-1,q+v-1], zero outside the image.
//   shapes   y (B,O,S,S) <- x (B,I,S,S), w (O,I,3,3), bias (O); sets
//   launch   one block a plane (b,o) and 256 positions of it, one thread a position
//   cost     bytes 4 (B I S^2 + B O S^2 + 9 I O), flops 18 B I O S^2; compute bound, but every multiply-add here comes
//            with two loads, so the load units decide
//   numerics 9 I terms added one after the other
template <class T>
void conv2d_forward(T* y, const T* x, const T* w, const T* bias, std::int64_t batch, int in, int out, int side,
                    cudaStream_t stream);

// conv2d_backward_data: dx[b,i,r,s] = sum over o,u,v of w[o,i,u,v] * dy[b,o,r-u+1,s-v+1], zero outside.
// (x[i,r,s] took part in y[o,p,q] for r = p+u-1, s = q+v-1; solve for p and q.)
//   shapes   dx (B,I,S,S) <- dy (B,O,S,S), w (O,I,3,3); sets
//   launch   one block a plane (b,i) and 256 positions of it, one thread a position
//   cost     as forward
//   numerics 9 O terms added one after the other
template <class T>
void conv2d_backward_data(T* dx, const T* dy, const T* w, std::int64_t batch, int in, int out, int side,
                          cudaStream_t stream);

// conv2d_backward_weight: dw[o,i,u,v] = sum over b,p,q of dy[b,o,p,q] * x[b,i,p+u-1,q+v-1].
//   shapes   dw (O,I,3,3) <- dy (B,O,S,S), x (B,I,S,S); sets; partial: conv2d_partial_size(B,I,O) values of scratch
//   launch   one block an (o,i) pair and a chunk of images, 128 threads, a thread every 128th position of each plane
//            with the nine taps in registers; then one thread a weight adds the chunks (chunks.h says why)
//   cost     as forward, and 8 bytes a chunk and weight
//   numerics fixed order: positions of a thread, threads as a tree, chunks first to last
template <class T>
void conv2d_backward_weight(T* dw, T* partial, const T* dy, const T* x, std::int64_t batch, int in, int out, int side,
                            cudaStream_t stream);
std::int64_t conv2d_partial_size(std::int64_t batch, int in, int out);

}  // namespace mnist::kernels::naive
