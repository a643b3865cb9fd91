// Steps of `fused` with trace points: how long one takes, and when each block passed which point. For
// scripts/check trace, which builds this with MNIST_TRACE and reads what it prints.
//
//     trace_step PRECISION BATCH < DATA      DATA: the number of images (int64), the images, their labels
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <random>

#include "cuda/graph.h"
#include "engines/fused/device_set.h"
#include "engines/fused/steps.h"
#include "kernels/fused/state.h"

using namespace mnist;
using namespace mnist::fused;

namespace {

constexpr int kSteps = Arena::kMostSteps, kRuns = 9, kFirstPrinted = 20, kLastPrinted = 28;
constexpr std::int64_t kOfStep = std::int64_t(kTracePhases) * kTracePoints * kTraceBlocks;

template <class T>
std::vector<T> read(std::int64_t count) {
  std::vector<T> values(count);
  std::cin.read(reinterpret_cast<char*>(values.data()), count * std::int64_t(sizeof(T)));
  MNIST_REQUIRE(std::cin, "trace_step: the data ends early");
  return values;
}

void trace_steps(Precision precision, std::int64_t batch) {
  const auto count = read<std::int64_t>(1)[0];
  const auto images = read<std::uint8_t>(count * kImagePixels), labels = read<std::uint8_t>(count);
  cuda::Stream stream;
  GpuTimer timer{cuda::EventClock(stream.get())};
  Steps steps({.precision = precision}, stream, timer);
  steps.reserve(batch);
  DeviceSet data;
  data.reserve(count, stream.get());
  data.fill(0, images.data(), labels.data(), count, stream.get());

  const Arena& arena = steps.arena();
  cuda::DeviceBuffer<float> slab(kParameterCount);
  initialize_slab(slab.data(), Pcg64(0), stream.get());
  slab_to_engine(arena.parameters(), slab.data(), stream.get());
  steps.repack_weights();
  steps.set_upstream(1);
  std::mt19937 random(1);
  std::vector<std::int32_t> order((kSteps + 1) * batch);
  for (auto& sample : order) sample = std::int32_t(random() % unsigned(count));
  cuda::upload(arena.order(), order, stream.get());
  cuda::upload(arena.rates(), std::vector<float>(kSteps, 0.02f), stream.get());
  cuda::DeviceBuffer<ulonglong2> trace(kSteps * kOfStep);
  cuda::fill_bytes(trace.data(), 0, trace.size(), stream.get());

  PlannedStep step = steps.training_step(batch, data.samples(arena.order()));
  steps.start_batch_norm(step.state);
  const auto graph = cuda::capture(stream.get(), [&] {
    for (int k = 0; k < kSteps; ++k) {
      step.state.trace = trace.data() + k * kOfStep;
      steps.queue(step, k);
    }
  });
  graph.launch(stream.get());
  std::vector<double> times;
  for (int run = 0; run < kRuns; ++run) {
    cuda::EventClock clock(stream.get());
    clock.restart();
    clock.stamp();
    for (int k = 0; k < 8; ++k) graph.launch(stream.get());
    clock.stamp();
    times.push_back(1e6 * clock.take()[0].seconds / (8 * kSteps));
  }
  std::ranges::sort(times);
  std::printf("time %.3f %.3f %.3f\n", times[kRuns / 2], times.front(), times.back());
  std::vector<ulonglong2> points(trace.size());
  cuda::download(points, trace.data(), stream.get());
  for (std::int64_t i = kFirstPrinted * kOfStep; i < kLastPrinted * kOfStep; ++i)
    if (points[i].x != 0)
      std::printf("%d %d %d %d %llu %llu %d\n", int(i / kOfStep), int(i / (kTracePoints * kTraceBlocks) % kTracePhases),
                  int(i / kTraceBlocks % kTracePoints), int(i % kTraceBlocks), points[i].x,
                  points[i].y & ((1ull << kClockBits) - 1), int(points[i].y >> kClockBits));
}

}  // namespace

int main(int count, char** arguments) try {
  MNIST_REQUIRE(count == 3, "trace_step: expected a precision and a batch size");
  const std::string name = arguments[1];
  const Precision all[] = {Precision::kFp32, Precision::kTf32, Precision::kBf16};
  const auto precision = std::ranges::find(all, name, [](Precision p) { return std::string(to_string(p)); });
  MNIST_REQUIRE(precision != std::end(all), "trace_step: precision is '" << name << "', expected fp32, tf32 or bf16");
  trace_steps(*precision, std::stoll(arguments[2]));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
