// What engine `cudnn` does where a library has less to offer, as on an older GPU: each choice of each layer is refused
// once, and another one computes the same and is named; where all are refused, the error says what became of them.
#include <map>
#include <numeric>

#include "cudnn_cases.h"

using namespace testing;

namespace {

constexpr std::int64_t kBatch = 8;
constexpr const char* kByWay = " by way of PyTorch's order";
constexpr const char* kOlder = "older interface";

struct Case {
  bool product;  // of factors, which the precision rounds
  std::function<Lines(const Setup&)> run;
};

std::vector<Case> cases() {
  const Input normal{"normal", random_normal<float>(kBatch * kChannels * kArea, 1)};
  return {
      {true, [](auto& setup) { return test_conv2d(setup, kBatch, "conv1", 1, kConv1Channels, kImageSide); }},
      {true,
       [](auto& setup) { return test_conv2d(setup, kBatch, "conv2", kConv1Channels, kConv2Channels, kPool1Side); }},
      {false, [](auto& setup) { return test_batch_norm(setup, kBatch); }},
      {false, [normal](auto& setup) { return test_max_pool2d_relu(setup, kBatch, normal); }},
  };
}

// What is said of `op` in lines "op: choice", in "op by way of PyTorch's order: choice" behind those words; else empty.
std::string choice_of(const Lines& lines, const std::string& op) {
  for (const auto& line : lines) {
    if (line.starts_with(op + ": ")) return line.substr(op.size() + 2);
    if (line.starts_with(op + kByWay)) return line.substr(op.size() + 1);
  }
  return "";
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UnavailableError& error) {
    return error.what();
  }
  return "";
}

// The case runs with `refuse` and gets the same results, which it checks itself.
Lines run_refused(const Case& test, Precision precision, Refusal refuse) {
  Setup setup(precision, kBatch, true);
  setup.name += ", refused";
  setup.libraries.refuse = std::move(refuse);
  return test.run(setup);
}

// A layer's choices are refused in one run each time, since the plans of a run take seconds to find.
void test_layer(const Case& test, Precision precision) {
  const std::string name = to_string(precision);
  const Lines lines = test.run(Setup(precision, kBatch, true));
  CHECK(!lines.empty());
  std::map<std::string, std::string> first;  // of the ops that have another choice
  for (const auto& line : lines) {
    const std::string op = line.substr(0, line.find(": ")), choice = choice_of(lines, op);
    if (choice.empty() || choice.starts_with(kOlder)) {  // less is not to be had
      std::printf("%s %s\n", name.c_str(), line.c_str());
    } else {
      first[op] = choice;
    }
  }
  if (first.empty()) return;

  const auto is_first = [&](auto& op, auto& choice) { return first.contains(op) && choice == first[op]; };
  const Lines without_first = run_refused(test, precision, is_first);
  for (const auto& [op, choice] : first) {
    const auto second = choice_of(without_first, op);
    std::printf("%s %s: %s -> %s\n", name.c_str(), op.c_str(), choice.c_str(), second.c_str());
    report(!second.empty() && second != choice, name + " " + op + " without its first choice: " + second, __FILE__,
           __LINE__);
  }

  if (!test.product || precision == Precision::kFp32) {
    const Lines last = run_refused(test, precision, [&](auto& op, auto&) { return first.contains(op); });
    for (const auto& [op, choice] : first) {
      const auto found = choice_of(last, op);
      report(found.starts_with(test.product ? kByWay + 1 : kOlder), name + " " + op + " without any: " + found,
             __FILE__, __LINE__);
      report(test.product || found.find("refused by a test") != std::string::npos, op + " does not say why: " + found,
             __FILE__, __LINE__);
    }
  }
  if (!test.product) return;
  for (const auto& [op, choice] : first) {
    const auto refuse_both = [&](auto& asked, auto&) { return asked.starts_with(op); };
    const auto error = message_of([&] { run_refused(test, precision, refuse_both); });
    report(error.starts_with("cuDNN has no deterministic algorithm for " + op + " in " + name + " with batch 8: ") &&
               error.find("refused by a test") != std::string::npos,
           name + " " + op + " without any: " + error, __FILE__, __LINE__);
    if (precision != Precision::kFp32) break;  // the rest of the words is the same
  }
}

void test_epilogues(Precision precision) {
  const bool plain = precision == Precision::kFp32;
  for (const bool relu : {true, false})
    for (const char* op : {"linear forward", "linear backward weight"}) {
      const int in = relu ? kFeatures : kHidden, out = relu ? kHidden : kClasses;
      if (!relu && std::string(op) == "linear backward weight") continue;  // fc2 has no epilogue there
      Setup setup(precision, kBatch, true);
      setup.libraries.refuse = [op](auto& asked, auto&) { return asked == op; };
      Lines lines;
      const auto error = message_of([&] { lines = test_linear(setup, kBatch, in, out, relu); });
      report(plain ? lines.size() == 1 && lines[0].starts_with(op) : error.find(op) != std::string::npos,
             setup.name + " " + op + " without an epilogue: " + (lines.empty() ? error : lines[0]), __FILE__, __LINE__);
    }
}

