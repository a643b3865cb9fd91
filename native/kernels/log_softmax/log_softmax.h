// The ladder of log_softmax forward: log_p[k] = x[k] - log(sum over j of exp x[j]) by row; sets.
//
//   cost     log_softmax_forward_cost (kernels/cost.h)
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/variant.h"

namespace mnist::kernels {

using LogSoftmaxForward = void (*)(float* log_p, const float* x, std::int64_t batch, int classes, cudaStream_t stream);
std::span<const Variant<LogSoftmaxForward>> log_softmax_forward_variants();

// log_softmax_forward_online: maximum and sum in one pass (Milakov, Gimelshein 2018): where a new maximum m' > m comes,
// the sum so far is worth exp(m - m') of itself, so s <- s * exp(m - m') + 1; else s <- s + exp(x - m).
//   launch   one thread a row; block 128
//   why      reads the row twice instead of three times; with ten classes in cache there is little to save
void log_softmax_forward_online(float* log_p, const float* x, std::int64_t batch, int classes, cudaStream_t stream);

// log_softmax_forward_warp: the online pass split over a warp, whose lanes merge (m,s) pairs by the same rule.
//   launch   one warp a row, 4 rows a block
//   why      neighbouring lanes read neighbouring scores; with ten classes 22 lanes of 32 have nothing to do
void log_softmax_forward_warp(float* log_p, const float* x, std::int64_t batch, int classes, cudaStream_t stream);

}  // namespace mnist::kernels
