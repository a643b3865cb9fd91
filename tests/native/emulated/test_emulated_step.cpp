// A whole step of `naive`, `tiled` and `layerwise` in the emulator, beside `reference`, which follows their
// decisions: loss, scores and every gradient; then training steps, most of them launches of a recorded graph.
#include <chrono>
#include <memory>

#include "emulator.h"
#include "profile/kernel_use.h"
#include "testing.h"

namespace mnist {
namespace cuda {
std::vector<std::vector<KernelUse>> kernels_between_events(cudaGraph_t) { return {}; }  // of profile()
}  // namespace cuda
std::unique_ptr<Engine> create_reference(const EngineInfo& info, const EngineOptions& options);
std::unique_ptr<Engine> create_naive(const EngineInfo& info, const EngineOptions& options);
std::unique_ptr<Engine> create_tiled(const EngineInfo& info, const EngineOptions& options);
std::unique_ptr<Engine> create_layerwise(const EngineInfo& info, const EngineOptions& options);
}  // namespace mnist

using namespace mnist;

namespace {

using Create = std::unique_ptr<Engine> (*)(const EngineInfo&, const EngineOptions&);

constexpr std::int64_t kBatch = 4;
// Of a gradient in float32, relative L2: half of what mnist_cuda/engine/tolerances.py allows conv1.weight.
constexpr double kBound = 1e-4;

std::unique_ptr<Engine> make(Create create, const char* name, Precision precision) {
  const EngineInfo info{.name = name, .precisions = {precision}, .follows_routing = true};
  auto engine = create(info, {.precision = precision});
  engine->set_parameters(std::span<const double>(testing::random_parameters()));
  return engine;
}

const std::vector<std::uint8_t> labels{3, 8, 0, 9};
std::vector<std::uint8_t> make_images() {
  std::mt19937 rng(2);
  std::vector<std::uint8_t> images(kBatch * kImagePixels);
  for (auto& u : images) u = std::uint8_t(rng() % 2 ? rng() : 0);
  return images;
}

void check_step(Create create, const char* name) {
  const auto images = make_images();
  const auto engine = make(create, name, Precision::kFp32);
  emulator::reset();
  const auto start = std::chrono::steady_clock::now();
  const Probe got = engine->probe(images, labels);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const auto reference = make(create_reference, "reference", Precision::kFp64);
  const Probe want = reference->probe(images, labels, {.routing = &got.routing});
  std::printf("%s: a step of %lld images in %.1f s\n", name, (long long)kBatch, seconds.count());
  CHECK(std::abs(got.loss - want.loss) <= 1e-6 * want.loss);
  CHECK_CLOSE(got.logits, want.logits, 1e-5, std::string(name) + " scores");
  for (const auto& p : kParameters) {
    const auto part = [&](const std::vector<double>& all) {
      return std::vector<double>(all.begin() + p.offset, all.begin() + p.offset + p.size);
    };
    CHECK_CLOSE(part(got.gradients), part(want.gradients), kBound, std::string(name) + " gradient of " + p.name);
  }
  const auto faults = emulator::report().faults;
  testing::report(faults.empty(), emulator::to_words({faults, {}, {}}), __FILE__, __LINE__);
}

void check_training(Create create, const char* name) {
  const auto images = make_images();
  const std::vector<std::int32_t> order{0, 1, 2, 3, 3, 1, 0, 2, 1, 3};
  const std::vector<double> rates(5, 0.05);
  std::vector<StepResult> got(5), want(5);
  std::vector<double> trained(kParameterCount), expected(kParameterCount);
  const auto engine = make(create, name, Precision::kFp32);
  const auto reference = make(create_reference, "reference", Precision::kFp64);
  emulator::reset();
  engine->set_dataset(images, labels);
  reference->set_dataset(images, labels);
  engine->train(order, 2, rates, got);
  reference->train(order, 2, rates, want);
  for (std::size_t k = 0; k < got.size(); ++k)
    testing::report(std::abs(got[k].loss - want[k].loss) <= 1e-4 * want[k].loss,
                    std::string(name) + ": loss of step " + std::to_string(k) + " is " + std::to_string(got[k].loss) +
                        ", expected " + std::to_string(want[k].loss),
                    __FILE__, __LINE__);
  engine->get_parameters(std::span<double>(trained));
  reference->get_parameters(std::span<double>(expected));
  CHECK_CLOSE(trained, expected, 1e-5, std::string(name) + " parameters after five steps");
  const auto faults = emulator::report().faults;
  testing::report(faults.empty(), emulator::to_words({faults, {}, {}}), __FILE__, __LINE__);
}

}  // namespace

int main() {
  emulator::set_orders(1);  // the tests of the ops take more
  check_step(create_naive, "naive");
  check_step(create_tiled, "tiled");
  check_step(create_layerwise, "layerwise");
  check_training(create_tiled, "tiled");
  check_training(create_layerwise, "layerwise");
  return testing::finish();
}
