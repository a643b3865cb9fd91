// What the fused engine does around a training, on the GPU: slabs, initial values, sums over a data set, scores.
#include "engines/fused/probe.h"
#include "gpu_testing.h"
#include "kernels/fused/state.h"

using namespace mnist;
using namespace testing;

namespace {

void test_slabs() {
  std::vector<float> torch(kParameterCount);
  for (std::size_t i = 0; i < torch.size(); ++i) torch[i] = float(i);
  const Guarded<float> from(torch), engine(kParameterCount), back(kParameterCount);
  fused::slab_to_engine(engine.data(), from.data(), nullptr);
  fused::slab_to_torch(back.data(), engine.data(), nullptr);
  const auto values = engine.read("slab_to_engine");
  CHECK(back.read("slab_to_torch") == torch);
  constexpr auto begin = kParameters[kFc1Weight].offset, end = kParameters[kFc1Bias].offset;
  bool right = true;
  for (std::int64_t i = 0; i < kParameterCount; ++i) {
    const bool fc1 = i >= begin && i < end;
    const auto row = (i - begin) / kFeatures, feature = (i - begin) % kFeatures;
    right &= values[i] == float(fc1 ? begin + row * kFeatures + fused::torch_feature(feature) : i);
  }
  CHECK(right);
}

void test_initial_values() {
  const Pcg64 start{Pcg64::Word(0x123456789abcdef0) << 64 | 7, Pcg64::Word(0xfedcba9876543210) << 64 | 9};
  const Guarded<float> got(kParameterCount);
  fused::initialize_slab(got.data(), start, nullptr);
  const auto values = got.read("initialize_slab");
  const auto reference = create_engine("reference", {Precision::kFp64});
  reference->initialize_parameters(start);
  std::vector<double> want(kParameterCount);
  reference->get_parameters(std::span(want));
  CHECK(widen(values) == want);
}

void test_sums() {
  for (const std::int64_t count : {1, 3, 513, 60000}) {
    std::mt19937 rng{unsigned(count)};
    std::vector<double> moments(count * fused::kMoments), want(fused::kMoments, 0.0);
    for (auto& value : moments) value = double(std::int32_t(rng())) / 2048;
    for (std::size_t i = 0; i < moments.size(); ++i) want[i % fused::kMoments] += moments[i];
    const Guarded<double> gmoments(moments), sums(std::vector<double>(fused::kMoments, 0.0)),
        scratch(fused::sum_moments_scratch());
    fused::sum_moments(sums.data(), scratch.data(), gmoments.data(), count, nullptr);
    CHECK(sums.read("sum_moments") == want);
  }
  const auto z2 = random_normal<float>(131 * 2 * kConv2Channels, 3);
  std::vector<double> want(2 * kConv2Channels, 0.5);
  for (std::size_t i = 0; i < z2.size(); ++i) want[i % want.size()] += z2[i];
  const Guarded<float> gz2(z2);
  const Guarded<double> sums(std::vector<double>(2 * kConv2Channels, 0.5));
  fused::add_z2_sums(sums.data(), gz2.data(), 131, nullptr);
  CHECK(sums.read("add_z2_sums") == want);
}

void test_scores() {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  for (const std::int64_t count : {1, 127, 128, 129, 10000}) {
    auto logits = random_normal<float>(count * kClasses, unsigned(count));
    std::vector<std::uint8_t> labels(count);
    for (std::int64_t b = 0; b < count; ++b) labels[b] = std::uint8_t(b * 7 % kClasses);
    for (int k = 0; k < kClasses; ++k) logits[k] = 0.25f;  // a tie: the first one counts, and that is its label
    for (const auto& last : {0.5f, nan, infinity, -infinity}) {
      logits.back() = last;
      const Guarded<float> glogits(logits);
      const Guarded<std::uint8_t> glabels(labels);
      const Guarded<Score> gparts(fused::score_blocks(count));
      fused::score_images(gparts.data(), glogits.data(), glabels.data(), count, nullptr);
      Score got;
      for (const Score& part : gparts.read("score_images")) {
        got.loss += part.loss;
        for (int k = 0; k < kClasses; ++k) got.correct[k] += part.correct[k];
      }
      const Score want = score(widen(logits), labels);
      CHECK(std::ranges::equal(got.correct, want.correct));
      CHECK(std::isfinite(want.loss) ? std::abs(got.loss - want.loss) <= 1e-12 * want.loss : !std::isfinite(got.loss));
    }
  }
}

void test_window() {
  const std::vector<std::int32_t> order = {5, 4, 3, 2, 1, 0, 7};
  const std::vector<float> rates = {0.5f, 0.25f, 0.125f};
  const Guarded<std::int32_t> from(order), to(7);
  const Guarded<float> from_rates(rates), to_rates(3);
  fused::set_steps({to.data(), from.data(), 7, to_rates.data(), from_rates.data(), 3}, nullptr);
  CHECK(to.read("set_steps") == order);
  CHECK(to_rates.read("set_steps") == rates);
  std::vector<std::int32_t> many(1000003);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = std::int32_t(i * 7);
  const Guarded<std::int32_t> gmany(many), copy(std::int64_t(many.size()));
  fused::set_steps({copy.data(), gmany.data(), std::int64_t(many.size()), to_rates.data(), from_rates.data(), 3},
                   nullptr);
  CHECK(copy.read("set_steps") == many);
}

// Of two models, each with arrays of its own; what lies between them stays.
void test_window_of_models() {
  const std::vector<std::int32_t> order = {5, 4, 3, 99, 2, 1, 0, 99};
  const std::vector<float> rates = {0.5f, 0.25f, 0.125f, 0.75f};
  const Guarded<std::int32_t> from(order), to(std::vector<std::int32_t>(8, -1));
  const Guarded<float> from_rates(rates), to_rates(std::vector<float>(8, -1));
  fused::set_steps({to.data(), from.data(), 3, to_rates.data(), from_rates.data(), 2, 2, 16, 4, 2}, nullptr);
  CHECK((to.read("set_steps") == std::vector<std::int32_t>{5, 4, 3, -1, 2, 1, 0, -1}));
  CHECK((to_rates.read("set_steps") == std::vector<float>{0.5f, 0.25f, -1, -1, 0.125f, 0.75f, -1, -1}));
}

}  // namespace

int main() {
  require_gpu();
  require_code(cuda::kTensorCapability);
  test_slabs();
  test_initial_values();
  test_sums();
  test_scores();
  test_window();
  test_window_of_models();
  return finish();
}
