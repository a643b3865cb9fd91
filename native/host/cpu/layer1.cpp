// The formulas of layer1.h, in their order.
#include "cpu/layer1.h"

#include <cmath>

namespace mnist::cpu {
namespace {

double sigma(const Statistics1& statistics, int c) { return std::sqrt(statistics.var[c] + kBatchNormEpsilon); }

}  // namespace

PatchStatistics::PatchStatistics(const double* sums, std::int64_t positions) {
  const double n = double(positions);
  for (int i = 0; i < kTaps; ++i) mean[i] = sums[i] / n;
  const double* product = sums + kTaps;
  for (int i = 0; i < kTaps; ++i)
    for (int j = i; j < kTaps; ++j) covariance[i][j] = covariance[j][i] = *product++ / n - mean[i] * mean[j];
}

Statistics1 layer1_statistics(const PatchStatistics& patches, const float* weight) {
  Statistics1 statistics{};
  for (int c = 0; c < kConv1Channels; ++c) {
    const float* w = weight + c * kTaps;
    for (int i = 0; i < kTaps; ++i) {
      statistics.mean[c] += w[i] * patches.mean[i];
      for (int j = 0; j < kTaps; ++j) statistics.var[c] += double(w[i]) * w[j] * patches.covariance[i][j];
    }
    if (statistics.var[c] < 0) statistics.var[c] = 0;  // rounding; a NaN stays
  }
  return statistics;
}

Folded1 layer1_fold(const Statistics1& statistics, const Parameters& parameters) {
  Folded1 folded;
  for (int c = 0; c < kConv1Channels; ++c) {
    const double scale = parameters[kBn1Weight][c] / sigma(statistics, c);
    for (int tap = 0; tap < kTaps; ++tap)
      folded.w[tap * kConv1Channels + c] = float(scale * parameters[kConv1Weight][c * kTaps + tap]);
    folded.t[c] = float(parameters[kBn1Bias][c] - scale * statistics.mean[c]);
  }
  return folded;
}

void layer1_backward(Parameters& gradients, const double* sums, const PatchStatistics& patches,
                     const Statistics1& statistics, const Parameters& parameters) {
  for (int c = 0; c < kConv1Channels; ++c) {
    const float* w = parameters[kConv1Weight] + c * kTaps;
    const double d = sums[kTaps * kConv1Channels + c], s = sigma(statistics, c);
    double centred[kTaps], dot = 0;  // Gt and w.Gt
    for (int i = 0; i < kTaps; ++i) {
      centred[i] = sums[i * kConv1Channels + c] - d * patches.mean[i];
      dot += w[i] * centred[i];
    }
    gradients[kBn1Bias][c] = float(d);
    gradients[kBn1Weight][c] = float(dot / s);
    for (int i = 0; i < kTaps; ++i) {
      double cw = 0;
      for (int j = 0; j < kTaps; ++j) cw += patches.covariance[i][j] * w[j];
      gradients[kConv1Weight][c * kTaps + i] = float(parameters[kBn1Weight][c] / s * (centred[i] - dot / (s * s) * cw));
    }
  }
}

}  // namespace mnist::cpu
