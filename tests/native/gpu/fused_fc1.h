// What the tests of fc1 of `fused` share: its inputs, and bn2, dy2 and the updated weights in float64.
#pragma once

#include "fused_phase.h"

namespace testing {

// bn2's operand by channel, as float64 has it.
struct Bn2 {
  std::vector<double> scale, shift, mean, inv_sigma;
};

// fc1.weight as fc reads it: (chunk of 8 channels, cell, hidden unit, channel of the chunk).
inline std::vector<double> in_chunks(const std::vector<double>& weight) {
  std::vector<double> chunks;
  for (int chunk = 0; chunk < kConv2Channels / 8; ++chunk)
    for (int cell = 0; cell < fused::kCells2; ++cell)
      for (int unit = 0; unit < kHidden; ++unit)
        for (int c = 0; c < 8; ++c) chunks.push_back(weight[unit * kFeatures + cell * kConv2Channels + chunk * 8 + c]);
  return chunks;
}

// Gives a phase pooled_z2 and fc1.weight, as they are stored; both come back, with their units.
struct Inputs {
  std::vector<double> pooled_z2, weight;
  double z2_unit = 1, fc1_unit = 1;

  Inputs(Case& now, PhaseMemory& memory) {
    if (scaled(now.precision)) {
      z2_unit = std::ldexp(1.0, -11);
      fc1_unit = weight_scale(0.05);
      memory.give_scale(fused::kFc1Scale, fc1_unit);
    }
    pooled_z2 = now.random.values(now.batch * kFeatures, -2, 2);
    weight = now.random.values(kHidden * kFeatures, -0.05, 0.05);
    for (auto& x : pooled_z2) x = stored(now.precision, x, z2_unit);
    const State& s = memory.state();
    memory.give_stored(s.pooled_z2, pooled_z2, z2_unit);
    memory.give_stored(s.fc1, weight, fc1_unit);
    for (auto& x : weight) x = stored(now.precision, x, fc1_unit);
    if (now.plan.with_fc)
      memory.give_stored(s.fc1_copy, in_chunks(weight), fc1_unit);
    else if (fp16_terms(now.precision) > 0 && s.fc1_copy)
      Fc1Terms(weight).give(memory);
  }
};

// relu(bn2(pooled_z2)) as it is stored, (batch, features).
inline std::vector<double> a2_of(const Case& now, const std::vector<double>& pooled_z2,
                                 const std::vector<double>& scale, const std::vector<double>& shift, double unit) {
  std::vector<double> a2(pooled_z2.size());
  for (std::size_t i = 0; i < a2.size(); ++i) {
    const int c = int(i % kConv2Channels);
    const float y = std::fma(float(scale[c]), float(pooled_z2[i]), float(shift[c]));
    a2[i] = y <= 0 ? 0 : stored(now.precision, y, unit);
  }
  return a2;
}

// Values (rows, columns): the sum over k < count of a(row, k) b[k][column], with bounds.
template <class A>
Expected product(const Case& now, A a, std::int64_t rows, const std::vector<double>& b, std::int64_t columns,
                 std::int64_t count) {
  Expected want(rows * columns);
  for (std::int64_t row = 0; row < rows; ++row) {
    double *const value = want.value.data() + row * columns, *const bound = want.bound.data() + row * columns;
    for (std::int64_t k = 0; k < count; ++k) {
      const double x = a(row, k);
      for (std::int64_t c = 0; c < columns; ++c) {
        const double term = x * b[k * columns + c];
        value[c] += term;
        bound[c] += std::abs(term);
      }
    }
  }
  for (auto& bound : want.bound) bound *= multiplying(now.precision) + summing(double(count));
  return want;
}

// fc1's product: a2 (batch, features) by the weights (hidden units, features).
inline Expected fc1_product(const Case& now, const std::vector<double>& a2, const std::vector<double>& weight) {
  std::vector<double> transposed(weight.size());
  for (int unit = 0; unit < kHidden; ++unit)
    for (int f = 0; f < kFeatures; ++f) transposed[f * kHidden + unit] = weight[unit * kFeatures + f];
  const auto of_sample = [&](std::int64_t b, std::int64_t feature) { return a2[b * kFeatures + feature]; };
  return product(now, of_sample, now.batch, transposed, kHidden, kFeatures);
}

// bn2 from conv forward's sums, of which four at a time are exact as floats. In tf32 it is of z2 in its unit.
inline void check_bn2(PhaseMemory& memory, const Case& now, const std::vector<double>& sums,
                      const std::vector<double>& gamma, const std::vector<double>& beta, double unit) {
  const State& s = memory.state();
  const double count = double(now.batch) * fused::kCells1;
  std::vector<double> total(2 * kConv2Channels);
  for (std::size_t i = 0; i < sums.size(); ++i) total[i % total.size()] += sums[i];
  Expected want(4 * kConv2Channels), mean(kConv2Channels);
  for (int c = 0; c < kConv2Channels; ++c) {
    mean.value[c] = total[c] / count;
    const double variance = std::max(total[kConv2Channels + c] / count - mean.value[c] * mean.value[c], 0.0);
    const double inv_sigma = 1 / std::sqrt(variance + kBatchNormEpsilon), scale = std::abs(gamma[c]) * inv_sigma;
    const double values[] = {scale, beta[c] - scale * mean.value[c], mean.value[c], inv_sigma};
    for (int row = 0; row < 4; ++row) {
      want.value[row * kConv2Channels + c] = values[row];
      want.bound[row * kConv2Channels + c] = std::ldexp(1.001, -24) * std::abs(values[row]) + 1e-12;
    }
    mean.bound[c] = std::ldexp(std::abs(mean.value[c]), -46);
  }
  auto got = memory.result(s.bn2.values, fused::Bn2Operand::kRows * kConv2Channels);
  const double of_rows[] = {1 / unit, 1, unit, 1 / unit, unit};
  for (std::size_t i = 0; i < got.size(); ++i) got[i] *= of_rows[i / kConv2Channels];
  check_elements("bn2", now.name, {{"row", 4}, {"channel", kConv2Channels}}, {got.begin(), got.end() - kConv2Channels},
                 want);
  std::vector<double> exact_mean;
  for (int c = 0; c < kConv2Channels; ++c)
    exact_mean.push_back(got[2 * kConv2Channels + c] + got[4 * kConv2Channels + c]);
  check_elements("bn2's mean with its rest", now.name, {{"channel", kConv2Channels}}, exact_mean, mean);
}

// bn2's parameters; and in training what conv_forward leaves of z2, with what a2 cannot exceed.
struct Statistics {
  std::vector<double> gamma, beta, sums;
  double largest_a2 = 0;

