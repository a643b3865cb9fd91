// Engine `fused`: six kernels a step (kernels/fused/), many steps a CUDA graph, the data set on the GPU.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "cuda/buffer.h"
#include "cuda/event_clock.h"
#include "cuda/graph.h"
#include "cuda/nvtx.h"
#include "cuda/stream.h"
#include "engines/cuda_engine.h"
#include "engines/engines.h"
#include "engines/fused/costs.h"
#include "engines/fused/host_feed.h"
#include "engines/fused/kernels.h"
#include "engines/fused/layout.h"
#include "engines/fused/population.h"
#include "engines/step_timer.h"
#include "mnist/thresholds.h"

namespace mnist {
namespace {

using namespace fused;
using cuda::DeviceBuffer;

constexpr int kUnroll = 32;                        // steps of the longest graph; 16, 8, ... serve the rest
constexpr std::int64_t kEvalChunk = 4096;          // images scored at once under population statistics
constexpr std::int64_t kLargestScanned = 1 << 16;  // by batch_thresholds(): a data set
constexpr std::int64_t kFedChunk = 8192;  // images of host-fed steps that are queued at once: a millisecond or two

// What decides which kernels run, and how they cut up a batch.
struct Means {
  int multiprocessors = 0, shared_limit = 0;  // bytes of shared memory a block
  bool overlap = false, wgmma = false;
  bool hopper = false;
  bool limited = false;  // not the GPU's own
};

// The selected GPU's; or, by MNIST_CUDA_FUSED_LIMITS=MULTIPROCESSORS,BYTES, those of a smaller one from before Hopper,
// so that what runs there can be tested here.
Means means_of(int device, const Kernels& kernels) {
  Means means{.overlap = kernels.overlaps(), .wgmma = runs_wgmma()};
  MNIST_CHECK(cudaDeviceGetAttribute(&means.multiprocessors, cudaDevAttrMultiProcessorCount, device));
  int major = 0;
  MNIST_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  means.hopper = major == 9;
  MNIST_CHECK(cudaDeviceGetAttribute(&means.shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const char* text = std::getenv("MNIST_CUDA_FUSED_LIMITS");
  if (!text || !*text) return means;
  Means limits{.limited = true};
  int length = 0;
  const int needed = kernels.shared_needed();
  const bool numbers = std::sscanf(text, "%d,%d%n", &limits.multiprocessors, &limits.shared_limit, &length) == 2;
  const auto between = [](int value, int low, int high) { return low <= value && value <= high; };
  MNIST_REQUIRE(numbers && !text[length] && between(limits.multiprocessors, 2, means.multiprocessors) &&
                    between(limits.shared_limit, needed, means.shared_limit),
                "MNIST_CUDA_FUSED_LIMITS is '" << text << "', expected MULTIPROCESSORS,BYTES, on this GPU 2 to "
                                               << means.multiprocessors << " and " << needed << " to "
                                               << means.shared_limit);
  return limits;
}

class FusedEngine final : public Engine {
 public:
  FusedEngine(const EngineInfo& info, const EngineOptions& options)
      : Engine(info, options),
        device_(options.device),
        kernels_(kernels_for(options.precision)),
        value_bytes_(options.precision == Precision::kBf16 ? 2 : 4) {
    cuda::DeviceGuard guard(device_);
    means_ = means_of(device_, kernels_);
    state_.overlap = means_.overlap;
    state_.wgmma = means_.wgmma;
    stream_.emplace();
    timer_.emplace(cuda::EventClock(stream()));
    feed_.emplace();
    parameters_.reserve(kParameterCount);
    gradients_.reserve(kParameterCount);
    scalars_.reserve(2);
    reserve_results(window_results_, kUnroll);
    state_.parameters = parameters_.data();
    state_.scalars = scalars_.data();
    carve(small_, [&](auto place) {
      place(state_.conv2_forward, kConv2Values * value_bytes_);
      place(state_.conv2_data, kConv2Values * value_bytes_);
      place(state_.conv2_pieces, std::max<std::int64_t>(DgradFilter::kBytes, kConv2Values * 4));  // its zeros stay
      place(state_.conv2_units, 2 * 4);
      place(state_.conv2_max, kConv2Values / 32 * 4);
      if (shadow()) place(state_.fc1, kHidden * kFeatures * value_bytes_);
      place(state_.conv1, 2 * 4 * kConv1Channels * 16 * 2);
      place(state_.bn1, 4 * kConv1Channels * 4);
      place(state_.bn2, 5 * kConv2Channels * 4);
      place(state_.bn2_sign, kConv2Channels * 4);
      place(state_.moments, kConv1Blocks * kMoments * 8);
    });
    if (!shadow()) state_.fc1 = parameters_.data() + kParameters[kFc1Weight].offset;
    cuda::fill_bytes(small_.data(), 0, small_.size(), stream());
    cuda::fill_bytes(parameters_.data(), 0, kParameterCount, stream());
    stream_->synchronize();
  }

  std::string arithmetic() const override {
    const std::string name = Engine::arithmetic();
    switch (options().precision) {
      case Precision::kFp32:
        return name + (means_.wgmma ? " (3xfp16 in convolutions, 3xtf32)" : " (3xtf32)");
      case Precision::kTf32:
        return name + (means_.wgmma ? " (fp16 in units of powers of two in convolutions)" : "");
      default:
        return name;
    }
  }

  std::vector<std::int64_t> batch_thresholds() const override {
    return thresholds_of(kLargestScanned,
                         [this](std::int64_t batch) { return kernels_.schedule(state_for(batch, {})); });
  }
  std::int64_t evaluation_chunk() const override { return kEvalChunk; }

  std::vector<std::string> algorithms() const override {
    if (means_.hopper && !means_.wgmma)
      return {"without wgmma, which this GPU has: the code was compiled for sm_90, not for sm_90a"};
    if (!means_.limited) return {};
    return {"as if this GPU had " + std::to_string(means_.multiprocessors) + " multiprocessors, " +
            std::to_string(means_.shared_limit) + " bytes of shared memory a block and neither wgmma nor overlapping " +
            "launches (MNIST_CUDA_FUSED_LIMITS)"};
  }

 private:
  // One allocation for many arrays: list(place) calls place(pointer, bytes) for each, once to add up and once to point.
  template <class List>
  static void carve(DeviceBuffer<std::uint8_t>& memory, List list) {
    std::int64_t bytes = 0;
    const auto place = [&](auto*& pointer, std::int64_t size) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory.data() + bytes);
      bytes += (size + 255) / 256 * 256;
    };
    list(place);
    memory.reserve(bytes);
    bytes = 0;
    list(place);
  }
  // StepResult's padding is copied too.
  void reserve_results(DeviceBuffer<StepResult>& results, std::int64_t count) {
    if (results.reserve(count)) cuda::fill_bytes(results.data(), 0, count, stream());
  }
  // fp32 computes with the parameters themselves, the others with a rounded copy of fc1.weight.
  bool shadow() const { return options().precision != Precision::kFp32; }
  cudaStream_t stream() const { return stream_->get(); }

  void do_set_parameters(std::span<const double> values) override {
    cuda::DeviceGuard guard(device_);
    cuda::upload(parameters_.data(), slab_to_engine(values), stream());
    kernels_.pack(state_, stream());
    stream_->synchronize();
  }

  void do_get_parameters(std::span<double> values) const override {
    cuda::DeviceGuard guard(device_);
    download_slab(values, parameters_.data());
  }

  void download_slab(std::span<double> values, const float* from) const {
    std::vector<float> slab(kParameterCount);
    cuda::download(slab, from, stream());
    slab_to_torch(values, slab);
  }

  void do_set_statistics(std::span<const double> values) override { statistics_.assign(values.begin(), values.end()); }
  void do_get_statistics(std::span<double> values) const override { std::ranges::copy(statistics_, values.begin()); }

  void do_set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                      Placement placement) override {
    cuda::DeviceGuard guard(device_);
    placement_ = placement;
    feed_->clear();
    const auto count = std::int64_t(labels.size());
    if (placement == Placement::kHost) {
      feed_->set_dataset(images, labels);
    } else {
      graphs_.clear();
      data_.reserve(count, stream());
      data_.fill(0, images.data(), labels.data(), count, stream());
      stream_->synchronize();
    }
  }

