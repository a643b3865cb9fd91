// log_softmax: scores to log probabilities, and the gradient of the mean nll_loss through it.
//
// log_p[k] = x[k] - log(sum over j of exp x[j]). The loss of a row is -log_p[label], and d log_p[label] / dx[k] is
// [k == label] - p[k]; so the mean over B rows, times `upstream`, has
// dx[b,k] = upstream/B * (p[b,k] - [k == label[b]]).
// T is float or double; bytes are those of float.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace mnist::kernels::naive {

// log_softmax_forward: log_p as above, with the row's maximum taken off first so that no exp overflows.
//   shapes   log_p (B,K) <- x (B,K); sets
//   launch   one thread a row, which it reads three times: maximum, sum, result; block 128
//   cost     bytes 8n, flops 4n, n = B*K
template <class T>
void log_softmax_forward(T* log_p, const T* x, std::int64_t batch, int classes, cudaStream_t stream);

// nll_loss_forward: loss = mean over the rows of -log_p[b, label[b]]; NaN where a label is none of the classes.
//   shapes   loss (1) <- log_p (B,K), labels (B) uint8; sets
//   launch   one block of 256 threads
//   cost     B numbers and B bytes; a launch takes the time
//   numerics float64 sums, in a fixed order
template <class T>
void nll_loss_forward(T* loss, const T* log_p, const std::uint8_t* labels, std::int64_t batch, int classes,
                      cudaStream_t stream);

// log_softmax_nll_backward: dx[b,k] = upstream/B * (exp(log_p[b,k]) - [k == label[b]]).
//   shapes   dx (B,K) <- log_p (B,K), labels (B) uint8; sets
//   launch   one thread an element; block 128
//   cost     bytes 8n, flops 3n
template <class T>
void log_softmax_nll_backward(T* dx, const T* log_p, const std::uint8_t* labels, double upstream, std::int64_t batch,
                              int classes, cudaStream_t stream);

// The same with `upstream` (1) in the GPU's memory, where the caller has it.
template <class T>
void log_softmax_nll_backward_by_pointer(T* dx, const T* log_p, const std::uint8_t* labels, const T* upstream,
                                         std::int64_t batch, int classes, cudaStream_t stream);

}  // namespace mnist::kernels::naive
