// cudnn_helpers: the few ops of a step for which cuDNN and cuBLAS have no call, in float32 and bfloat16.
//
// All are memory bound and run one thread an element (normalize: four) in blocks of 256.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace mnist::kernels {

// x = (u/255 - kPixelMean) / kPixelStd.
//   shapes   x (count) <- u (count) uint8; sets
//   needs    count % 4 == 0, u and x aligned to 4 elements (checked)
//   numerics one fused multiply-add, then rounded to x's type
void normalize_forward(float* x, const std::uint8_t* u, std::int64_t count, cudaStream_t stream);
void normalize_forward(__nv_bfloat16* x, const std::uint8_t* u, std::int64_t count, cudaStream_t stream);

// Gradient of upstream * (mean over the batch of -log_p[b,label[b]]): dlog_p[b,k] = -upstream/B where k is the label,
// else 0.
//   shapes   dlog_p (B,classes) <- labels (B); sets
void nll_loss_backward(float* dlog_p, const std::uint8_t* labels, float upstream, std::int64_t batch, int classes,
                       cudaStream_t stream);

// y = x in the other type; to bfloat16 rounds to nearest even.
void convert(__nv_bfloat16* y, const float* x, std::int64_t count, cudaStream_t stream);
void convert(float* y, const __nv_bfloat16* x, std::int64_t count, cudaStream_t stream);

// w[i] -= *learning_rate * dw[i], and copy[i] = w[i] rounded: master weights and what the tensor cores read.
void sgd_update(float* w, __nv_bfloat16* copy, const float* dw, const float* learning_rate, std::int64_t count,
                cudaStream_t stream);

// x stays as it is if all of `from` is finite, else all of it becomes NaN.
//   shapes   x (count) <- from (n), few enough for every thread to read them all; adds 0 * from
void propagate_nan(float* x, const float* from, std::int64_t count, int n, cudaStream_t stream);

// From what cuDNN saves of z = conv2d(x) without its bias, the statistics with it: mean = saved_mean + bias and
// var = 1/inverse^2 - epsilon, at least 0.
//   shapes   mean, var <- bias, saved_mean, inverse, all (channels); sets
//   numerics the subtraction in float64
void batch_norm_statistics_from_saved(float* mean, float* var, const float* bias, const float* saved_mean,
                                      const float* inverse, double epsilon, int channels, cudaStream_t stream);

}  // namespace mnist::kernels
