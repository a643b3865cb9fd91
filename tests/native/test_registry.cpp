// An engine is a class and a row: one that only this program has is found, made and checked as all others are.
#include "dummy_engine.h"

using namespace mnist;
using namespace testing;

namespace {

std::unique_ptr<Engine> create_dummy(const EngineInfo& info, const EngineOptions& options) {
  return std::make_unique<Dummy>(info, options);
}

// What an action throws.
template <class Error, class Action>
std::string sentence(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("of another type: ") + error.what();
  }
  return "nothing was thrown";
}

}  // namespace

int main() {
  const auto all = engines();
  std::vector<EngineRow> rows(all.begin(), all.end());
  rows.push_back({{.name = "dummy", .summary = "a test's", .device = "cpu", .precisions = {Precision::kFp32}},
                  [](Precision, int) { return std::string(); },
                  create_dummy});
  rows.push_back({{.name = "absent", .summary = "a test's", .device = "cpu", .precisions = {Precision::kFp32}},
                  [](Precision, int) { return std::string("it is not here"); },
                  nullptr});

  const auto engine = create_engine("dummy", {}, rows);
  CHECK(engine->info().name == "dummy");
  const std::vector<std::uint8_t> image(kImagePixels), label(1);
  engine->set_dataset(image, label);
  StepResult result;
  engine->train(std::vector<std::int32_t>{0}, 1, std::vector<double>{0.5}, {&result, 1});
  std::vector<double> values(kParameterCount);
  engine->get_parameters(std::span(values));
  CHECK(values == std::vector<double>(kParameterCount, -0.5));

  // The checks and their words come with the seam and the row.
  CHECK(sentence<ArgumentError>([&] {
          engine->train(std::vector<std::int32_t>{1}, 1, std::vector<double>{0.5}, {&result, 1});
        }).starts_with("train: order[0] is 1, expected 0 to 0"));
  const Routing routing;
  CHECK(sentence<ArgumentError>([&] { engine->probe(image, label, {.routing = &routing}); }) ==
        "probe: engine 'dummy' follows no routing, expected none");
  CHECK(sentence<ArgumentError>([&] { create_engine("dummy", {.precision = Precision::kBf16}, rows); }) ==
        "engine 'dummy' has no precision bf16, it offers fp32");
  CHECK(sentence<ArgumentError>([&] { create_engine("dummy", {.limits = {24, 99000}}, rows); }) ==
        "engine 'dummy' takes no limits, expected none");
  CHECK(sentence<UnavailableError>([&] { create_engine("absent", {}, rows); }) ==
        "engine 'absent' cannot run here: it is not here");
  // Images that cannot be copied leave none, of which every use says so; those that are refused leave the old ones.
  auto& dummy = static_cast<Dummy&>(*engine);
  const std::vector<std::uint8_t> wrong{10};
  const auto train = [&] { engine->train(std::vector<std::int32_t>{0}, 1, std::vector<double>{0.5}, {&result, 1}); };
  const auto set = [&](auto& labels) { engine->set_dataset(image, labels); };
  const auto set_evaluated = [&](auto& labels) { engine->set_evaluation_set(image, labels); };
  engine->compute_statistics();
  for (const bool full : {false, true, false}) {
    dummy.full = full;
    if (full) {
      CHECK(sentence<std::bad_alloc>([&] { set(label); }) == std::bad_alloc().what());
      CHECK(sentence<std::bad_alloc>([&] { set_evaluated(label); }) == std::bad_alloc().what());
      CHECK(sentence<ArgumentError>(train) == "train: no data set; call set_dataset first");
      CHECK(sentence<ArgumentError>([&] { engine->compute_statistics(); }).starts_with("compute_statistics: no data"));
      CHECK(sentence<ArgumentError>([&] { engine->profile(1, 1); }) == "profile: no data set; call set_dataset first");
      CHECK(sentence<ArgumentError>([&] { engine->evaluate(); }).starts_with("evaluate: no images"));
    } else {
      set(label);
      set_evaluated(label);
      CHECK(sentence<ArgumentError>([&] { set(wrong); }).starts_with("set_dataset: label 0 is 10"));
      CHECK(sentence<ArgumentError>([&] { set_evaluated(wrong); }).starts_with("set_evaluation_set: label 0 is 10"));
      engine->evaluate();
      train();
      engine->compute_statistics();
    }
    CHECK(engine->dataset_size() == !full);
    CHECK(engine->evaluation_size() == !full);
  }

  CHECK(
      sentence<ArgumentError>([&] { create_engine("dummy", {}); }).starts_with("engine 'dummy' is unknown, expected"));
  return finish();
}
