// Every CUDA engine that can run here: what the step loop promises whatever a layer is made of.
//
// Batches from the GPU and from the host give the same bits, so do repeated runs and other ways to cut a run into
// calls; one step equals the probe's gradients; statistics and logits follow the reference. How exact gradients are
// is the business of the conformance suite.
#include <algorithm>
#include <numeric>

#include "libraries/cudnn_layers.h"
#include "testing.h"

using namespace mnist;
using namespace testing;

namespace {

struct Data {
  std::vector<std::uint8_t> images, labels;
};

// Strokes on a flat background; the label is how many.
Data digits(std::int64_t count) {
  Data data{std::vector<std::uint8_t>(count * kImagePixels), {}};
  std::mt19937 rng(7);
  for (std::int64_t n = 0; n < count; ++n) {
    const int strokes = int(rng() % kClasses);
    for (int s = 0; s < strokes; ++s) {
      const int row = 3 + int(rng() % 20), column = 3 + int(rng() % 14);
      for (int k = 0; k < 24; ++k)
        data.images[n * kImagePixels + (row + k / 8) * kImageSide + column + k % 8] = k % 8 == 0 ? 90 : 255;
    }
    data.labels.push_back(std::uint8_t(strokes));
  }
  return data;
}

std::vector<double> initial_parameters() {
  auto values = random_normal<double>(kParameterCount, 3);
  for (const auto& p : kParameters) {
    const double fan_in = double(p.size / p.shape[0]);
    for (std::int64_t k = 0; k < p.size; ++k) {
      double& value = values[p.offset + k];
      value = p.ndim > 1 ? value / std::sqrt(3 * fan_in) : 0.05 * value;
      if (std::string(p.name).starts_with("bn") && std::string(p.name).ends_with("weight")) value += 1;
      value = double(float(value));
    }
  }
  return values;
}

struct Run {
  std::vector<double> parameters = std::vector<double>(kParameterCount), losses;
  std::vector<int> correct;
  bool operator==(const Run&) const = default;
};

// `pieces` calls of train over the same steps.
Run train(Engine& engine, const Data& data, Placement placement, std::int64_t batch, int pieces) {
  std::vector<std::int32_t> order(data.labels.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(5));
  engine.set_parameters(initial_parameters());
  engine.set_dataset(data.images, data.labels, placement);
  Run run;
  const auto steps = Engine::step_count(std::int64_t(order.size()), batch);
  for (int piece = 0; piece < pieces; ++piece) {
    const auto first = steps * piece / pieces, last = steps * (piece + 1) / pieces;
    const auto begin = first * batch, end = std::min(last * batch, std::int64_t(order.size()));
    std::vector<StepResult> results(last - first);
    engine.train(std::span<const std::int32_t>(order).subspan(begin, end - begin), batch,
                 std::vector<double>(results.size(), 0.01), results);
    for (const auto& result : results) {
      run.losses.push_back(result.loss);
      run.correct.push_back(result.correct);
    }
  }
  engine.get_parameters(run.parameters);
  return run;
}

void test_training(Engine& engine, const Data& data, const std::string& what) {
  for (const std::int64_t batch : {1, 7, 64, 300}) {
    const auto name = what + ", batch " + std::to_string(batch);
    const auto count = std::min<std::int64_t>(300, 170 * batch);  // batch 1: around the ring of a host-fed engine
    const Data part{{data.images.begin(), data.images.begin() + count * kImagePixels},
                    {data.labels.begin(), data.labels.begin() + count}};
    const Run once = train(engine, part, Placement::kDevice, batch, 1);
    report(once == train(engine, part, Placement::kDevice, batch, 1), name + ": a second run differs", __FILE__,
           __LINE__);
    report(once == train(engine, part, Placement::kHost, batch, 1), name + ": fed from the host differs", __FILE__,
           __LINE__);
    report(once == train(engine, part, Placement::kDevice, batch, 3), name + ": in three calls differs", __FILE__,
           __LINE__);
    for (const double loss : once.losses) CHECK(loss > 0 && loss < 20);
  }
}

// One step moves the parameters by the probe's gradients, and reports the probe's loss.
void test_step_is_probe(Engine& engine, const Data& data, const std::string& what) {
  const std::int64_t batch = 33;
  const std::span images(data.images.data(), batch * kImagePixels), labels(data.labels.data(), batch);
  std::vector<double> before = initial_parameters(), after(kParameterCount), step, gradients;
  engine.set_parameters(before);
  const Probe probe = engine.probe(images, labels);
  engine.set_dataset(images, labels);
  std::vector<std::int32_t> order(batch);
  std::iota(order.begin(), order.end(), 0);
  StepResult result;
  engine.train(order, batch, std::vector<double>{1.0}, {&result, 1});
  engine.get_parameters(after);
  for (std::int64_t k = 0; k < kParameterCount; ++k) {
    step.push_back(before[k] - after[k]);
    gradients.push_back(probe.gradients[k]);
  }
  CHECK_CLOSE(step, gradients, 1e-5, what + ": step against probe");
  CHECK(result.loss == probe.loss && result.correct == probe.correct);
  for (const auto bias : {kConv1Bias, kConv2Bias})
    for (std::int64_t k = 0; k < kParameters[bias].size; ++k) CHECK(probe.gradients[kParameters[bias].offset + k] == 0);
}

// What the reference makes of the data: more images than one evaluation chunk holds, and a rest.
struct Evaluation {
  std::vector<double> statistics = std::vector<double>(kStatisticCount);
  std::vector<double> population = std::vector<double>(kScored * kClasses), batch = population;
  static constexpr std::int64_t kScored = 1010;
};

Evaluation evaluate(Engine& engine, const Data& data, Placement placement) {
  Evaluation result;
  engine.set_parameters(initial_parameters());
  engine.set_dataset(data.images, data.labels, placement);
  engine.compute_statistics();
  engine.get_statistics(result.statistics);
  const std::span images(data.images.data(), Evaluation::kScored * kImagePixels);
  engine.logits(images, BatchNormMode::kPopulation, result.population);
  engine.logits(images, BatchNormMode::kBatch, result.batch);
  return result;
}

void test_evaluation(Engine& engine, const Evaluation& want, const Data& data, const std::string& what) {
  const auto precision = engine.options().precision;
  const double bound = precision == Precision::kFp64   ? 1e-9
                       : precision == Precision::kFp32 ? 1e-5
                       : precision == Precision::kTf32 ? 3e-3
                                                       : 3e-2;
  for (const auto placement : {Placement::kHost, Placement::kDevice}) {
    const Evaluation got = evaluate(engine, data, placement);
    CHECK_CLOSE(got.statistics, want.statistics, bound, what + ": population statistics");
    CHECK_CLOSE(got.population, want.population, bound, what + ": logits");
    CHECK_CLOSE(got.batch, want.batch, bound, what + ": logits of a batch");
  }
}

// An engine leaves its plans to the next one, which makes none of its own; two side by side have plans of their own.
void test_plans_left_behind(const EngineOptions& options, const Data& data, const std::string& what) {
  constexpr std::int64_t kBatch = 37;  // no other test's
  const auto left = [] {
    const auto counts = cudnn_layers::plans_left_behind(0);
    return std::accumulate(counts.begin(), counts.end(), std::size_t(0));
  };
  const auto run = [&](Engine& engine) { return train(engine, data, Placement::kDevice, kBatch, 1); };
  create_engine("cudnn", options);  // there is one to take
  const auto before = left();
  const Run first = run(*create_engine("cudnn", options));
  const auto made = left() - before;
  const Run second = run(*create_engine("cudnn", options));
  report(made > 0 && first == second && left() == before + made,
         what + ": plans left behind are not taken, or give other bits", __FILE__, __LINE__);
  {
    const auto one = create_engine("cudnn", options), other = create_engine("cudnn", options);
    report(run(*one) == first && run(*other) == first, what + ": another bit side by side", __FILE__, __LINE__);
  }
  report(left() == before + 2 * made,
         what + ": two engines side by side made " + std::to_string(left() - before) + " plans, one " +
             std::to_string(made),
         __FILE__, __LINE__);
}

template <class Error, class F>
std::string message_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("of another type: ") + error.what();
  }
  return "";
}

}  // namespace

