// head of `fused` by itself: h, the logits, the gradients of everything above fc1's output, and the next batch's pixel
// moments.
#include "fused_head.h"

using namespace testing;

namespace {

void test(Case now) {
  PhaseMemory memory = now.memory();
  State& s = memory.state();
  const std::int64_t batch = now.batch;
  const int slices = now.plan.fc1_slices;
  const HeadInputs inputs(now, memory);
  auto h_slices = now.random.values(slices * batch * kHidden, -1, 1);
  for (auto& x : h_slices) x = float(x);
  memory.give_as(s.h_slices, h_slices);
  memory.run([&](const State& s, cudaStream_t stream) { now.launch(Phase::kHead, s, stream); });

  if (scaled(now.precision))
    memory.check_scale("fc1's largest weight", now.name, fused::kLargestFc1, HeadInputs::kLargestFc1);
  Expected h(batch * kHidden);
  for (std::int64_t i = 0; i < batch * kHidden; ++i) {
    double total = inputs.bias[i % kHidden], magnitude = std::abs(total);
    for (int k = 0; k < slices; ++k) {
      const double x = h_slices[k * batch * kHidden + i];
      total += x, magnitude += std::abs(x);
    }
    h.value[i] = std::max(total, 0.0);
    h.bound[i] = summing(slices + 1) * magnitude;
  }
  const auto got_h = memory.result(s.h, batch * kHidden);
  check_elements("h", now.name, {{"sample", batch}, {"hidden unit", kHidden}}, got_h, h);
  check_head(memory, now, inputs, got_h);
  memory.check_rest(now.name);
}

}  // namespace

int main() {
  require_gpu();
  require_code(cuda::kTensorCapability);
  // A sample a block and many; as many slices as there are, and one.
  for_every_size(Phase::kHead, {{132, 1}, {132, 3}, {60, 70}, {5, 13}, {2, 131}, {132, 300}}, test);
  return finish_phase();
}
