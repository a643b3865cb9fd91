// fc1 of `fused`, forward and backward, by itself in every size: bn2 from its sums, the sums over features, dy2 with
// its sums over the batch, and the weight's gradient and update.
#include "fused_fc1.h"

using namespace testing;

namespace {

void test_forward(Case now, bool population) {
  if (population) now.name += ", with the population's statistics";
  PhaseMemory memory = now.memory();
  State& s = memory.state();
  s.bn2_given = population;
  const Inputs inputs(now, memory);
  Statistics statistics(now);
  const auto &gamma = statistics.gamma, &beta = statistics.beta;
  double& largest_a2 = statistics.largest_a2;
  if (population) {
    memory.give_as(&s.bn2.scale(0), gamma);
    memory.give_as(&s.bn2.shift(0), beta);
    for (int c = 0; c < kConv2Channels; ++c)  // 2^16 is more than any value of fp16
      largest_a2 = std::max(largest_a2, std::ldexp(std::abs(gamma[c]) * inputs.z2_unit, 16) + std::abs(beta[c]));
    if (fp16_terms(now.precision) > 0 && s.fc1_copy) {  // z2 ends at 288 products of these
      memory.give_as(&s.bn1.largest_a1(0), now.random.values(kConv1Channels, 0.5, 0.75));
      memory.give_as(s.conv2_max, now.random.values(fused::kConv2Values / 32, 0.02, 0.03));
    }
    if (scaled(now.precision)) memory.give_scale(fused::kZ2Scale, inputs.z2_unit);
  } else {
    statistics.give(now, memory, inputs.z2_unit);
  }
  memory.run([&](const State& s, cudaStream_t stream) { now.launch(Phase::kFc1Forward, s, stream); });
  if (!population) check_bn2(memory, now, statistics.sums, gamma, beta, inputs.z2_unit);
  const double a2_unit = scaled(now.precision) ? scale_of(largest_a2) : 1;
  if (scaled(now.precision)) memory.check_scale("a2", now.name, fused::kA2Scale, a2_unit);
  const auto scale = times(population ? 1 : 1 / inputs.z2_unit, memory.read(&s.bn2.scale(0), kConv2Channels)),
             shift = memory.read(&s.bn2.shift(0), kConv2Channels);
  const std::int64_t batch = now.batch, size = batch * kHidden;
  const auto slices = memory.result(s.h_slices, now.plan.fc1_slices * size);
  std::vector<double> got(size);
  for (std::size_t i = 0; i < slices.size(); ++i) got[i % size] += slices[i];
  const auto a2 = a2_of(now, inputs.pooled_z2, scale, shift, a2_unit);
  check_elements("h_slices, added up", now.name, {{"sample", batch}, {"hidden unit", kHidden}}, got,
                 fc1_product(now, a2, inputs.weight));
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

  const auto a2 = a2_of(now, inputs.pooled_z2, bn2.scale, bn2.shift, a2_unit);
  check_dy2(memory, now, inputs, dh, a2, bn2, dy2_unit);
  check_fc1_update(memory, now, dh, a2, master, learning_rate, next_unit);
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