  explicit Statistics(Case& now)
      : gamma(now.random.values(kConv2Channels, -1.5, 1.5)), beta(now.random.values(kConv2Channels, -0.5, 0.5)) {
    for (auto& x : gamma) x = float(x);
    for (auto& x : beta) x = float(x);
    gamma[37] = 0;
  }
  void give(Case& now, PhaseMemory& memory, double z2_unit) {
    const State& s = memory.state();
    memory.give_as(s.parameters + kParameters[kBn2Weight].offset, gamma);
    memory.give_as(s.parameters + kParameters[kBn2Bias].offset, beta);
    // Whole numbers, so that floats hold the sum of several; with a variance of about 1 or 2.
    const double of_block = double(now.batch) * fused::kCells1 / now.plan.conv_forward_blocks;
    for (int block = 0; block < now.plan.conv_forward_blocks; ++block)
      for (int i = 0; i < 2 * kConv2Channels; ++i)
        sums.push_back(
            std::round(of_block * (i < kConv2Channels ? now.random.uniform(-1, 1) : now.random.uniform(2, 3))));
    auto of_stored = sums;
    for (std::size_t i = 0; i < sums.size(); ++i)
      of_stored[i] /= i % (2 * kConv2Channels) < kConv2Channels ? z2_unit : z2_unit * z2_unit;
    memory.give_as(s.z2_sums, of_stored);
    // No value is farther from the mean of N than sqrt(N) of their standard deviations.
    for (int c = 0; c < kConv2Channels; ++c)
      largest_a2 = std::max(largest_a2, std::abs(gamma[c]) / std::sqrt(s.inv_n2) + std::abs(beta[c]));
    if (scaled(now.precision)) memory.give_scale(fused::kZ2Scale, z2_unit);
  }
};

// A maximum of each block of fc1's backward is the largest of its warps', of fc's its own.
inline void check_largest(const char* array, PhaseMemory& memory, const Case& now, const float* warps,
                          const std::vector<double>& want, int of_block = fused::kGradientWarps) {
  const auto of_warps = memory.result(warps, std::int64_t(want.size()) * of_block);
  std::vector<double> got(want.size(), -1);
  for (std::size_t i = 0; i < of_warps.size(); ++i) {
    auto& largest = got[i / of_block];
    if (!(of_warps[i] <= largest || std::isnan(largest))) largest = of_warps[i];  // a NaN remains
  }
  check_equal(array, now.name, {{"block", std::int64_t(want.size())}}, got, want);
}

// dy2, its sums over the batch and its maxima, from what fc1's backward had: dh, and a2 by `bn2`.
inline void check_dy2(PhaseMemory& memory, const Case& now, const Inputs& inputs, const std::vector<double>& dh,
                      const std::vector<double>& a2, const Bn2& bn2, double dy2_unit) {
  const State& s = memory.state();
  const std::int64_t batch = now.batch;
  const bool units = scaled(now.precision);
  if (units) memory.check_scale("dy2", now.name, fused::kDy2Scale, dy2_unit);
  const auto of_sample = [&](std::int64_t b, std::int64_t unit) { return dh[b * kHidden + unit]; };
  Expected dy2 = product(now, of_sample, batch, inputs.weight, kFeatures, kHidden);
  for (std::size_t i = 0; i < a2.size(); ++i) {
    dy2.bound[i] = a2[i] > 0 ? dy2.bound[i] + storing(now.precision) * std::abs(dy2.value[i]) +
                                   storing_small(now.precision, dy2_unit)
                             : 0;
    dy2.value[i] = a2[i] > 0 ? dy2.value[i] : 0;
  }
  const Axes features{{"sample", batch}, {"cell", fused::kCells2}, {"channel", kConv2Channels}};
  const auto got_dy2 = memory.stored_result(s.dy2, batch * kFeatures, dy2_unit);
  check_elements("dy2", with_unit(now.name, now.precision, dy2_unit), features, got_dy2, dy2);
  check_room("dy2", now.name, now.precision, got_dy2, dy2_unit);

  // Its sums, and the largest of each block: which has 32 columns, or in fc 8 channels of a cluster's samples.
  const bool fc = now.plan.with_fc;
  const int rows = s.dy2_sum_rows();
  const std::int64_t most = (batch - 1) / rows + 1;  // samples of a cluster
  Expected sums(2 * rows * kConv2Channels);
  std::vector<double> largest(fc ? rows * fused::kFcRanks : kFeatures / 32);
  for (std::int64_t i = 0; i < batch * kFeatures; ++i) {
    const int feature = int(i % kFeatures), c = feature % kConv2Channels;
    const int cluster = int(i / kFeatures / most), at = fc ? cluster * kConv2Channels + c : feature;
    const double xhat = (inputs.pooled_z2[i] - float(bn2.mean[c])) * float(bn2.inv_sigma[c]);
    const double terms[] = {got_dy2[i], got_dy2[i] * xhat};
    for (int which = 0; which < 2; ++which) {
      sums.value[which * rows * kConv2Channels + at] += terms[which];
      sums.bound[which * rows * kConv2Channels + at] += std::abs(terms[which]);
    }
    auto& of_block = largest[fc ? cluster * fused::kFcRanks + c / 8 : feature / 32];
    of_block = std::max(of_block, std::abs(got_dy2[i]));
  }
  for (auto& bound : sums.bound) bound *= summing(double(batch) * (fc ? fused::kCells2 : 1));
  auto got_sums = memory.result(s.dy2_sums, rows * kConv2Channels);
  std::ranges::copy(memory.result(s.dy2_sums + kFeatures, rows * kConv2Channels), std::back_inserter(got_sums));
  check_elements("dy2_sums", now.name, {{"sum", 2}, {fc ? "cluster" : "cell", rows}, {"channel", kConv2Channels}},
                 got_sums, sums);
  if (units || (!fc && fp16_terms(now.precision) > 0))
    check_largest("dy2_max", memory, now, s.dy2_max, largest, fc ? 1 : fused::kGradientWarps);
}

// fc1.weight, its gradient where it is asked for, its copies and its maxima after the update.
inline void check_fc1_update(PhaseMemory& memory, const Case& now, const std::vector<double>& dh,
                             const std::vector<double>& a2, const std::vector<double>& master, double learning_rate,
                             double next_unit) {
  const State& s = memory.state();
  const std::int64_t batch = now.batch, at = kParameters[kFc1Weight].offset;
  const Axes weights{{"hidden unit", kHidden}, {"cell", fused::kCells2}, {"channel", kConv2Channels}};
  const auto of_unit = [&](std::int64_t unit, std::int64_t b) { return dh[b * kHidden + unit]; };
  const Expected gradient = product(now, of_unit, kHidden, a2, kFeatures, batch);
  Expected updated(kHidden * kFeatures);
  for (std::size_t i = 0; i < master.size(); ++i) {
    const double step = learning_rate * gradient.value[i];
    updated.value[i] = master[i] - step;
    updated.bound[i] =
        learning_rate * gradient.bound[i] + std::ldexp(1.001, -24) * (std::abs(updated.value[i]) + std::abs(step));
  }
  if (s.gradients)
    check_elements("fc1.weight's gradient", now.name, weights, memory.result(s.gradients + at, kHidden * kFeatures),
                   gradient);
  const auto got = memory.result(s.parameters + at, kHidden * kFeatures);
  check_elements("fc1.weight", now.name, weights, got, updated);
  std::vector<double> copy(got.size());
  std::ranges::transform(got, copy.begin(), [&](double x) { return stored(now.precision, x, next_unit); });
  check_equal("fc1", with_unit(now.name, now.precision, next_unit), weights,
              memory.stored_result(s.fc1, kHidden * kFeatures, next_unit), copy);
  if (now.plan.with_fc)
    check_equal("fc1_copy", with_unit(now.name, now.precision, next_unit), {{"value", kHidden * kFeatures}},
                memory.stored_result(s.fc1_copy, kHidden * kFeatures, next_unit), in_chunks(copy));
  else if (DhOrder(now).terms > 0)
    Fc1Terms(got).check(memory, now.name);
  if (scaled(now.precision)) {
    std::vector<double> largest_weights(kFeatures / 32);
    for (std::size_t i = 0; i < got.size(); ++i) {
      auto& largest_weight = largest_weights[i % kFeatures / 32];
      largest_weight = std::max(largest_weight, std::abs(got[i]));
    }
    check_largest("fc1_max", memory, now, s.fc1_max(), largest_weights);
  }
}

}  // namespace testing
