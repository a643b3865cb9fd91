// fc of `fused` by itself: all that fc1_forward, head and the input gradient of fc1_backward do.
#include "fused_fc1.h"
#include "fused_head.h"

using namespace testing;

namespace {

void test(Case now) {
  PhaseMemory memory = now.memory();
  const State& s = memory.state();
  const std::int64_t batch = now.batch;
  const Inputs inputs(now, memory);
  Statistics statistics(now);
  statistics.give(now, memory, inputs.z2_unit);
  const HeadInputs head(now, memory);
  memory.run([&](const State& s, cudaStream_t stream) { now.launch(Phase::kFc, s, stream); });

  check_bn2(memory, now, statistics.sums, statistics.gamma, statistics.beta, inputs.z2_unit);
  const auto row_of_bn2 = [&](const float& row, double unit) { return times(unit, memory.read(&row, kConv2Channels)); };
  const Bn2 bn2{row_of_bn2(s.bn2.scale(0), 1 / inputs.z2_unit), row_of_bn2(s.bn2.shift(0), 1),
                row_of_bn2(s.bn2.mean(0), inputs.z2_unit), row_of_bn2(s.bn2.inv_sigma(0), 1 / inputs.z2_unit)};
  const double a2_unit = scaled(now.precision) ? scale_of(statistics.largest_a2) : 1;
  if (scaled(now.precision)) memory.check_scale("a2", now.name, fused::kA2Scale, a2_unit);
  const auto a2 = a2_of(now, inputs.pooled_z2, bn2.scale, bn2.shift, a2_unit);
  Expected h = fc1_product(now, a2, inputs.weight);
  for (std::int64_t i = 0; i < batch * kHidden; ++i) {
    h.value[i] = std::max(h.value[i] + head.bias[i % kHidden], 0.0);
    h.bound[i] += summing(1) * (1 + h.value[i]);
  }
  const auto got_h = memory.result(s.h, batch * kHidden);
  check_elements("h", now.name, {{"sample", batch}, {"hidden unit", kHidden}}, got_h, h);

  const auto dh = check_head(memory, now, head, got_h);
  const double dy2_unit =
      scaled(now.precision) ? scale_of(float(kHidden) * float(head.largest_dh) * float(HeadInputs::kLargestFc1)) : 1;
  check_dy2(memory, now, inputs, dh, a2, bn2, dy2_unit);
  memory.check_rest(now.name);
}

}  // namespace

int main() {
  require_gpu();
  require_code(cuda::kTensorCapability);
  // Fewer samples than clusters, a ragged cluster, two samples a block, every place full, and more clusters.
  const std::vector<Cut> cuts = {{132, 1},   {132, 5},   {132, 13},  {132, 64}, {132, 65},
                                 {132, 100}, {132, 128}, {132, 129}, {132, 208}};
  for_every_size(Phase::kFc, cuts, test);
  return finish_phase();
}
