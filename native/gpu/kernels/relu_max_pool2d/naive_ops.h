// relu_max_pool2d: ReLU, then the maximum of each 2x2 window, in one pass, with the decision kept for backward.
//
// max and ReLU both pick one of their inputs, so backward only needs to know which: route[plane,p,q] is 2*dy + dx of
// the first maximum in scan order, or kDead where that maximum is not positive and ReLU gave 0. About 40 %
// of the windows of a digit are ties, flat background; the gradient goes to exactly one of the tied positions.
// T is float or double; bytes are those of float.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace mnist::kernels::naive {

// relu_max_pool2d_forward: y = max(0, max over the window of x), and route. A NaN wins, as in PyTorch.
//   shapes   y of T, route uint8 (planes,S,S) <- x of T (planes,2S,2S), S = side, planes = B*C; sets
//   launch   one block a plane, one thread a window in steps of 64
//   cost     bytes 21n, flops 4n, n = planes*S*S; memory bound
//   numerics bitwise equal to the reference's decisions on the same x
template <class T>
void relu_max_pool2d_forward(T* y, std::uint8_t* route, const T* x, std::int64_t planes, int side, cudaStream_t stream);

// relu_max_pool2d_forward_routed: the same with the decisions given: y = x at route, or 0 where it is kDead.
//   shapes, launch, cost as forward; sets y alone
template <class T>
void relu_max_pool2d_forward_routed(T* y, const T* x, const std::uint8_t* route, std::int64_t planes, int side,
                                    cudaStream_t stream);

// relu_max_pool2d_backward: dx = dy at the position that route names, 0 at the other three.
//   shapes   dx (planes,2S,2S) <- dy, route (planes,S,S); sets all four of each window
//   launch   as forward
//   cost     bytes 21n; memory bound
//   numerics exact
template <class T>
void relu_max_pool2d_backward(T* dx, const T* dy, const std::uint8_t* route, std::int64_t planes, int side,
                              cudaStream_t stream);

}  // namespace mnist::kernels::naive