  // Room for the intermediate values of a batch, one allocation; graphs hold its addresses, so they go when it grows.
  void reserve(std::int64_t batch) {
    if (batch <= reserved_) return;
    graphs_.clear();
    reserved_ = 0;
    const std::int64_t blocks1 = means_.multiprocessors, blocks2 = blocks1 + 1;
    const std::int64_t cells1 = means_.wgmma ? kChunkedImage / 16 : kCells1;  // as B2 wants them
    carve(workspace_, [&](auto place) {
      place(state_.a1, batch * kConv1Channels * cells1 * value_bytes_);
      place(state_.route1, batch * kRoute1Words * 4);
      place(state_.z2, batch * kConv2Channels * cells1 * value_bytes_);
      place(state_.e2, batch * kFeatures * value_bytes_);
      place(state_.g2, batch * kFeatures * value_bytes_);
      place(state_.z2_sums, blocks1 * 2 * kConv2Channels * 4);
      place(state_.h_parts, (blocks1 * 128 + batch) * kHidden * 4);
      place(state_.h, batch * kHidden * 4);
      place(state_.logits, batch * kClasses * 4);
      place(state_.dh, batch * kHidden * value_bytes_);
      place(state_.head_sums, blocks2 * kHeadValues * 4);
      place(state_.g2_sums, 2 * kFeatures * 4);
      place(state_.g2_max, 2 * kCells2 * kGradientWarps * 4);
      place(state_.conv2_sums, blocks2 * kConv2Values * 4);
      place(state_.g1_sums, blocks2 * kConv1Channels * kG1Columns * 4);
      place(state_.moment_sums, blocks2 * kMoments * 8);
      place(window_, (kUnroll + 1) * batch * 4);
    });
    reserved_ = batch;
  }

