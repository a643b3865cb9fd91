// A whole step of the cpu engine on every instruction set this machine has, against the reference engine under the same
// routing; and that threads, repetition and the batch's size change nothing they should not.
#include <algorithm>

#include "cpu/network.h"
#include "testing.h"

namespace {

using namespace mnist;
using cpu::Batch;
using cpu::Network;
using Doubles = std::vector<double>;

constexpr double kBound = 1e-5;  // frozen routing, float32 against float64

// Images with a flat background, as digits have: full of ties.
struct Data {
  std::vector<std::uint8_t> images, labels;
  explicit Data(int count) : images(count * kImagePixels), labels(count) {
    std::mt19937 rng(7);
    for (int n = 0; n < count; ++n) {
      labels[n] = std::uint8_t(rng() % kClasses);
      const int top = 4 + int(rng() % 6), left = 4 + int(rng() % 6), step = 1 + labels[n] % 3;
      for (int p = top; p < top + 14; p += step)
        for (int q = left; q < left + 9 + labels[n]; ++q)
          images[n * kImagePixels + p * kImageSide + q] = std::uint8_t(rng() % 2 ? 255 : rng() % 256);
    }
  }
  Batch batch(int count) const {
    Batch batch;
    for (int n = 0; n < count; ++n) batch.images.push_back(images.data() + n * kImagePixels);
    batch.labels.assign(labels.begin(), labels.begin() + count);
    return batch;
  }
};

// Batch norm with scales of both signs and, for one channel of each layer, 0.
Doubles random_parameters() {
  Doubles p = testing::random_normal<double>(kParameterCount, 3);
  for (int t = 0; t < kParameterTensors; ++t)
    for (std::int64_t i = 0; i < kParameters[t].size; ++i) {
      double& value = p[kParameters[t].offset + i];
      if (t == kConv2Weight || t == kFc1Weight) value *= 0.05;
      if (t == kFc2Weight) value *= 0.2;
      if ((t == kBn1Weight && i == 5) || (t == kBn2Weight && i == 9)) value = 0;
      value = float(value);
    }
  return p;
}

Probe probe(const cpu::Kernels& kernels, int threads, const Doubles& parameters, const Batch& batch, double upstream) {
  Network network(kernels, threads);
  network.parameters.assign(parameters);
  const StepResult result = network.forward(batch, upstream);
  Probe probe{.loss = result.loss, .correct = result.correct};
  network.export_activations(batch, probe);
  cpu::Parameters gradients;
  network.backward(batch, gradients);
  probe.gradients.resize(kParameterCount);
  gradients.copy_to(probe.gradients);
  return probe;
}

Doubles tensor(const Doubles& slab, int index) {
  const auto first = slab.begin() + kParameters[index].offset;
  return {first, first + kParameters[index].size};
}

void check_probe(const Probe& got, const Probe& want, const std::string& what) {
  CHECK(std::abs(got.loss - want.loss) <= kBound * want.loss);
  CHECK_CLOSE(got.a1, want.a1, kBound, what + " a1");
  CHECK_CLOSE(got.a2, want.a2, kBound, what + " a2");
  CHECK_CLOSE(got.h, want.h, kBound, what + " h");
  CHECK_CLOSE(got.logits, want.logits, kBound, what + " logits");
  for (int t = 0; t < kParameterTensors; ++t)
    CHECK_CLOSE(tensor(got.gradients, t), tensor(want.gradients, t), kBound, what + " d" + kParameters[t].name);
}

void test_against_reference(const Data& data, const Doubles& parameters) {
  const auto reference = create_engine("reference", {.precision = Precision::kFp64});
  reference->set_parameters(parameters);
  for (const int count : {1, 2, 3, 33}) {
    const Batch batch = data.batch(count);
    for (const auto* kernels : cpu::supported_kernels()) {
      const Probe got = probe(*kernels, 2, parameters, batch, 1.7);
      const Probe want = reference->probe(std::span(data.images).first(count * kImagePixels), batch.labels,
                                          {.upstream = 1.7, .routing = &got.routing});
      check_probe(got, want, std::string(kernels->isa) + ", batch " + std::to_string(count));
    }
  }
}

void test_threads(const Data& data, const Doubles& parameters) {
  for (const auto* kernels : cpu::supported_kernels()) {
    Doubles first;
    for (const int threads : {1, 2, 2, 3}) {
      Network network(*kernels, threads);
      network.parameters.assign(parameters);
      Doubles values(kParameterCount + kStatisticCount);
      for (const int count : {40, 33, 1}) {
        network.forward(data.batch(count));
        network.backward_and_update(data.batch(count), 0.01);
      }
      network.parameters.copy_to(std::span(values).first(kParameterCount));
      network.compute_statistics(data.batch(40), std::span(values).subspan(kParameterCount));
      if (first.empty()) first = values;
      CHECK(values == first);
      CHECK(std::ranges::all_of(values, [](double v) { return std::isfinite(v); }));
    }
  }
}

// A batch that holds every image r times has the same statistics, and the same gradients, as one that holds it once.
// 8200 is more than the engine keeps conv2's output of, so that the way that computes it again is taken too.
void test_many_images(const Data& data, const Doubles& parameters) {
  const auto& kernels = *cpu::supported_kernels().front();
  const Batch once = data.batch(40);
  Batch many;
  for (int i = 0; i < 8200; ++i) {
    many.images.push_back(once.images[i % 40]);
    many.labels.push_back(once.labels[i % 40]);
  }
  Network network(kernels, 0);
  network.parameters.assign(parameters);
  cpu::Parameters gradients;
  Doubles got(kParameterCount), want(kParameterCount);
  const double loss = network.forward(once).loss;
  network.backward(once, gradients);
  gradients.copy_to(want);
  CHECK(std::abs(network.forward(many).loss - loss) <= 1e-6 * loss);
  network.backward(many, gradients);
  gradients.copy_to(got);
  for (int t = 0; t < kParameterTensors; ++t)
    CHECK_CLOSE(tensor(got, t), tensor(want, t), kBound, std::string("8200 images d") + kParameters[t].name);
}

// A weight that is NaN must not train on as if nothing had happened.
void test_nan(const Data& data, Doubles parameters) {
  for (const auto index : {kConv1Weight, kBn1Bias, kConv2Weight, kBn2Weight, kFc1Weight, kFc2Bias}) {
    Doubles broken = parameters;
    broken[kParameters[index].offset] = std::numeric_limits<double>::quiet_NaN();
    for (const auto* kernels : cpu::supported_kernels()) {
      Network network(*kernels, 1);
      network.parameters.assign(broken);
      CHECK(std::isnan(network.forward(data.batch(3)).loss));
    }
  }
}

}  // namespace

int main() {
  const Data data(40);
  const Doubles parameters = random_parameters();
  Doubles back(kParameterCount);
  cpu::Parameters own;
  own.assign(parameters);
  own.copy_to(back);
  CHECK(back == parameters);
  test_against_reference(data, parameters);
  test_threads(data, parameters);
  test_many_images(data, parameters);
  test_nan(data, parameters);
  return testing::finish();
}
