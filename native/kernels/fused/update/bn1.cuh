// bn1 without a pass over conv1's output.
//
// With p the 9 pixels under a filter, mean_c = w_c . pbar and var_c = w_c^T C w_c, where pbar and C are mean and
// covariance of p over all positions of the batch. w is the rounded weight the tensor cores used, so that the
// statistics are those of the values they made.
#pragma once

#include "kernels/fused/shared/pixels.h"
#include "kernels/fused/state.h"

namespace mnist::fused {

// Mean and covariance of the 9 pixels under a filter over a batch.
struct PixelStatistics {
  double mean[kTaps], covariance[kTaps][kTaps];
};

// From sums of v - MomentPixels::kZero and of its products over 1 / inv_n positions; threads 0 .. 80 of those that
// call.
__device__ __forceinline__ void set_statistics(PixelStatistics& to, const double (&moments)[kMoments], double inv_n,
                                               int thread) {
  if (thread < 0 || thread >= kTaps * kTaps) return;
  const int row = thread / kTaps, column = thread % kTaps, j = min(row, column), k = max(row, column);
  constexpr double kScale = MomentPixels::kScale;
  const auto mean = [&](int tap) { return kScale * inv_n * moments[tap]; };
  const double second = moments[kTaps + j * kTaps - j * (j - 1) / 2 + (k - j)];
  to.covariance[row][column] = kScale * kScale * inv_n * second - mean(j) * mean(k);
  if (row == column) to.mean[row] = mean(row);
}

__device__ __forceinline__ double sum_of_16_lanes(double x) {
#pragma unroll
  for (int mask = 8; mask > 0; mask >>= 1) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

// A filter before the pixels of a batch, by a warp: lane l, and lane l + 16 again, holds tap l, or 0 from 9 on.
struct Filtered {
  double total, mean, variance;  // sum of w; mean and variance of w . p
  double cw;                     // this lane's value of C w
};
__device__ __forceinline__ Filtered filtered(const PixelStatistics& pixels, double own) {
  const int tap = min(int(threadIdx.x) & 15, kTaps - 1);
  Filtered f{};
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
    const double w = __shfl_sync(0xffffffffu, own, k);
    f.total += w;
    f.mean += w * pixels.mean[k];
    f.cw += pixels.covariance[tap][k] * w;
  }
  f.variance = fmax(sum_of_16_lanes(own * f.cw), 0.0);
  return f;
}

}  // namespace mnist::fused