  State state_for(std::int64_t batch, const Samples& samples) const {
    State s = state_;
    s.samples = samples;
    s.batch = int(batch);
    s.results = window_results_.data();
    kernels_.configure(s, means_.multiprocessors, means_.shared_limit);
    return s;
  }

  void queue_step(const State& s, int slot) {
    const auto costs = launch_costs(s, options().precision);
    const auto mark = [&](const char* phase, const char* does, const LaunchCost& cost) {
      timer_->phase(phase);
      timer_->op(does, cost.cost, cost.unit);
    };
    mark("F1", "conv1, bn1, pool1, conv2", costs.forward1);
    kernels_.forward1(s, slot, stream());
    mark("F2", "bn2, pool2, fc1", costs.forward2);
    kernels_.forward2(s, stream());
    mark("H", "fc2, loss, fc2 backward", costs.head);
    kernels_.head(s, slot, stream());
    mark("B1", "fc1 backward, its SGD", costs.backward1);
    kernels_.backward1(s, stream());
    mark("B2", "conv2 backward", costs.backward2);
    kernels_.backward2(s, slot, stream());
    mark("U", "conv1 backward, SGD", costs.update);
    kernels_.update(s, slot, stream());
    timer_->end_step();
  }

  // `steps` steps over window_, captured once for each batch size, count and data set.
  const cuda::Graph& graph(const State& s, int steps) {
    auto& graph = graphs_[{s.batch, steps, s.samples.images}];
    if (!graph)
      graph = cuda::capture(stream(), [&] {
        for (int slot = 0; slot < steps; ++slot) queue_step(s, slot);
      });
    return graph;
  }

  // Steps of one batch size over samples already on the device. `order` has one batch more than it trains on: the
  // last step still looks ahead. `continues`: the step before did that, for the first one here.
  void run_steps(const Samples& samples, const std::int32_t* order, std::int64_t batch, std::int64_t steps,
                 StepResult* results, bool continues = false) {
    Samples window = samples;
    window.order = window_;
    const State s = state_for(batch, window);
    for (std::int64_t done = 0; done < steps;) {
      const int now = int(std::bit_floor(std::uint64_t(std::min<std::int64_t>(steps - done, kUnroll))));
      cuda::copy(window_, order + done * batch, (now + 1) * batch, stream());
      if (done == 0 && !continues) kernels_.prepare(s, 0, stream());
      if (check_every_step_)
        for (int slot = 0; slot < now; ++slot) {
          queue_step(s, slot);
          stream_->synchronize();
        }
      else
        graph(s, now).launch(stream());
      cuda::copy(results + done, window_results_.data(), now, stream());
      done += now;
    }
  }

  void set_scalars(double learning_rate, double upstream) {
    const float values[2] = {float(learning_rate), float(upstream)};
    cuda::upload(scalars_.data(), values, stream());
  }

