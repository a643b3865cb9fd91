// step: the record of a step by one block, whichever kernel it belongs to.
#pragma once

#include "kernels/step.h"
#include "mnist/model.h"

namespace mnist::kernels {

// By all kBlock threads of a block, a power of two; as record_step (step.h).
template <int kBlock, class T>
__device__ void record_by_block(const StepRecord<T>& to, const T* log_p, const T* logits, const std::uint8_t* labels,
                                std::int64_t batch) {
  __shared__ double losses[kBlock];
  __shared__ int corrects[kBlock];
  const int t = int(threadIdx.x);
  double loss = 0;
  int correct = 0;
  for (std::int64_t b = t; b < batch; b += kBlock) {
    const int label = labels[b];
    loss -= log_p[b * kClasses + label];
    int best = 0;
    for (int k = 1; k < kClasses; ++k)
      if (logits[b * kClasses + k] > logits[b * kClasses + best]) best = k;
    correct += best == label;
  }
  losses[t] = loss;
  corrects[t] = correct;
  for (int half = kBlock / 2; half > 0; half /= 2) {
    __syncthreads();  // the upper half is complete before the lower half reads it
    if (t < half) {
      losses[t] += losses[t + half];
      corrects[t] += corrects[t + half];
    }
  }
  if (t == 0) {
    StepResult& result = to.results[to.state->step];
    result.loss = losses[0] / double(batch);
    result.correct = corrects[0];
    *to.learning_rate = to.learning_rates[to.state->step];
    to.state->step += 1;
    to.state->cursor += batch;
  }
}

}  // namespace mnist::kernels
