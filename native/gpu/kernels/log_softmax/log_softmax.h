// The ladders of log_softmax, log_p[k] = x[k] - log(sum over j of exp x[j]) by row, and of the gradient of the mean
// nll_loss through it (naive_ops.h); they set.
//
//   cost     log_softmax_forward_cost, log_softmax_nll_backward_cost (profile/cost.h)
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/variant.h"

namespace mnist::kernels {

using LogSoftmaxForward = void (*)(float* log_p, const float* x, std::int64_t batch, int classes, cudaStream_t stream);
std::span<const Variant<LogSoftmaxForward>> log_softmax_forward_variants();

using LogSoftmaxNllBackward = void (*)(float* dx, const float* log_p, const std::uint8_t* labels, double upstream,
                                       std::int64_t batch, int classes, cudaStream_t stream);
std::span<const Variant<LogSoftmaxNllBackward>> log_softmax_nll_backward_variants();

// log_softmax_forward_online: maximum and sum in one pass (Milakov, Gimelshein 2018): where a new maximum m' > m comes,
// the sum so far is worth exp(m - m') of itself, so s <- s * exp(m - m') + 1; else s <- s + exp(x - m).
//   launch   one thread a row; block 128
//   why      reads the row twice instead of three times; with ten classes in cache there is little to save
void log_softmax_forward_online(float* log_p, const float* x, std::int64_t batch, int classes, cudaStream_t stream);

// log_softmax_forward_warp: the online pass split over a warp, whose lanes merge (m,s) pairs by the same rule.
//   launch   one warp a row, 4 rows a block
//   why      neighbouring lanes read neighbouring scores; with ten classes 22 lanes of 32 have nothing to do
void log_softmax_forward_warp(float* log_p, const float* x, std::int64_t batch, int classes, cudaStream_t stream);

// log_softmax_nll_backward_float4: four elements a thread, in one load and one store.
//   launch   one thread four elements; block 64; the rest of up to three is one thread's
//   needs    dx and log_p aligned to 16 bytes (checked)
//   why      a quarter of the instructions; 40 bytes a row are so little that a launch takes the time anyway
void log_softmax_nll_backward_float4(float* dx, const float* log_p, const std::uint8_t* labels, double upstream,
                                     std::int64_t batch, int classes, cudaStream_t stream);

}  // namespace mnist::kernels