  void do_train(std::span<const std::int32_t> order, std::int64_t batch, double learning_rate,
                std::span<StepResult> results) override {
    MNIST_RANGE("train");
    cuda::DeviceGuard guard(device_);
    const auto samples = std::int64_t(order.size());
    batch = std::min(batch, samples);
    const std::int64_t full = samples / batch, rest = samples % batch;
    reserve(batch);
    reserve_results(results_, std::int64_t(results.size()));
    set_scalars(learning_rate, 1);
    if (placement_ == Placement::kHost) {
      train_from_host(order, batch);
    } else {
      order_.reserve(samples + 2 * batch);
      cuda::upload(order_.data(), order, stream());
      cuda::fill_bytes(order_.data() + samples, 0, 2 * batch, stream());
      if (full > 0) run_steps(data_.samples(nullptr), order_.data(), batch, full, results_.data());
      if (rest > 0) run_steps(data_.samples(nullptr), order_.data() + full * batch, rest, 1, results_.data() + full);
    }
    cuda::download(results, results_.data(), stream());
  }

  // Batches come from host memory, in chunks of steps: see HostFeed.
  void train_from_host(std::span<const std::int32_t> order, std::int64_t batch) {
    const auto samples = std::int64_t(order.size());
    const std::int64_t chunk = std::clamp<std::int64_t>(kFedChunk / batch, 1, kUnroll) * batch;
    const std::int64_t chunks = (samples + chunk - 1) / chunk, ring = HostFeed::kParts * chunk;
    if (feed_->reserve(chunk)) graphs_.clear();
    std::vector<std::int32_t> once_around(ring + batch);
    for (std::int64_t i = 0; i < ring + batch; ++i) once_around[i] = std::int32_t(i % ring);
    order_.reserve(ring + batch);
    cuda::upload(order_.data(), once_around, stream());
    const auto send = [&](std::int64_t n) {
      feed_->send(n, order.subspan(n * chunk, std::min(chunk, samples - n * chunk)), *stream_);
    };
    send(0);
    for (std::int64_t n = 0; n < chunks; ++n) {
      if (n + 1 < chunks) send(n + 1);
      const auto count = std::min(chunk, samples - n * chunk), full = count / batch, rest = count % batch;
      const std::int32_t* places = order_.data() + n % HostFeed::kParts * chunk;
      StepResult* results = results_.data() + n * chunk / batch;
      const Samples from = feed_->ring().samples(nullptr);
      if (full > 0) run_steps(from, places, batch, full, results, n > 0);
      if (rest > 0) run_steps(from, places + full * batch, rest, 1, results + full);
      feed_->release(n, *stream_);
    }
  }

  // ---- evaluation --------------------------------------------------------------------------------------------------

  std::vector<double> host_parameters() const {
    std::vector<double> values(kParameterCount);
    download_slab(values, parameters_.data());
    return values;
  }

  void fill_order(std::int64_t count) {
    order_.reserve(2 * count);
    std::vector<std::int32_t> identity(2 * count, 0);
    std::iota(identity.begin(), identity.begin() + count, 0);
    cuda::upload(order_.data(), identity, stream());
    stream_->synchronize();
  }

  void do_logits(std::span<const std::uint8_t> images, BatchNormMode mode, std::span<double> scores) override {
    cuda::DeviceGuard guard(device_);
    const auto total = std::int64_t(images.size()) / kImagePixels;
    const auto chunk = mode == BatchNormMode::kBatch ? total : std::min(total, kEvalChunk);
    reserve(chunk);
    fill_order(chunk);
    scratch_.reserve(chunk, stream());
    cuda::fill_bytes(scratch_.labels.data(), 0, chunk, stream());
    set_scalars(0, 0);
    const auto parameters = host_parameters();
    std::vector<float> logits(chunk * kClasses);
    for (std::int64_t first = 0; first < total; first += chunk) {
      const auto count = std::min(chunk, total - first);
      scratch_.fill(0, images.data() + first * kImagePixels, nullptr, count, stream());
      State s = state_for(count, scratch_.samples(order_.data()));
      kernels_.prepare(s, 0, stream());
      if (mode == BatchNormMode::kPopulation) {
        cuda::upload(state_.bn1, bn1_operand(parameters, statistics_), stream());
        cuda::upload(state_.bn2, bn2_operand(parameters, statistics_), stream());
        s.bn2_given = true;
      }
      kernels_.forward1(s, 0, stream());
      kernels_.forward2(s, stream());
      kernels_.head(s, 0, stream());
      cuda::download(std::span(logits).first(count * kClasses), s.logits, stream());
      std::copy_n(logits.begin(), count * kClasses, scores.begin() + first * kClasses);
    }
  }

