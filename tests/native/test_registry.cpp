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
  CHECK(
      sentence<ArgumentError>([&] { create_engine("dummy", {}); }).starts_with("engine 'dummy' is unknown, expected"));
  return finish();
}
