// fc1 of `fused`, forward and backward, by itself in every size: bn2 from its sums, the sums over features, dy2 with
// its sums over the batch, and the weight's gradient and update.
#include "fused_phase.h"

using namespace testing;

namespace {

// bn2's operand by channel, as float64 has it.
struct Bn2 {
  std::vector<double> scale, shift, mean, inv_sigma;
};

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
    if (s.fc1_terms) Fc1Terms(weight).give(memory);
  }
};

// relu(bn2(pooled_z2)) as it is stored, (batch, features).
std::vector<double> a2_of(const Case& now, const std::vector<double>& pooled_z2, const std::vector<double>& scale,
                          const std::vector<double>& shift, double unit) {
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

// bn2 from conv forward's sums, of which four at a time are exact as floats. In tf32 it is of z2 in its unit.
void check_bn2(PhaseMemory& memory, const Case& now, const std::vector<double>& sums, const std::vector<double>& gamma,
               const std::vector<double>& beta, double unit) {
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

void test_forward(Case now, bool population) {
  if (population) now.name += ", with the population's statistics";
  PhaseMemory memory = now.memory();
  State& s = memory.state();
  s.bn2_given = population;
  const Inputs inputs(now, memory);
  auto gamma = now.random.values(kConv2Channels, -1.5, 1.5), beta = now.random.values(kConv2Channels, -0.5, 0.5);
  for (auto& x : gamma) x = float(x);
  for (auto& x : beta) x = float(x);
  gamma[37] = 0;
  std::vector<double> sums;
  double largest_a2 = 0;
  if (population) {
    memory.give_as(&s.bn2.scale(0), gamma);
    memory.give_as(&s.bn2.shift(0), beta);
    for (int c = 0; c < kConv2Channels; ++c)  // 2^16 is more than any value of fp16
      largest_a2 = std::max(largest_a2, std::ldexp(std::abs(gamma[c]) * inputs.z2_unit, 16) + std::abs(beta[c]));
    if (s.fc1_terms) {  // z2 ends at 288 products of these
      memory.give_as(&s.bn1.largest_a1(0), now.random.values(kConv1Channels, 0.5, 0.75));
      memory.give_as(s.conv2_max, now.random.values(fused::kConv2Values / 32, 0.02, 0.03));
    }
  } else {
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
      of_stored[i] /= i % (2 * kConv2Channels) < kConv2Channels ? inputs.z2_unit : inputs.z2_unit * inputs.z2_unit;
    memory.give_as(s.z2_sums, of_stored);
    // No value is farther from the mean of N than sqrt(N) of their standard deviations.
    for (int c = 0; c < kConv2Channels; ++c)
      largest_a2 = std::max(largest_a2, std::abs(gamma[c]) / std::sqrt(s.inv_n2) + std::abs(beta[c]));
  }
  if (scaled(now.precision)) memory.give_scale(fused::kZ2Scale, inputs.z2_unit);
  memory.run([&](const State& s, cudaStream_t stream) { now.launch(Phase::kFc1Forward, s, stream); });
  if (!population) check_bn2(memory, now, sums, gamma, beta, inputs.z2_unit);
  const double a2_unit = scaled(now.precision) ? scale_of(largest_a2) : 1;
  if (scaled(now.precision)) memory.check_scale("a2", now.name, fused::kA2Scale, a2_unit);
  const auto scale = times(population ? 1 : 1 / inputs.z2_unit, memory.read(&s.bn2.scale(0), kConv2Channels)),
             shift = memory.read(&s.bn2.shift(0), kConv2Channels);
  const std::int64_t batch = now.batch, size = batch * kHidden;
  const auto slices = memory.result(s.h_slices, now.plan.fc1_slices * size);
  std::vector<double> got(size);
  for (std::size_t i = 0; i < slices.size(); ++i) got[i % size] += slices[i];
  const auto a2 = a2_of(now, inputs.pooled_z2, scale, shift, a2_unit);
  std::vector<double> transposed(inputs.weight.size());
  for (int h = 0; h < kHidden; ++h)
    for (int f = 0; f < kFeatures; ++f) transposed[f * kHidden + h] = inputs.weight[h * kFeatures + f];
  const auto of_sample = [&](std::int64_t b, std::int64_t feature) { return a2[b * kFeatures + feature]; };
  check_elements("h_slices, added up", now.name, {{"sample", batch}, {"hidden unit", kHidden}}, got,
                 product(now, of_sample, batch, transposed, kHidden, kFeatures));
  memory.check_rest(now.name);
}

void test_backward(Case now, bool reports_gradients) {
  if (!reports_gradients) now.name += ", no gradients asked for";
  PhaseMemory memory = now.memory();
  State& s = memory.state();
  const std::int64_t batch = now.batch, at = kParameters[kFc1Weight].offset;
  const double learning_rate = 0.125;
  const Inputs inputs(now, memory);
  const Bn2 bn2{now.random.values(kConv2Channels, 0.5, 1.5), now.random.values(kConv2Channels, -0.5, 0.5),
                now.random.values(kConv2Channels, -0.5, 0.5), now.random.values(kConv2Channels, 0.5, 2)};
  const double z2_unit = inputs.z2_unit;  // which bn2 is of
  memory.give_as(&s.bn2.scale(0), times(z2_unit, bn2.scale));
  memory.give_as(&s.bn2.shift(0), bn2.shift);
  memory.give_as(&s.bn2.mean(0), times(1 / z2_unit, bn2.mean));
  memory.give_as(&s.bn2.inv_sigma(0), times(z2_unit, bn2.inv_sigma));
  memory.give_as(s.learning_rate, {learning_rate});
  auto dh = now.random.values(batch * kHidden, -1, 1), master = now.random.values(kHidden * kFeatures, -0.05, 0.05);
  // In tf32 units as the phases before would choose them, each another power of two.
  const bool units = scaled(now.precision);
  const double dh_unit = units ? std::ldexp(1.0, -14) : 1, a2_unit = units ? std::ldexp(1.0, -6) : 1,
               next_unit = units ? 2 * inputs.fc1_unit : 1;
  double dy2_unit = 1;
  for (auto& x : dh) x = now.random.bits() % 4 ? stored(now.precision, x, dh_unit) : 0;
  const DhOrder order(now);
  std::vector<double> ordered(order.count(batch));
  if (order.terms > 0) {
    const double unit = std::ldexp(1.0, -15);
    for (std::int64_t i = 0; i < batch * kHidden; ++i)
      for (int term = 0; term < order.terms; ++term)
        ordered[order.at(i / kHidden, int(i % kHidden), term)] = terms_of(dh[i] / unit, order.terms)[term];
    memory.give_fp16(s.dh, ordered);
    memory.give_scale(fused::kDhScale, unit);
    // a2 ends at sqrt(N) deviations.
    memory.give_as(s.parameters + kParameters[kBn2Weight].offset, now.random.values(kConv2Channels, -1, 1));
    memory.give_as(s.parameters + kParameters[kBn2Bias].offset, now.random.values(kConv2Channels, -0.5, 0.5));
  } else {
    for (std::int64_t i = 0; i < batch * kHidden; ++i) ordered[order.at(i / kHidden, int(i % kHidden))] = dh[i];
    memory.give_stored(s.dh, ordered, dh_unit);
  }
  if (units) {
    float largest_dh = 0, largest_weight = 0;
    for (const double x : dh) largest_dh = std::max(largest_dh, float(std::abs(x)));
    for (const double x : inputs.weight) largest_weight = std::max(largest_weight, float(std::abs(x)));
    auto of_blocks = now.random.values(now.plan.head_blocks, 0, largest_dh);
    of_blocks.back() = largest_dh;
    memory.give_as(s.dh_max(), of_blocks);
    memory.give_scale(fused::kA2Scale, a2_unit);
    memory.give_scale(fused::kNextFc1Scale, next_unit);
    memory.give_scale(fused::kLargestFc1, largest_weight);
    memory.give_scale(fused::kDhScale, dh_unit);
    dy2_unit = scale_of(float(kHidden) * largest_dh * largest_weight);
  }
  if (now.precision == Precision::kFp32) master = inputs.weight;  // the same array
  for (auto& x : master) x = float(x);
  memory.give_as(s.parameters + at, master);
  if (!reports_gradients) s.gradients = nullptr;
  memory.run([&](const State& s, cudaStream_t stream) { now.launch(Phase::kFc1Backward, s, stream); });

  // dy2, of what relu let pass.
  if (units) memory.check_scale("dy2", now.name, fused::kDy2Scale, dy2_unit);
  const auto a2 = a2_of(now, inputs.pooled_z2, bn2.scale, bn2.shift, a2_unit);
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

  // Its sums, and the largest of each block's 32 columns.
  Expected sums(2 * kFeatures);
  std::vector<double> largest(kFeatures / 32);
  for (std::int64_t i = 0; i < batch * kFeatures; ++i) {
    const int feature = int(i % kFeatures), c = feature % kConv2Channels;
    const double xhat = (inputs.pooled_z2[i] - float(bn2.mean[c])) * float(bn2.inv_sigma[c]);
    sums.value[feature] += got_dy2[i];
    sums.bound[feature] += std::abs(got_dy2[i]);
    sums.value[kFeatures + feature] += got_dy2[i] * xhat;
    sums.bound[kFeatures + feature] += std::abs(got_dy2[i] * xhat);
    largest[feature / 32] = std::max(largest[feature / 32], std::abs(got_dy2[i]));
  }
  for (auto& bound : sums.bound) bound *= summing(double(batch));
  check_elements("dy2_sums", now.name, {{"sum", 2}, {"cell", fused::kCells2}, {"channel", kConv2Channels}},
                 memory.result(s.dy2_sums, 2 * kFeatures), sums);
  const auto check_largest = [&](const char* array, const float* warps, const std::vector<double>& want) {
    const auto of_warps = memory.result(warps, 2 * fused::kCells2 * fused::kGradientWarps);
    std::vector<double> got(want.size(), -1);
    for (std::size_t i = 0; i < of_warps.size(); ++i) {
      auto& largest = got[i / fused::kGradientWarps];
      if (!(of_warps[i] <= largest || std::isnan(largest))) largest = of_warps[i];  // a NaN remains
    }
    check_equal(array, now.name, {{"block", 2 * fused::kCells2}}, got, want);
  };
  if (fp16_terms(now.precision) > 0 || units) check_largest("dy2_max", s.dy2_max, largest);

  // fc1.weight, its gradient and its copy.
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
  if (reports_gradients)
    check_elements("fc1.weight's gradient", now.name, weights, memory.result(s.gradients + at, kHidden * kFeatures),
                   gradient);
  const auto got = memory.result(s.parameters + at, kHidden * kFeatures);
  check_elements("fc1.weight", now.name, weights, got, updated);
  std::vector<double> copy(got.size());
  std::ranges::transform(got, copy.begin(), [&](double x) { return stored(now.precision, x, next_unit); });
  check_equal("fc1", with_unit(now.name, now.precision, next_unit), weights,
              memory.stored_result(s.fc1, kHidden * kFeatures, next_unit), copy);
  if (order.terms > 0) Fc1Terms(got).check(memory, now.name);
  if (units) {
    std::vector<double> largest_weights(kFeatures / 32);
    for (std::size_t i = 0; i < got.size(); ++i) {
      auto& largest_weight = largest_weights[i % kFeatures / 32];
      largest_weight = std::max(largest_weight, std::abs(got[i]));
    }
    check_largest("fc1_max", s.fc1_max(), largest_weights);
  }
  memory.check_rest(now.name);
}

}  // namespace

int main() {
  require_gpu();
  require_code(cuda::kTensorCapability);
  // Few and many slices, a single one, and more than 64 rows of sums; full and ragged tiles of 16 and of 64 samples.
  for_every_size(Phase::kFc1Forward,
                 {{132, 1}, {132, 16}, {5, 17}, {132, 33}, {5, 61}, {132, 129}, {5, 131}, {132, 200}}, [](Case now) {
                   test_forward(now, false);
                   if (now.batch % 3 == 2) test_forward(now, true);
                 });
  // Up to five tiles, in three stages or two, of 64 samples and of 128; the last one ragged except for 64 and 256.
  for_every_size(Phase::kFc1Backward, {{132, 1}, {132, 64}, {5, 127}, {132, 129}, {132, 256}, {132, 300}, {132, 515}},
                 [](Case now) { test_backward(now, now.batch != 127); });
  return finish_phase();
}