  // Calls visit(set, first image of it, count) for pieces of the data set that are on the device.
  template <class Visit>
  void for_each_piece(Visit visit) {
    for (std::int64_t first = 0; first < dataset_size(); first += kEvalChunk) {
      const auto count = std::min(kEvalChunk, dataset_size() - first);
      if (placement_ == Placement::kDevice) {
        visit(Samples{data_.images.data() + first * kImagePixels, data_.labels.data() + first,
                      data_.moments.data() + first * kMoments, order_.data()},
              count);
      } else {
        scratch_.reserve(kEvalChunk, stream());
        scratch_.fill(0, feed_->images() + first * kImagePixels, feed_->labels() + first, count, stream());
        visit(scratch_.samples(order_.data()), count);
      }
    }
  }

  // bn1 exactly, from the moments of all images; bn2 from conv2's outputs under it.
  void do_compute_statistics() override {
    cuda::DeviceGuard guard(device_);
    const auto chunk = std::min(kEvalChunk, dataset_size());
    reserve(chunk);
    fill_order(chunk);
    const auto p = host_parameters();
    statistics_.assign(kStatisticCount, 0.0);

    std::vector<double> moments(kMoments, 0.0), part(kMoments);
    for_each_piece([&](const Samples& samples, std::int64_t count) {
      kernels_.prepare(state_for(count, samples), 0, stream());
      cuda::download(part, state_.moments, stream());
      for (int i = 0; i < kMoments; ++i) moments[i] += part[i];
    });
    set_bn1_statistics(statistics_, p, moments, double(dataset_size()));

    std::vector<double> sums(2 * kConv2Channels, 0.0);
    for_each_piece([&](const Samples& samples, std::int64_t count) {
      const State s = state_for(count, samples);
      kernels_.prepare(s, 0, stream());
      cuda::upload(state_.bn1, bn1_operand(p, statistics_), stream());
      kernels_.forward1(s, 0, stream());
      std::vector<float> blocks(std::size_t(s.f1_blocks) * 2 * kConv2Channels);
      cuda::download(blocks, s.z2_sums, stream());
      for (std::size_t i = 0; i < blocks.size(); ++i) sums[i % sums.size()] += blocks[i];
    });
    set_bn2_statistics(statistics_, p, sums, double(dataset_size()));
  }

  // One batch again and again, launches one after the other: overlapped, one launch's time would be part of another's.
  std::vector<OpTime> do_profile(std::span<const std::int32_t> order, std::int64_t batch) override {
    MNIST_REQUIRE(placement_ == Placement::kDevice,
                  "profile: the data set is on the host, expected it in the GPU's memory");
    cuda::DeviceGuard guard(device_);
    reserve(batch);
    set_scalars(0, 1);
    for (const auto place : {window_, window_ + batch}) cuda::upload(place, order.first(batch), stream());
    State s = state_for(batch, data_.samples(window_));
    s.overlap = false;
    kernels_.prepare(s, 0, stream());
    const auto queue = [&] { queue_step(s, 0); };
    timer_->record(queue);  // the clock makes its events
    return timer_->record([&] {
      const cuda::Graph step = cuda::capture(stream(), queue);
      for (auto steps = std::int64_t(order.size()) / batch; steps > 1; --steps) {
        step.launch(stream());
        timer_->collect();
      }
    });
  }

  // ---- one step seen from inside -----------------------------------------------------------------------------------

  std::vector<double> download_values(const void* from, std::int64_t count) const {
    std::vector<double> values(count);
    if (value_bytes_ == 4) {
      std::vector<float> raw(count);
      cuda::download(raw, static_cast<const float*>(from), stream());
      std::ranges::copy(raw, values.begin());
    } else {
      std::vector<std::uint16_t> raw(count);
      cuda::download(raw, static_cast<const std::uint16_t*>(from), stream());
      std::ranges::transform(raw, values.begin(), [](std::uint32_t bits) { return std::bit_cast<float>(bits << 16); });
    }
    return values;
  }

