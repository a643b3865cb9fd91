// The specification: every forward and backward of the network in float64 and plain loops.
//
// Layouts are PyTorch's: images (B,C,H,W), weights (O,I,3,3) and (out,in). Parameter order: outputs, inputs, sizes.
// Everything SETS its outputs; a gradient is d + the name of what it is the gradient of. N = number of values a
// channel is averaged over.
#pragma once

#include <cstdint>

namespace mnist::reference {

// y[b,o,p,q] = bias[o] + sum over i,u,v of w[o,i,u,v] * x[b,i,p+u-1,q+v-1], zero outside the image.
void conv2d_forward(double* y, const double* x, const double* w, const double* bias, std::int64_t batch, int in,
                    int out, int side);

// dx[b,i,r,s] = sum over o,u,v of w[o,i,u,v] * dy[b,o,r-u+1,s-v+1], zero outside.
void conv2d_backward_data(double* dx, const double* dy, const double* w, std::int64_t batch, int in, int out, int side);

// dw[o,i,u,v] = sum over b,p,q of dy[b,o,p,q] * x[b,i,p+u-1,q+v-1].
void conv2d_backward_weight(double* dw, const double* dy, const double* x, std::int64_t batch, int in, int out,
                            int side);

// mean[c], var[c] of x over batch and positions; var divided by N (biased), from centred values.
void batch_norm_statistics(double* mean, double* var, const double* x, std::int64_t batch, int channels, int area);

// y = gamma * (x - mean) / sqrt(var + eps) + beta, by channel.
void batch_norm_forward(double* y, const double* x, const double* gamma, const double* beta, const double* mean,
                        const double* var, std::int64_t batch, int channels, int area);

// With xhat = (x - mean) / sigma and sigma = sqrt(var + eps), mean and var being functions of x:
//   dbeta = sum dy,  dgamma = sum dy * xhat,  dx = gamma/sigma * (dy - dbeta/N - xhat * dgamma/N).
void batch_norm_backward(double* dx, double* dgamma, double* dbeta, const double* dy, const double* x,
                         const double* gamma, const double* mean, const double* var, std::int64_t batch, int channels,
                         int area);

// relu, then the maximum of each 2x2 window: y[c,p,q] = max(0, max over window of x[c,2p+i,2q+j]).
// route[c,p,q] = 2i+j of the first maximum in scan order, or Routing::kDead where that maximum is not positive.
// `planes` = batch * channels; x is (planes, 2*side, 2*side), y and route (planes, side, side). A NaN wins, as in
// PyTorch.
void relu_max_pool2d_forward(double* y, std::uint8_t* route, const double* x, std::int64_t planes, int side);

// The same with the decisions given: y = x at route, or 0 where it is kDead.
void relu_max_pool2d_forward_routed(double* y, const double* x, const std::uint8_t* route, std::int64_t planes,
                                    int side);

// dx = dy at the position route names, 0 at the other three.
void relu_max_pool2d_backward(double* dx, const double* dy, const std::uint8_t* route, std::int64_t planes, int side);

// y[b,o] = bias[o] + sum over i of w[o,i] * x[b,i].
void linear_forward(double* y, const double* x, const double* w, const double* bias, std::int64_t batch, int in,
                    int out);

// dx = dy w, dw = dy^T x, dbias = column sums of dy. dx may be null.
void linear_backward(double* dx, double* dw, double* dbias, const double* dy, const double* x, const double* w,
                     std::int64_t batch, int in, int out);

// y = x where pass is 1, 0 elsewhere. With `decide`, pass = x > 0 (a NaN passes) is written first.
void relu_forward(double* y, std::uint8_t* pass, const double* x, std::int64_t count, bool decide);

// dx = dy where pass is 1, 0 elsewhere.
void relu_backward(double* dx, const double* dy, const std::uint8_t* pass, std::int64_t count);

// log_p = x - log(sum exp x) by row, shifted by the row's maximum.
void log_softmax_forward(double* log_p, const double* x, std::int64_t batch, int classes);

// Mean over the batch of -log_p[b, label[b]].
double nll_loss_forward(const double* log_p, const std::uint8_t* labels, std::int64_t batch, int classes);

// Through both: dx[b,k] = upstream/B * (exp(log_p[b,k]) - [k == label[b]]).
void log_softmax_nll_backward(double* dx, const double* log_p, const std::uint8_t* labels, double upstream,
                              std::int64_t batch, int classes);

// w -= learning_rate * dw.
void sgd_update(double* w, const double* dw, double learning_rate, std::int64_t count);

}  // namespace mnist::reference