int main() {
  require_gpu();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // an abort must not swallow what was found
  const Data data = digits(1011);
  const auto reference = create_engine("reference", {.precision = Precision::kFp64});
  const Evaluation want = evaluate(*reference, data, Placement::kDevice);
  for (const auto& row : engines()) {
    if (row.info.device != "cuda") continue;
    for (const auto precision : row.info.precisions) {
      const auto what = row.info.name + " " + to_string(precision);
      if (const std::string reason = row.unavailable(precision, 0); !reason.empty()) {
        not_tested(what, reason);
        const auto sentence = message_of<UnavailableError>([&] { create_engine(row.info.name, {precision}); });
        report(sentence.ends_with(": " + reason), what + ": " + sentence, __FILE__, __LINE__);
        continue;
      }
      const auto engine = create_engine(row.info.name, {.precision = precision});
      test_training(*engine, data, what);
      test_step_is_probe(*engine, data, what);
      test_evaluation(*engine, want, data, what);
      if (row.info.name == "cudnn") test_plans_left_behind({.precision = precision}, data, what);
    }
    const auto sentence =
        message_of<ArgumentError>([&] { create_engine(row.info.name, {row.info.precisions[0], 0, 1000}); });
    report(sentence.starts_with("device is 1000, expected 0 to "), row.info.name + " on GPU 1000: " + sentence,
           __FILE__, __LINE__);
  }
  return finish();
}
