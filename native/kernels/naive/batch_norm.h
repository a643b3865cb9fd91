// batch_norm: statistics of a batch by channel, normalisation, and the backward pass through both.
//
// x, y, dx, dy (B,C,A) float32, A = area of a plane; mean, var, gamma, beta, dgamma, dbeta (C). N = B * A values a
// channel, eps = kBatchNormEpsilon, sigma = sqrt(var + eps), xhat = (x - mean) / sigma.
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
//   shapes   mean, var (C) <- x (B,C,A); sets; partial: batch_norm_partial_size(B,C) floats of scratch
//   launch   twice: one block a channel and a chunk of images, 256 threads; then one thread a channel (chunks.h)
//   cost     bytes 8n, flops 4n, n = B*C*A; memory bound
//   numerics fixed order
void batch_norm_statistics(float* mean, float* var, float* partial, const float* x, std::int64_t batch, int channels,
                           int area, cudaStream_t stream);

// batch_norm_forward: y = gamma * (x - mean) / sigma + beta.
//   shapes   y (B,C,A) <- x (B,C,A), gamma, beta, mean, var (C); sets
//   launch   one block a plane (b,c) and 256 positions of it, one thread a position
//   cost     bytes 8n, flops 4n; memory bound
void batch_norm_forward(float* y, const float* x, const float* gamma, const float* beta, const float* mean,
                        const float* var, std::int64_t batch, int channels, int area, cudaStream_t stream);

// batch_norm_backward: dbeta, dgamma, dx as above.
//   shapes   dx (B,C,A), dgamma, dbeta (C) <- dy, x (B,C,A), gamma, mean, var (C); sets;
//            partial: batch_norm_partial_size(B,C) floats of scratch
//   launch   the sums as statistics, then dx one thread an element
//   cost     bytes 20n, flops 11n; memory bound
//   numerics fixed order
void batch_norm_backward(float* dx, float* dgamma, float* dbeta, float* partial, const float* dy, const float* x,
                         const float* gamma, const float* mean, const float* var, std::int64_t batch, int channels,
                         int area, cudaStream_t stream);

std::int64_t batch_norm_partial_size(std::int64_t batch, int channels);

}  // namespace mnist::kernels::naive
