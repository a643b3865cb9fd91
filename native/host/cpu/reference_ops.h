// The specification: every forward and backward of the network in float64 and plain loops.
//
// T is double, or float for callers with float32 arrays (mnist/operators.h); sums of one number are float64 either way.
// Layouts are PyTorch's: images (B,C,H,W), weights (O,I,3,3) and (out,in). Parameter order: outputs, inputs, sizes.
// Everything SETS its outputs; a gradient is d + the name of what it is the gradient of. N = number of values a
// channel is averaged over.
#pragma once

#include <cstdint>

namespace mnist::reference {

// y[b,o,p,q] = bias[o] + sum over i,u,v of w[o,i,u,v] * x[b,i,p+u-1,q+v-1], zero outside the image.
template <class T>
void conv2d_forward(T* y, const T* x, const T* w, const T* bias, std::int64_t batch, int in, int out, int side);

// dx[b,i,r,s] = sum over o,u,v of w[o,i,u,v] * dy[b,o,r-u+1,s-v+1], zero outside.
template <class T>
void conv2d_backward_data(T* dx, const T* dy, const T* w, std::int64_t batch, int in, int out, int side);

// dw[o,i,u,v] = sum over b,p,q of dy[b,o,p,q] * x[b,i,p+u-1,q+v-1].
template <class T>
void conv2d_backward_weight(T* dw, const T* dy, const T* x, std::int64_t batch, int in, int out, int side);

// mean[c], var[c] of x over batch and positions; var divided by N (biased), from centred values.
template <class T>
void batch_norm_statistics(T* mean, T* var, const T* x, std::int64_t batch, int channels, int area);

// y = gamma * (x - mean) / sqrt(var + eps) + beta, by channel.
template <class T>
void batch_norm_forward(T* y, const T* x, const T* gamma, const T* beta, const T* mean, const T* var,
                        std::int64_t batch, int channels, int area);

// With xhat = (x - mean) / sigma and sigma = sqrt(var + eps), mean and var being functions of x:
//   dbeta = sum dy,  dgamma = sum dy * xhat,  dx = gamma/sigma * (dy - dbeta/N - xhat * dgamma/N).
template <class T>
void batch_norm_backward(T* dx, T* dgamma, T* dbeta, const T* dy, const T* x, const T* gamma, const T* mean,
                         const T* var, std::int64_t batch, int channels, int area);

// relu, then the maximum of each 2x2 window: y[c,p,q] = max(0, max over window of x[c,2p+i,2q+j]).
// route[c,p,q] = 2i+j of the first maximum in scan order, or Routing::kDead where that maximum is not positive.
// `planes` = batch * channels; x is (planes, 2*side, 2*side), y and route (planes, side, side). A NaN wins, as in
// PyTorch.
template <class T>
void relu_max_pool2d_forward(T* y, std::uint8_t* route, const T* x, std::int64_t planes, int side);

// The same with the decisions given: y = x at route, or 0 where it is kDead.
template <class T>
void relu_max_pool2d_forward_routed(T* y, const T* x, const std::uint8_t* route, std::int64_t planes, int side);

// dx = dy at the position route names, 0 at the other three.
template <class T>
void relu_max_pool2d_backward(T* dx, const T* dy, const std::uint8_t* route, std::int64_t planes, int side);

// y[b,o] = bias[o] + sum over i of w[o,i] * x[b,i].
template <class T>
void linear_forward(T* y, const T* x, const T* w, const T* bias, std::int64_t batch, int in, int out);

// dx = dy w, dw = dy^T x, dbias = column sums of dy. dx may be null.
template <class T>
void linear_backward(T* dx, T* dw, T* dbias, const T* dy, const T* x, const T* w, std::int64_t batch, int in, int out);

// y = x where pass is 1, 0 elsewhere. With `decide`, pass = x > 0 (a NaN passes) is written first.
template <class T>
void relu_forward(T* y, std::uint8_t* pass, const T* x, std::int64_t count, bool decide);

// dx = dy where pass is 1, 0 elsewhere.
template <class T>
void relu_backward(T* dx, const T* dy, const std::uint8_t* pass, std::int64_t count);

// log_p = x - log(sum exp x) by row, shifted by the row's maximum.
template <class T>
void log_softmax_forward(T* log_p, const T* x, std::int64_t batch, int classes);

// Mean over the batch of -log_p[b, label[b]].
template <class T>
double nll_loss_forward(const T* log_p, const std::uint8_t* labels, std::int64_t batch, int classes);

// Through both: dx[b,k] = upstream/B * (exp(log_p[b,k]) - [k == label[b]]).
template <class T>
void log_softmax_nll_backward(T* dx, const T* log_p, const std::uint8_t* labels, double upstream, std::int64_t batch,
                              int classes);

// w -= learning_rate * dw.
void sgd_update(double* w, const double* dw, double learning_rate, std::int64_t count);

}  // namespace mnist::reference