struct Trained {
  Probe probe;
  std::vector<double> losses;
  Lines algorithms;
};

// What mnist_cuda/engine/tolerances.py says of `cudnn` in fp32 for a batch of 8, and of the loss over several steps.
constexpr double kFp32Bound = 1e-5, kLossBound = 1e-4;
double gradient_bound(int parameter) {
  if (parameter == kConv1Bias || parameter == kConv2Bias) return 0;
  if (parameter == kConv1Weight) return 3e-4;
  return parameter == kConv2Weight ? 2e-4 : kFp32Bound;
}

// A probe, which follows a routing if one is given, and five steps, of which the later ones come from a graph.
Trained train(Engine& engine, const Routing* routing = nullptr) {
  constexpr std::int64_t kSteps = 5;
  std::mt19937 rng(3);
  std::vector<std::uint8_t> images(kSteps * kBatch * kImagePixels), labels(kSteps * kBatch);
  for (auto& pixel : images) pixel = std::uint8_t(rng());
  for (auto& label : labels) label = std::uint8_t(rng() % kClasses);
  auto parameters = random_normal<double>(kParameterCount, 1);
  for (auto& value : parameters) value = float(0.02 * value);
  Trained trained;
  engine.set_parameters(parameters);
  trained.probe = engine.probe(std::span(images).first(kBatch * kImagePixels), std::span(labels).first(kBatch),
                               {.routing = routing});
  engine.set_dataset(images, labels);
  std::vector<std::int32_t> order(labels.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<StepResult> results(kSteps);
  engine.train(order, kBatch, std::vector<double>(kSteps, 0.01), results);
  for (const auto& result : results) trained.losses.push_back(result.loss);
  trained.algorithms = engine.algorithms();
  return trained;
}

// The whole engine with nothing but what every choice falls back to, in float32: against float64, which follows its
// decisions.
void test_engine() {
  const auto& row = *std::ranges::find_if(engines(), [](const auto& r) { return r.info.name == "cudnn"; });
  const EngineOptions options{.precision = Precision::kFp32};
  const auto last_resort = [](auto& op, auto&) { return op.find(kByWay) == std::string::npos; };
  const Trained got = train(*create_refusing(row.info, options, last_resort));
  const auto oracle = create_engine("naive", {.precision = Precision::kFp64});
  const Trained want = train(*oracle, &got.probe.routing);
  CHECK_CLOSE(got.probe.logits, want.probe.logits, kFp32Bound, "logits by the last resorts");
  for (int p = 0; p < int(kParameters.size()); ++p) {
    const auto of = [&](const Probe& probe) {
      const auto begin = probe.gradients.begin() + kParameters[p].offset;
      return std::vector(begin, begin + kParameters[p].size);
    };
    CHECK_CLOSE(of(got.probe), of(want.probe), gradient_bound(p),
                std::string(kParameters[p].name) + " by last resorts");
  }
  CHECK_CLOSE(got.losses, want.losses, kLossBound, "losses by the last resorts");
  for (const auto& line : got.algorithms) {
    std::printf("%s\n", line.c_str());
    report(line.find(kByWay) != std::string::npos || line.find(kOlder) != std::string::npos ||
               line.find("of their own") != std::string::npos || line.find("of its own") != std::string::npos,
           "refused, and yet " + line, __FILE__, __LINE__);
  }
  CHECK(got.algorithms.size() >= train(*create_engine("cudnn", options)).algorithms.size());
  const auto nothing = create_refusing(row.info, options, [](auto&, auto&) { return true; });
  const auto error = message_of([&] { train(*nothing); });
  report(error.starts_with("cuDNN has no deterministic algorithm for conv1 forward in fp32"), "nothing left: " + error,
         __FILE__, __LINE__);
}

}  // namespace

// All of it takes minutes: with an argument it is one precision's, or the engine's.
int main(int count, char** arguments) {
  require_gpu();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // an abort must not swallow what was found
  const std::string only = count > 1 ? arguments[1] : "";
  for (const auto precision : cudnn_precisions()) {
    if (!only.empty() && only != to_string(precision)) continue;
    for (const auto& test : cases())
      if (test.product || precision != Precision::kTf32) test_layer(test, precision);
    test_epilogues(precision);
  }
  if (only.empty() || only == "engine") test_engine();
  if (checks == 0) skip(cuda::gpu_lacks(cuda::kTensorCapability, 0));
  return finish();
}
