// Checks and times every row of the ladders; no kernel is named here.
#include "mnist/op_bench.h"

#include <algorithm>
#include <functional>
#include <span>

#include "bench/op_cases.h"
#include "bench/roofs.h"
#include "cuda/graph.h"
#include "cuda/stream.h"
#include "mnist/engine.h"
#include "profile/kernel_use.h"

namespace mnist {
namespace {

constexpr int kColdRuns = 15, kWarmBlocks = 9;
constexpr double kBlockSeconds = 2e-3;  // of back-to-back runs: long against the cost of reading the clock

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ptrdiff_t(values.size() / 2));
  return values[values.size() / 2];
}

double error_of(const bench::OpCase& op, bool channels_last, const cuda::Stream& stream) {
  std::vector<double> got = bench::output_of(op, stream.get());
  if (channels_last) got = bench::swapped(got, op.area, op.channels);
  return bench::relative_error(got, op.want);
}

using Run = std::function<void(cudaStream_t)>;

class Timer {
 public:
  explicit Timer(const cuda::Stream& stream) : stream_(stream) {
    int device = 0, cache = 0;
    MNIST_CHECK(cudaGetDevice(&device));
    MNIST_CHECK(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device));
    flush_.reserve(4 * std::int64_t(cache));
  }

  // Between runs something larger than the L2 cache is written.
  double cold(const Run& run) {
    std::vector<double> times;
    for (int repeat = 0; repeat < kColdRuns; ++repeat) {
      cuda::fill_bytes(flush_.data(), 0, flush_.size(), stream_.get());
      times.push_back(seconds([&] { run(stream_.get()); }));
    }
    return median(times);
  }

  // Runs one after the other, recorded as a graph so that the host's launches do not show.
  double warm(const Run& run, double estimate) {
    const int repeats = std::clamp(int(kBlockSeconds / estimate), 1, 1000);
    const auto graph = cuda::capture(stream_.get(), [&] {
      for (int repeat = 0; repeat < repeats; ++repeat) run(stream_.get());
    });
    graph.launch(stream_.get());
    std::vector<double> times;
    for (int block = 0; block < kWarmBlocks; ++block)
      times.push_back(seconds([&] { graph.launch(stream_.get()); }) / repeats);
    return median(times);
  }

 private:
  template <class F>
  double seconds(F&& queue) {
    start_.record(stream_.get());
    queue();
    stop_.record(stream_.get());
    return cuda::elapsed_ms(start_, stop_) / 1e3;
  }

  const cuda::Stream& stream_;
  cuda::Event start_{0}, stop_{0};
  cuda::DeviceBuffer<std::uint8_t> flush_;
};

void add_library_ratios(std::span<OpTiming> rows) {
  for (auto& row : rows)
    for (const auto& other : rows)
      if (other.library && other.unit == row.unit && row.absent.empty() && other.absent.empty())
        row.library_ratio = std::max(row.library_ratio, row.cold_seconds / other.cold_seconds);
}

}  // namespace

Roofs measure_roofs(int device) {
  const std::string reason = cuda_device_reason(device);
  if (!reason.empty()) throw UnavailableError("no GPU to measure: " + reason);
  const cuda::DeviceGuard guard(device);
  return bench::measure_roofs(cuda::Stream());
}

OpReport bench_ops(const std::string& wanted, const std::string& variant, std::int64_t batch, int device) {
  MNIST_REQUIRE(batch > 0, "bench: batch size is " << batch << ", expected at least 1");
  std::string names;
  bool known = wanted.empty();
  for (const auto& entry : bench::op_entries()) {
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
    known |= wanted == entry.name;
  }
  MNIST_REQUIRE(known, "bench: op '" << wanted << "' is unknown, expected one of " << names);
  const std::string reason = cuda_device_reason(device);
  if (!reason.empty()) throw UnavailableError("bench ops cannot run here: " + reason);
  const cuda::DeviceGuard guard(device);
  const cuda::Stream stream;
  Timer timer(stream);
  OpReport report{bench::measure_roofs(stream), {}};
  const auto measure = [&](OpTiming& row, const bench::OpCase& op, const auto& rung) {
    cuda::fill_bytes(op.output.data(), 0xff, op.output.size(), stream.get());  // NaN where nothing is written
    rung.run(stream.get());
    row.error = error_of(op, rung.channels_last, stream);
    row.kernels = cuda::kernels_between_events(cuda::record(stream.get(), [&] { rung.run(stream.get()); }).get())[0];
    row.cold_seconds = timer.cold(rung.run);
    row.warm_seconds = timer.warm(rung.run, row.cold_seconds);
    const double flops = report.roofs.flops(row.unit);
    const double least = std::max(row.bytes / report.roofs.bytes_per_second, row.flops / flops);
    if (flops > 0) row.percent_of_roof = 100 * least / row.cold_seconds;
  };
  for (const auto& entry : bench::op_entries()) {
    if (!wanted.empty() && wanted != entry.name) continue;
    const bench::OpCase op = entry.make(batch, stream.get());
    const std::size_t first = report.rows.size();
    for (const auto& rung : op.ladder) {
      if (!variant.empty() && variant != rung.name) continue;
      OpTiming row{entry.name, op.shape, rung.name, rung.why};
      row.library = rung.library;
      row.unit = kernels::name_of(rung.unit);
      row.absent = rung.absent;
      row.bytes = op.cost.bytes;
      row.flops = op.cost.flops;
      row.bound = std::max(op.bound, rung.own_error);
      try {
        if (row.absent.empty()) measure(row, op, rung);
      } catch (const UnavailableError& error) {  // a library without an algorithm for the shape
        row.absent = error.what();
      }
      report.rows.push_back(row);
    }
    add_library_ratios(std::span(report.rows).subspan(first));
  }
  return report;
}

}  // namespace mnist
