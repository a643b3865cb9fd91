// Engine `reference` as a whole: its gradients against difference quotients, its statistics against their definition.
#include <random>

#include "cpu/reference_ops.h"
#include "testing.h"

using namespace mnist;
using testing::random_normal;

namespace {

std::vector<std::uint8_t> make_images(std::int64_t count) {
  std::mt19937 rng(2);
  std::vector<std::uint8_t> images(count * kImagePixels);
  for (auto& u : images) u = std::uint8_t(rng() % 2 ? rng() : 0);
  return images;
}

std::unique_ptr<Engine> make_engine(std::span<const double> parameters) {
  auto engine = create_engine("reference", {.precision = Precision::kFp64});
  engine->set_parameters(parameters);
  return engine;
}

// Along random directions d: (loss(w + h d) - loss(w - h d)) / 2h = gradient . d, every decision held fixed.
void test_gradients() {
  const auto parameters = testing::random_parameters();
  const auto images = make_images(2);
  const std::vector<std::uint8_t> labels{3, 8};
  const auto engine = make_engine(parameters);
  const auto probe = engine->probe(images, labels, {.upstream = 2.5});
  constexpr double h = 1e-5;
  for (unsigned seed = 0; seed < 100; ++seed) {
    auto direction = random_normal<double>(kParameterCount, 100 + seed);
    // One tensor at a time, then all at once: fc1 is 95 % of the parameters and would hide the others.
    const auto& only = kParameters[seed % kParameterTensors];
    double norm = 0, slope = 0;
    for (std::int64_t k = 0; k < kParameterCount; ++k) {
      if (seed < 96 && (k < only.offset || k >= only.offset + only.size)) direction[k] = 0;
      norm += direction[k] * direction[k];
    }
    const auto loss_at = [&](double step) {
      auto moved = parameters;
      for (std::int64_t k = 0; k < kParameterCount; ++k) moved[k] += step * direction[k] / std::sqrt(norm);
      engine->set_parameters(moved);
      return 2.5 * engine->probe(images, labels, {.routing = &probe.routing}).loss;
    };
    const double quotient = (loss_at(h) - loss_at(-h)) / (2 * h);
    for (std::int64_t k = 0; k < kParameterCount; ++k) slope += probe.gradients[k] * direction[k] / std::sqrt(norm);
    CHECK(std::fabs(quotient - slope) <= 1e-7 * std::fabs(slope) + 1e-8);
  }
  for (const auto index : {kConv1Bias, kConv2Bias})
    for (std::int64_t k = 0; k < kParameters[index].size; ++k)
      CHECK(probe.gradients[kParameters[index].offset + k] == 0);
}

// More images than the engine holds at once, against one pass over all of them.
void test_statistics() {
  using namespace reference;
  constexpr std::int64_t count = 251;
  const auto parameters = testing::random_parameters();
  const auto images = make_images(count);
  const auto engine = make_engine(parameters);
  engine->set_dataset(images, std::vector<std::uint8_t>(count));
  engine->compute_statistics();
  std::vector<double> got(kStatisticCount);
  engine->get_statistics(got);

  const auto parameter = [&](ParameterIndex index) { return parameters.data() + kParameters[index].offset; };
  std::vector<double> want(kStatisticCount), x(images.size());
  const auto statistic = [&](StatisticIndex index) { return want.data() + kStatistics[index].offset; };
  for (std::size_t k = 0; k < x.size(); ++k) x[k] = (images[k] / 255.0 - kPixelMean) / kPixelStd;
  std::vector<double> z1(4 * count * kPool1Size), y1(z1.size()), a1(count * kPool1Size), z2(4 * count * kPool2Size);
  std::vector<std::uint8_t> route(a1.size());
  conv2d_forward(z1.data(), x.data(), parameter(kConv1Weight), parameter(kConv1Bias), count, 1, kConv1Channels,
                 kImageSide);
  batch_norm_statistics(statistic(kBn1Mean), statistic(kBn1Var), z1.data(), count, kConv1Channels, kImagePixels);
  batch_norm_forward(y1.data(), z1.data(), parameter(kBn1Weight), parameter(kBn1Bias), statistic(kBn1Mean),
                     statistic(kBn1Var), count, kConv1Channels, kImagePixels);
  relu_max_pool2d_forward(a1.data(), route.data(), y1.data(), count * kConv1Channels, kPool1Side);
  conv2d_forward(z2.data(), a1.data(), parameter(kConv2Weight), parameter(kConv2Bias), count, kConv1Channels,
                 kConv2Channels, kPool1Side);
  batch_norm_statistics(statistic(kBn2Mean), statistic(kBn2Var), z2.data(), count, kConv2Channels,
                        kPool1Side * kPool1Side);
  for (const auto& s : kStatistics)
    CHECK_CLOSE(std::vector(got.begin() + s.offset, got.begin() + s.offset + s.size),
                std::vector(want.begin() + s.offset, want.begin() + s.offset + s.size), 1e-12, s.name);

  // Under population statistics an image's scores do not depend on its company.
  std::vector<double> together(3 * kClasses), alone(kClasses);
  engine->logits(std::span(images).first(3 * kImagePixels), BatchNormMode::kPopulation, together);
  engine->logits(std::span(images).subspan(kImagePixels, kImagePixels), BatchNormMode::kPopulation, alone);
  CHECK(std::equal(alone.begin(), alone.end(), together.begin() + kClasses));
}

}  // namespace

int main() {
  test_gradients();
  test_statistics();
  return testing::finish();
}
