// Population statistics in the fused engine's terms, on the host: from sums over the data set, and into scales and
// shifts. The formulas are those of docs/fused.md, over the data set instead of a batch.
//
// `parameters` is a slab in PyTorch's order, `statistics` one as in model.h.
#pragma once

#include "kernels/fused/shared/pixels.h"
#include "kernels/fused/state.h"

namespace mnist::fused {

inline double parameter(std::span<const double> parameters, ParameterIndex index, int c) {
  return parameters[kParameters[index].offset + c];
}
inline double statistic(std::span<const double> statistics, StatisticIndex index, int c) {
  return statistics[kStatistics[index].offset + c];
}

// bn1's mean and variance over `images` images, exactly, from the sums of their pixel moments.
inline void set_bn1_statistics(std::span<double> statistics, std::span<const double> parameters,
                               std::span<const double> moments, double images) {
  constexpr double kScale = MomentPixels::kScale;
  const double n = images * kImagePixels;
  for (int c = 0; c < kConv1Channels; ++c) {
    const auto w = parameters.subspan(kParameters[kConv1Weight].offset + c * kTaps, kTaps);
    double mean = 0, second = 0;
    int k = kTaps;
    for (int i = 0; i < kTaps; ++i) {
      mean += w[i] * moments[i] * kScale / n;
      for (int j = i; j < kTaps; ++j) second += (i == j ? 1 : 2) * w[i] * w[j] * moments[k++] * kScale * kScale / n;
    }
    statistics[kStatistics[kBn1Mean].offset + c] = mean + parameter(parameters, kConv1Bias, c);
    statistics[kStatistics[kBn1Var].offset + c] = std::max(second - mean * mean, 0.0);
  }
}

// bn2's, from sum[64] and sum of squares[64] of the sign-folded conv2 output.
inline void set_bn2_statistics(std::span<double> statistics, std::span<const double> parameters,
                               std::span<const double> sums, double images) {
  const double n = images * kCells1;
  for (int c = 0; c < kConv2Channels; ++c) {
    const double mean = sums[c] / n, sign = parameter(parameters, kBn2Weight, c) < 0 ? -1 : 1;
    statistics[kStatistics[kBn2Mean].offset + c] = sign * mean + parameter(parameters, kConv2Bias, c);
    statistics[kStatistics[kBn2Var].offset + c] = std::max(sums[kConv2Channels + c] / n - mean * mean, 0.0);
  }
}

// What State::bn1 and State::bn2 hold while images are scored under these statistics.
template <class Pixels>
std::vector<float> bn1_operand_of(std::span<const double> parameters, std::span<const double> statistics) {
  std::vector<float> bn1(3 * kConv1Channels);
  for (int c = 0; c < kConv1Channels; ++c) {
    const double gamma = parameter(parameters, kBn1Weight, c), sign = gamma < 0 ? -1 : 1;
    const double scale = std::abs(gamma) / std::sqrt(statistic(statistics, kBn1Var, c) + kBatchNormEpsilon);
    const double mean = statistic(statistics, kBn1Mean, c) - parameter(parameters, kConv1Bias, c);
    double total = 0, most = 0;
    for (int tap = 0; tap < kTaps; ++tap) {
      const double w = parameter(parameters, kConv1Weight, c * kTaps + tap);
      total += w;
      most += std::max(sign * w * Pixels::kLargest, sign * w * Pixels::kSmallest);
    }
    bn1[c] = float(scale * Pixels::kScale);
    bn1[kConv1Channels + c] =
        float(parameter(parameters, kBn1Bias, c) - scale * sign * (mean + Pixels::kScale * Pixels::kZero * total));
    bn1[2 * kConv1Channels + c] =
        std::max(float(scale * Pixels::kScale * kRoundingSlack * most) + bn1[kConv1Channels + c], 0.f);
  }
  return bn1;
}

inline std::vector<float> bn1_operand(Precision precision, std::span<const double> parameters,
                                      std::span<const double> statistics) {
  return precision == Precision::kBf16 ? bn1_operand_of<Bf16Pixels>(parameters, statistics)
                                       : bn1_operand_of<ExactPixels>(parameters, statistics);
}

inline std::vector<float> bn2_operand(std::span<const double> parameters, std::span<const double> statistics) {
  std::vector<float> bn2(4 * kConv2Channels, 0.f);
  for (int c = 0; c < kConv2Channels; ++c) {
    const double gamma = parameter(parameters, kBn2Weight, c), sign = gamma < 0 ? -1 : 1;
    const double scale = std::abs(gamma) / std::sqrt(statistic(statistics, kBn2Var, c) + kBatchNormEpsilon);
    const double mean = statistic(statistics, kBn2Mean, c) - parameter(parameters, kConv2Bias, c);
    bn2[c] = float(scale);
    bn2[kConv2Channels + c] = float(parameter(parameters, kBn2Bias, c) - scale * sign * mean);
  }
  return bn2;
}

}  // namespace mnist::fused
