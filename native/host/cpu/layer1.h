// Layer 1's batch norm in closed form: everything it needs of the batch are the moments of its 3x3 patches.
//
// conv1 is z = w.p for each patch p of 9 normalised pixels (the bias cancels in batch norm), so over N = batch x 784
// positions, with pbar = mean of p and C = mean of p p^T - pbar pbar^T,
//   mean(z_c) = w_c.pbar   and   var(z_c) = w_c^T C w_c.
// Backward, with D the gradient routed to conv1's normalised output (one position of each pool window at most),
// d_c = sum of D_c, G_c = sum of D_c p and Gt_c = G_c - d_c pbar,
//   dbeta_c = d_c,   dgamma_c = w_c.Gt_c / sigma_c,   dw_c = gamma_c / sigma_c (Gt_c - (w_c.Gt_c / var') C w_c),
// where var' = sigma_c^2 = var + eps: neither z nor its gradient is ever formed. In float64, a few thousand operations.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/parameters.h"

namespace mnist::cpu {

// Mean and covariance of the 3x3 patches of `positions` pixels.
struct PatchStatistics {
  double mean[kTaps];
  double covariance[kTaps][kTaps];

  PatchStatistics() = default;
  // sums as Kernels::patch_moments leaves them, over all images.
  PatchStatistics(const double* sums, std::int64_t positions);
};

// Batch norm's statistics of layer 1, its mean without conv1's bias.
struct Statistics1 {
  double mean[kConv1Channels], var[kConv1Channels];
};
Statistics1 layer1_statistics(const PatchStatistics& patches, const float* weight);

// conv1 with batch norm folded in, as Kernels::conv1_forward takes it: w (9, 32), t (32).
struct Folded1 {
  alignas(64) float w[kTaps * kConv1Channels];
  alignas(64) float t[kConv1Channels];
};
Folded1 layer1_fold(const Statistics1& statistics, const Parameters& parameters);

// Sets conv1.weight, bn1.weight and bn1.bias in `gradients` from sums (10, 32), Kernels::conv1_backward's over the
// batch.
void layer1_backward(Parameters& gradients, const double* sums, const PatchStatistics& patches,
                     const Statistics1& statistics, const Parameters& parameters);

}  // namespace mnist::cpu