  Probe do_probe(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                 const ProbeOptions& options) override {
    cuda::DeviceGuard guard(device_);
    const auto batch = std::int64_t(labels.size());
    reserve(batch);
    fill_order(batch);
    scratch_.reserve(batch, stream());
    scratch_.fill(0, images.data(), labels.data(), batch, stream());
    set_scalars(0, options.upstream);
    cuda::fill_bytes(gradients_.data(), 0, kParameterCount, stream());
    DeviceBuffer<std::uint8_t> route2(batch * kPool2Size);
    DeviceBuffer<float> saved(kParameterCount);
    cuda::copy(saved.data(), parameters_.data(), kParameterCount, stream());

    State s = state_for(batch, scratch_.samples(order_.data()));
    s.gradients = gradients_.data();
    s.route2 = route2.data();
    kernels_.prepare(s, 0, stream());
    queue_step(s, 0);

    StepResult result;
    cuda::download(std::span(&result, 1), s.results, stream());
    Probe probe{.loss = result.loss, .correct = result.correct};
    probe.gradients.resize(kParameterCount);
    download_slab(probe.gradients, gradients_.data());
    std::vector<std::uint32_t> route1(batch * kRoute1Words);
    cuda::download(route1, state_.route1, stream());
    probe.routing.pool1 = unpack_route1(route1);
    probe.routing.pool2.resize(batch * kPool2Size);
    cuda::download(probe.routing.pool2, route2.data(), stream());
    probe.h = download_values_of_float(s.h, batch * kHidden);
    probe.logits = download_values_of_float(s.logits, batch * kClasses);
    probe.routing.relu3.resize(batch * kHidden);
    std::ranges::transform(probe.h, probe.routing.relu3.begin(), [](double h) { return std::uint8_t(!(h <= 0)); });

    const auto e2 = download_values(s.e2, batch * kFeatures);
    std::vector<float> bn2(256);
    cuda::download(bn2, s.bn2, stream());
    probe.a2.resize(batch * kFeatures);
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t k = 0; k < kFeatures; ++k) {
        const double y = bn2[k % 64] * e2[b * kFeatures + k] + bn2[64 + k % 64];
        probe.a2[b * kFeatures + torch_feature(k)] = y <= 0 ? 0 : y;
      }
    // A learning rate of 0 leaves parameters alone, but not where a gradient is infinite.
    cuda::copy(parameters_.data(), saved.data(), kParameterCount, stream());
    kernels_.pack(state_, stream());
    stream_->synchronize();
    return probe;
  }

  std::vector<double> download_values_of_float(const float* from, std::int64_t count) const {
    std::vector<float> raw(count);
    cuda::download(raw, from, stream());
    return {raw.begin(), raw.end()};
  }

  int device_;
  Kernels kernels_;
  int value_bytes_;
  Means means_;
  std::optional<cuda::Stream> stream_;
  std::optional<StepTimer<cuda::EventClock>> timer_;
  std::optional<HostFeed> feed_;
  State state_{};
  DeviceBuffer<float> parameters_, gradients_, scalars_;
  DeviceBuffer<std::uint8_t> small_, workspace_;
  DeviceBuffer<std::int32_t> order_;
  DeviceBuffer<StepResult> results_, window_results_;
  std::int32_t* window_ = nullptr;
  std::int64_t reserved_ = 0;
  std::map<std::tuple<int, int, const void*>, cuda::Graph> graphs_;
  const bool check_every_step_ = check_every_step();

  Placement placement_ = Placement::kDevice;
  DeviceSet data_, scratch_;
  std::vector<double> statistics_ = std::vector<double>(kStatisticCount);
};

}  // namespace

std::string fused_unavailable(int device) {
  const std::string reason = cuda_device_reason(device);
  if (!reason.empty()) return reason;
  int limit = 0;
  if (cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
    (void)cudaGetLastError();
  const int needed = kernels_for(Precision::kFp32).shared_needed();  // the other precisions need no more
  if (needed <= limit) return "";
  return "it needs " + std::to_string(needed >> 10) + " KiB of shared memory a block and this GPU has " +
         std::to_string(limit >> 10) + "; use --engine cudnn";
}

std::unique_ptr<Engine> create_fused(const EngineInfo& info, const EngineOptions& options) {
  const std::string reason = fused_unavailable(options.device);
  if (!reason.empty()) throw UnavailableError("engine 'fused' cannot run here: " + reason);
  return create_on_device<FusedEngine>(info, options);
}

}  // namespace mnist
