// What the tests of head and fc share: their inputs, and everything that follows h in float64.
#pragma once

#include "fused_phase.h"

namespace testing {

// dh, known to within `error`, as tf32 rounds it by draws, and how far it may be off: down to a unit in the last place
// after `draw` / 2^13 of such a unit was added. So what comes out is within half of a unit of what lies half of one
// below that sum.
struct Drawn {
  double value, bound;
};
inline Drawn rounded_by_draw(double value, double error, std::uint32_t draw) {
  if (value == 0) return {0, 0};
  const double last_place = std::ldexp(1.0, std::ilogb(std::abs(value) + error) - 10);
  const double shift = (std::ldexp(double(draw), -13) - 0.5) * last_place;  // of its magnitude
  return {value < 0 ? value - shift : value + shift, 0.5 * 1.001 * last_place};
}

struct HeadInputs {
  static constexpr double kUpstream = 1.5, kLargestFc1 = 0.75;
  Samples samples;
  std::vector<double> bias, weight, class_bias, moments;
  double dh_unit = 1, largest_dh = 0;

  HeadInputs(Case& now, PhaseMemory& memory) : samples(now.random, now.batch) {
    const State& s = memory.state();
    const auto floats = [&](std::int64_t count, double low, double high) {
      auto values = now.random.values(count, low, high);
      for (auto& value : values) value = float(value);
      return values;
    };
    bias = floats(kHidden, -1, 1), weight = floats(kClasses * kHidden, -0.5, 0.5), class_bias = floats(kClasses, -1, 1);
    std::copy_n(weight.begin() + 3 * kHidden, kHidden, weight.begin() + 7 * kHidden);  // ties: the first maximum counts
    class_bias[7] = class_bias[3];
    moments.resize(PhaseMemory::kSamples * fused::kMoments);
    for (auto& x : moments) x = double(std::int32_t(now.random.bits())) / 2048;
    memory.give(s.samples.order, samples.order);
    memory.give(s.samples.labels, samples.labels);
    memory.give(s.samples.moments, moments);
    memory.give_as(s.parameters + kParameters[kFc1Bias].offset, bias);
    memory.give_as(s.parameters + kParameters[kFc2Weight].offset, weight);
    memory.give_as(s.parameters + kParameters[kFc2Bias].offset, class_bias);
    memory.give_as(s.upstream, {kUpstream});
    if (scaled(now.precision)) {  // and what is handed on of fc1's weights
      auto largest = now.random.values(2 * fused::kCells2 * fused::kGradientWarps, 0, 0.3);
      largest[700] = kLargestFc1;
      memory.give_as(s.fc1_max(), largest);
    }
    float of_fc2 = 0;
    for (const double x : weight) of_fc2 = std::max(of_fc2, float(std::abs(x)));
    largest_dh = 2 * (float(kUpstream) / float(now.batch)) * of_fc2;
    if (scaled(now.precision) || DhOrder(now).terms > 0) dh_unit = scale_of(largest_dh);
  }
};

// The logits, dh, which it returns, head_sums and moment_sums, from the h that the phase made.
inline std::vector<double> check_head(PhaseMemory& memory, const Case& now, const HeadInputs& inputs,
                                      const std::vector<double>& got_h) {
  const State& s = memory.state();
  const auto& [samples, bias, weight, class_bias, moments, dh_unit, largest_dh] = inputs;
  const double upstream = HeadInputs::kUpstream;
  const std::int64_t batch = now.batch;
  const DhOrder order(now);
  if (scaled(now.precision) || order.terms > 0) memory.check_scale("dh", now.name, fused::kDhScale, dh_unit);
  if (scaled(now.precision))
    memory.check_scale("fc1's next weights", now.name, fused::kNextFc1Scale, weight_scale(HeadInputs::kLargestFc1));
  Expected logits(batch * kClasses), dh(batch * kHidden), sums(fused::kHeadValues);
  const auto w = [&](int k, int unit) { return weight[k * kHidden + unit]; };
  for (std::int64_t b = 0; b < batch; ++b)
    for (int k = 0; k < kClasses; ++k) {
      double total = class_bias[k], magnitude = std::abs(total);
      for (int unit = 0; unit < kHidden; ++unit) {
        const double x = got_h[b * kHidden + unit] * w(k, unit);
        total += x, magnitude += std::abs(x);
      }
      logits.value[b * kClasses + k] = total;
      logits.bound[b * kClasses + k] = summing(kHidden) * magnitude;
    }
  const auto got_logits = memory.result(s.logits, batch * kClasses);
  check_elements("logits", now.name, {{"sample", batch}, {"class", kClasses}}, got_logits, logits);

  // From the logits and h that it made. A probability is expf of x, which is as exact as x is as a float.
  double *const d_weight = sums.value.data(), *const d_bias = d_weight + kClasses * kHidden,
                *const d_class_bias = d_bias + kHidden, *const loss = d_class_bias + kClasses, *const hits = loss + 1;
  std::vector<double> magnitude(fused::kHeadValues), slack(fused::kHeadValues);
  const auto add = [&](double* to, double x, double error) {
    *to += x;
    magnitude[to - d_weight] += std::abs(x);
    slack[to - d_weight] += error;
  };
  for (std::int64_t b = 0; b < batch; ++b) {
    const double* x = got_logits.data() + b * kClasses;
    const int label = samples.labels[samples.order[kGraphStep * batch + b]];
    const auto top = std::max_element(x, x + kClasses);
    double total = 0, d[kClasses], error[kClasses];
    for (int k = 0; k < kClasses; ++k) total += std::exp(x[k] - *top);
    const auto exponential = [&](double x) { return 0x1p-23 * (4 + std::abs(x - *top) + 2 * std::log(total)); };
    for (int k = 0; k < kClasses; ++k) {
      const double p = std::exp(x[k] - *top) / total;
      d[k] = upstream / double(batch) * (p - (k == label));
      error[k] = upstream / double(batch) * exponential(x[k]) * p + 0x1p-22 * std::abs(d[k]);
      add(d_class_bias + k, d[k], error[k]);
    }
    add(loss, std::log(total) - (x[label] - *top), exponential(x[label]));
    add(hits, top - x == label, 0);
    for (int unit = 0; unit < kHidden; ++unit) {
      const double h = got_h[b * kHidden + unit];
      double value = 0, of_value = 0, terms = 0;
      for (int k = 0; k < kClasses; ++k) {
        add(d_weight + k * kHidden + unit, d[k] * h, error[k] * h);
        value += d[k] * w(k, unit);
        of_value += error[k] * std::abs(w(k, unit));
        terms += std::abs(d[k] * w(k, unit));
      }
      const double bound = of_value + summing(kClasses) * terms;
      const std::int64_t i = b * kHidden + unit;
      if (h > 0) {
        const Drawn rounded = rounds_by_draws(now.precision, batch)
                                  ? rounded_by_draw(value, bound, draw_of(b, unit) >> 19)
                              : order.terms > 0 ? Drawn{value, std::ldexp(1.001, -22) * std::abs(value)}
                                                : Drawn{value, storing(now.precision) * std::abs(value)};
        dh.value[i] = rounded.value;
        dh.bound[i] = bound + rounded.bound +
                      (order.terms > 0 ? std::ldexp(dh_unit, -25) : storing_small(now.precision, dh_unit));
      }
      if (h > 0) add(d_bias + unit, value, bound);
    }
  }
  auto ordered = order.terms > 0 ? times(dh_unit, memory.fp16_result(s.dh, order.count(batch)))
                                 : memory.stored_result(s.dh, order.count(batch), dh_unit);
  std::vector<double> got_dh(batch * kHidden);
  for (std::int64_t i = 0; i < batch * kHidden; ++i)
    for (int term = 0; term < std::max(order.terms, 1); ++term) {
      auto& value = ordered[order.at(i / kHidden, int(i % kHidden), term)];
      got_dh[i] += value;
      value = 0;
    }
  check_elements("dh", with_unit(now.name, now.precision, dh_unit), {{"sample", batch}, {"hidden unit", kHidden}},
                 got_dh, dh);
  check_room("dh", now.name, now.precision, got_dh, dh_unit);
  check_equal("dh beyond the batch", now.name, {{"value", order.count(batch)}}, ordered,
              std::vector<double>(ordered.size()));
  for (int i = 0; i < fused::kHeadValues - 1; ++i)
    sums.bound[i] = slack[i] + summing(double(batch)) * magnitude[i];  // hits are exact
  const int blocks = s.head_blocks;
  if (scaled(now.precision) && !now.plan.with_fc) {
    const std::int64_t rows = (batch + blocks - 1) / blocks;  // of a block
    std::vector<double> largest(blocks);
    for (std::int64_t i = 0; i < batch * kHidden; ++i) {
      auto& of_block = largest[i / kHidden / rows];
      of_block = std::max(of_block, std::abs(got_dh[i]));
    }
    check_equal("dh_max", now.name, {{"block", blocks}}, memory.result(s.dh_max(), blocks), largest);
  }
  const auto add_up = [&](const std::vector<double>& rows, std::int64_t width) {
    std::vector<double> total(width);
    for (std::size_t i = 0; i < rows.size(); ++i) total[i % width] += rows[i];
    return total;
  };
  const auto got = add_up(memory.result(s.head_sums, blocks * fused::kHeadValues), fused::kHeadValues);
  const auto part = [&](const char* array, const Axes& axes, std::int64_t first) {
    const auto count = count_of(axes);
    Expected want(count);
    std::copy_n(sums.value.begin() + first, count, want.value.begin());
    std::copy_n(sums.bound.begin() + first, count, want.bound.begin());
    check_elements(array, now.name, axes, {got.begin() + first, got.begin() + first + count}, want);
  };
  part("head_sums of fc2.weight", {{"class", kClasses}, {"hidden unit", kHidden}}, 0);
  part("head_sums of fc1.bias", {{"hidden unit", kHidden}}, kClasses * kHidden);
  part("head_sums of fc2.bias", {{"class", kClasses}}, kClasses * kHidden + kHidden);
  part("head_sums of loss, hits", {{"value", 2}}, kClasses * kHidden + kHidden + kClasses);

  std::vector<double> next(fused::kMoments);
  for (std::int64_t b = 0; b < batch; ++b)
    for (int i = 0; i < fused::kMoments; ++i)
      next[i] += moments[samples.order[(kGraphStep + 1) * batch + b] * fused::kMoments + i];
  check_equal("moment_sums", now.name, {{"moment", fused::kMoments}},
              add_up(memory.result(s.moment_sums, blocks * fused::kMoments), fused::kMoments), next);
  return got_dh;
}

}  // namespace testing
