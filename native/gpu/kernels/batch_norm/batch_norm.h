// The ladders of batch_norm: its statistics, mean and biased variance by channel of x (B,C,A), mean, var (C); forward
// with them, and backward; they set. The formulas stand in naive_ops.h.
//
//   cost     batch_norm_statistics_cost (profile/cost.h): once through x is the least; memory bound, as are
//            batch_norm_forward_cost and batch_norm_backward_cost
// `partial` is scratch of batch_norm_partial_size(B,C) floats (naive_ops.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/variant.h"

namespace mnist::kernels {

using BatchNormStatistics = void (*)(float* mean, float* var, float* partial, const float* x, std::int64_t batch,
                                     int channels, int area, cudaStream_t stream);
std::span<const Variant<BatchNormStatistics>> batch_norm_statistics_variants();

// What libraries have a call for: y (B,C,A) by the statistics of x itself. `statistics` is scratch of 2C floats.
using BatchNormForward = void (*)(float* y, float* statistics, float* partial, const float* x, const float* gamma,
                                  const float* beta, std::int64_t batch, int channels, int area, cudaStream_t stream);
std::span<const Variant<BatchNormForward>> batch_norm_forward_variants();

// `inverse` is 1/sqrt(var + eps), which cuDNN takes for `var`; our rows do not read it.
using BatchNormBackward = void (*)(float* dx, float* dgamma, float* dbeta, float* partial, const float* dy,
                                   const float* x, const float* gamma, const float* mean, const float* var,
                                   const float* inverse, std::int64_t batch, int channels, int area,
                                   cudaStream_t stream);
std::span<const Variant<BatchNormBackward>> batch_norm_backward_variants();

// batch_norm_statistics_atomics: sum and sum of squares by atomicAdd, then var = E[x^2] - mean^2.
//   launch   one block a channel and a chunk of images, 256 threads; every thread adds its sums to two numbers
//   numerics the order of the additions, and with it the last bits, differs from run to run; E[x^2] - mean^2 loses
//            the digits that both share; atomicAdd takes denormals for 0
//   why      what one writes first. Kept to show its faults: 4 to 12 times naive's time too, because the threads of a
//            channel queue for one address
void batch_norm_statistics_atomics(float* mean, float* var, float* partial, const float* x, std::int64_t batch,
                                   int channels, int area, cudaStream_t stream);

// batch_norm_statistics_shuffle: naive's two passes with sums that stay in registers.
//   launch   naive's; the sum of a block takes five shuffles, one barrier and five more
//   numerics fixed order
//   why      9 barriers a block become 1; two passes over x take the time, so it gains nothing
void batch_norm_statistics_shuffle(float* mean, float* var, float* partial, const float* x, std::int64_t batch,
                                   int channels, int area, cudaStream_t stream);

// batch_norm_statistics_cub: `shuffle` with cub::BlockReduce in the place of its shuffles.
//   launch   naive's
//   numerics fixed order: BlockReduce's default adds warps first to last
//   why      what NVIDIA's building blocks give without a line about warps; CUB comes with every toolkit, header only
void batch_norm_statistics_cub(float* mean, float* var, float* partial, const float* x, std::int64_t batch,
                               int channels, int area, cudaStream_t stream);

// batch_norm_statistics_welford: mean and sum of squared deviations in one pass, without cancellation: with d = x -
// mean before x came, mean += d/n, squares += d * (x - mean after) (Welford 1962); two groups merge by Chan's formula.
//   launch   one block a channel and a chunk, 256 threads; then one warp a channel merges the chunks
//   numerics fixed order; the variance is as exact as the two passes'
//   why      reads x once, but with a division a number it takes 1.2 to 1.6 times as long as two passes
void batch_norm_statistics_welford(float* mean, float* var, float* partial, const float* x, std::int64_t batch,
                                   int channels, int area, cudaStream_t stream);

// batch_norm_statistics_groups: Welford's pass by 8 numbers a step: a thread keeps two float4 in registers, takes their
// own mean and the squared distances from it, and merges both by Chan's formula.
//   launch   as `welford`; where planes allow no float4 a step has 2 numbers
//   numerics fixed order; as exact as `welford`
//   why      reads x once, 16 bytes a load, and two divisions serve 8 numbers; so few registers that a multiprocessor
//            has 64 warps
void batch_norm_statistics_groups(float* mean, float* var, float* partial, const float* x, std::int64_t batch,
                                  int channels, int area, cudaStream_t stream);

// batch_norm_normalize_float4: y = gamma * (x - mean) / sigma + beta, four numbers a thread.
//   launch   one block of 4x64 threads 4 planes
//   why      16 bytes a load, up to four loads in flight, and one division and root a thread
void batch_norm_normalize_float4(float* y, const float* x, const float* gamma, const float* beta, const float* mean,
                                 const float* var, std::int64_t batch, int channels, int area, cudaStream_t stream);

// batch_norm_backward_float4: naive's backward, four numbers a load.
//   launch   the sums by one block a channel and a chunk of images, 256 threads; dx by as many, which add the chunks of
//            their channel first
//   numerics fixed order
//   why      as forward; 1/sigma is taken once a thread instead of a division an element; dx begins where the sums
//            ended, with what the L2 cache still has
void batch_norm_backward_float4(float* dx, float* dgamma, float* dbeta, float* partial, const float* dy, const float* x,
                                const float* gamma, const float* mean, const float* var, std::int64_t batch,
                                int channels, int area, cudaStream_t stream);

}  // namespace mnist::kernels
