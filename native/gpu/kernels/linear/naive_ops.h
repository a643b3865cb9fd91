// linear: y = x w^T + bias, and its three gradients.
//
// x, dx (B,I), y, dy (B,O), w, dw (O,I), bias, dbias (O), row by row. T is float or double; bytes are those of float.
// From y[b,o] = sum over i of w[o,i] x[b,i] + bias[o], each w[o,i] meets x[b,i] once a row b, so
//   dx[b,i] = sum over o of dy[b,o] w[o,i],  dw[o,i] = sum over b of dy[b,o] x[b,i],  dbias[o] = sum over b of dy[b,o].
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace mnist::kernels::naive {

// linear_forward: y[b,o] = bias[o] + sum over i of w[o,i] * x[b,i].
//   shapes   y (B,O) <- x (B,I), w (O,I), bias (O); sets
//   launch   one block a row b and 128 outputs, one thread an output
//   cost     bytes 4 (B I + I O + B O), flops 2 B I O; the threads of a warp read w at a distance of 4 I bytes, 32
//            memory transactions for 32 numbers, and that decides
//   numerics I terms added one after the other
template <class T>
void linear_forward(T* y, const T* x, const T* w, const T* bias, std::int64_t batch, int in, int out,
                    cudaStream_t stream);

// linear_backward: dx, dw, dbias as above.
//   shapes   dx (B,I), dw (O,I), dbias (O) <- dy (B,O), x (B,I), w (O,I); sets
//   launch   three times: one thread a dx, a dw, a dbias
//   cost     bytes 8 (B I + I O + B O), flops 4 B I O
//   numerics O or B terms added one after the other
template <class T>
void linear_backward(T* dx, T* dw, T* dbias, const T* dy, const T* x, const T* w, std::int64_t batch, int in, int out,
                     cudaStream_t stream);

// Both with the parameters of the ladders (linear.h), whose scratch they leave alone.
template <class T>
void linear_forward_row(T* y, T*, const T* x, const T* w, const T* bias, std::int64_t batch, int in, int out,
                        cudaStream_t stream) {
  linear_forward(y, x, w, bias, batch, in, out, stream);
}
template <class T>
void linear_backward_row(T* dx, T* dw, T* dbias, T*, const T* dy, const T* x, const T* w, std::int64_t batch, int in,
                         int out, cudaStream_t stream) {
  linear_backward(dx, dw, dbias, dy, x, w, batch, in, out, stream);
}

}  // namespace mnist::kernels::naive
