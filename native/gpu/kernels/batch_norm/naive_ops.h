// batch_norm: statistics of a batch by channel, normalisation, and the backward pass through both.
//
// x, y, dx, dy (B,C,A), A = area of a plane; mean, var, gamma, beta, dgamma, dbeta (C). N = B * A values a
// channel, eps = kBatchNormEpsilon, sigma = sqrt(var + eps), xhat = (x - mean) / sigma. T is float or double; bytes are
// those of float.
//
// Backward. y = gamma * xhat + beta, and mean and var depend on every x of the channel. With g = dL/dy:
//   dbeta = sum g,  dgamma = sum g * xhat,
//   dL/dx = gamma/sigma * (g - (sum g)/N - xhat * (sum g * xhat)/N).
// The two subtracted terms are what reaches x through mean and through var: moving every x alike changes nothing, and
// neither does scaling them about their mean, so dx has no component along either direction (Ioffe, Szegedy 2015).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace mnist::kernels::naive {

// batch_norm_statistics: mean[c] = (sum x)/N, then var[c] = (sum (x - mean)^2)/N: biased, and centred before it is
// squared, because E[x^2] - mean^2 loses every digit where the mean is large.
//   shapes   mean, var (C) <- x (B,C,A); sets; partial: batch_norm_partial_size(B,C) values of scratch
//   launch   twice: one block a channel and a chunk of images, 256 threads; then one thread a channel (chunks.h)
//   cost     bytes 8n, flops 4n, n = B*C*A; memory bound
//   numerics fixed order
template <class T>
void batch_norm_statistics(T* mean, T* var, T* partial, const T* x, std::int64_t batch, int channels, int area,
                           cudaStream_t stream);

// batch_norm_forward: y = gamma * (x - mean) / sigma + beta.
//   shapes   y (B,C,A) <- x (B,C,A), gamma, beta, mean, var (C); sets
//   launch   one block a plane (b,c) and 256 positions of it, one thread a position
//   cost     bytes 8n, flops 4n; memory bound
template <class T>
void batch_norm_forward(T* y, const T* x, const T* gamma, const T* beta, const T* mean, const T* var,
                        std::int64_t batch, int channels, int area, cudaStream_t stream);

// batch_norm_backward: dbeta, dgamma, dx as above.
//   shapes   dx (B,C,A), dgamma, dbeta (C) <- dy, x (B,C,A), gamma, mean, var (C); sets;
//            partial: batch_norm_partial_size(B,C) values of scratch
//   launch   the sums as statistics, then dx one thread an element
//   cost     bytes 20n, flops 11n; memory bound
//   numerics fixed order
template <class T>
void batch_norm_backward(T* dx, T* dgamma, T* dbeta, T* partial, const T* dy, const T* x, const T* gamma, const T* mean,
                         const T* var, std::int64_t batch, int channels, int area, cudaStream_t stream);

std::int64_t batch_norm_partial_size(std::int64_t batch, int channels);

}  // namespace mnist::kernels::naive
