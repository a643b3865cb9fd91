// Engine `fused`: six kernels a step (kernels/fused/), many steps a CUDA graph, the data set on the GPU.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

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
    exchange_.reserve(kParameterCount);
    pinned_.reserve(kParameterCount);
    upstream_.reserve(1);
    window_rates_.reserve(kUnroll);
    reserve_results(window_results_, kUnroll);
    state_.parameters = parameters_.data();
    state_.upstream = upstream_.data();
    state_.learning_rate = window_rates_.data();
    carve(small_, [&](auto place) {
      place(state_.conv2_forward, kConv2Values * value_bytes_);
      place(state_.conv2_dgrad, kConv2Values * value_bytes_);
      place(state_.conv2_dgrad_wgmma, std::max<std::int64_t>(DgradFilter::kBytes, kConv2Values * 4));  // its zeros stay
      place(state_.conv2_scales, 2 * 4);
      place(state_.conv2_max, kConv2Values / 32 * 4);
      if (shadow()) place(state_.fc1, kHidden * kFeatures * value_bytes_);
      place(state_.conv1, 2 * 4 * kConv1Channels * 16 * 2);
      place(state_.bn1.values, Bn1Operand::kRows * kConv1Channels * 4);
      place(state_.bn2.values, Bn2Operand::kRows * kConv2Channels * 4);
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
    do_set_float_parameters(std::vector<float>(values.begin(), values.end()));
  }

  void do_set_float_parameters(std::span<const float> values) override {
    cuda::DeviceGuard guard(device_);
    std::ranges::copy(values, pinned_.data());
    cuda::upload(exchange_.data(), {pinned_.data(), values.size()}, stream());
    take_exchange();
  }

  void do_initialize_parameters(const Pcg64& from) override {
    cuda::DeviceGuard guard(device_);
    initialize_slab(exchange_.data(), from, stream());
    take_exchange();
  }

  // The parameters are those in exchange_ from now on.
  void take_exchange() {
    slab_to_engine(parameters_.data(), exchange_.data(), stream());
    kernels_.pack(state_, stream());
    stream_->synchronize();
    scoring_operands_.reset();
  }

  void do_get_parameters(std::span<double> values) const override {
    cuda::DeviceGuard guard(device_);
    download_slab(values, parameters_.data());
  }

  void do_get_float_parameters(std::span<float> values) const override {
    cuda::DeviceGuard guard(device_);
    slab_to_torch(exchange_.data(), parameters_.data(), stream());
    cuda::download({pinned_.data(), values.size()}, exchange_.data(), stream());
    std::copy_n(pinned_.data(), values.size(), values.begin());
  }

  void download_slab(std::span<double> values, const float* from) const {
    slab_to_torch(exchange_.data(), from, stream());
    std::ranges::copy(download_floats(exchange_.data(), kParameterCount), values.begin());
  }

  void do_set_statistics(std::span<const double> values) override {
    statistics_.assign(values.begin(), values.end());
    scoring_operands_.reset();
  }
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
    const std::int64_t cells1 = means_.wgmma ? kChunkedImage / 16 : kCells1;  // as conv2_backward wants them
    carve(workspace_, [&](auto place) {
      place(state_.a1, batch * kConv1Channels * cells1 * value_bytes_);
      place(state_.route1, batch * kRoute1Words * 4);
      place(state_.z2, batch * kConv2Channels * cells1 * value_bytes_);
      place(state_.pooled_z2, batch * kFeatures * value_bytes_);
      place(state_.dy2, batch * kFeatures * value_bytes_);
      place(state_.z2_sums, blocks1 * 2 * kConv2Channels * 4);
      place(state_.h_slices, (blocks1 * 128 + batch) * kHidden * 4);
      place(state_.h, batch * kHidden * 4);
      place(state_.logits, batch * kClasses * 4);
      place(state_.dh, batch * kHidden * value_bytes_);
      place(state_.head_sums, blocks2 * kHeadValues * 4);
      place(state_.dy2_sums, 2 * kFeatures * 4);
      place(state_.dy2_max, 2 * kCells2 * kGradientWarps * 4);
      place(state_.conv2_sums, blocks2 * kConv2Values * 4);
      place(state_.routed_tap_sums, blocks2 * kConv1Channels * kRoutedTapColumns * 4);
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

  void queue_step(State s, int slot) {
    s.learning_rate += slot;
    const auto costs = launch_costs(s, options().precision);
    const auto mark = [&](const char* phase, const char* does, const LaunchCost& cost) {
      timer_->phase(phase);
      timer_->op(does, cost.cost, cost.unit);
    };
    mark("conv_forward", "conv1, bn1, pool1, conv2", costs.conv_forward);
    kernels_.conv_forward(s, slot, stream());
    mark("fc1_forward", "bn2, pool2, fc1", costs.fc1_forward);
    kernels_.fc1_forward(s, stream());
    mark("head", "fc2, loss, fc2 backward", costs.head);
    kernels_.head(s, slot, stream());
    mark("fc1_backward", "fc1 backward, its SGD", costs.fc1_backward);
    kernels_.fc1_backward(s, stream());
    mark("conv2_backward", "conv2 backward", costs.conv2_backward);
    kernels_.conv2_backward(s, slot, stream());
    mark("update", "conv1 backward, SGD", costs.update);
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
  void run_steps(const Samples& samples, const std::int32_t* order, std::int64_t batch, const float* rates,
                 std::int64_t steps, StepResult* results, bool continues = false) {
    Samples window = samples;
    window.order = window_;
    const State s = state_for(batch, window);
    for (std::int64_t done = 0; done < steps;) {
      const int now = int(std::bit_floor(std::uint64_t(std::min<std::int64_t>(steps - done, kUnroll))));
      set_steps(window_, order + done * batch, (now + 1) * batch, window_rates_.data(), rates + done, now, stream());
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

  void set_upstream(double upstream) {
    const float value = float(upstream);
    cuda::upload(upstream_.data(), {&value, 1}, stream());
  }

  // For steps that run outside of a window.
  void clear_rates() { cuda::fill_bytes(window_rates_.data(), 0, kUnroll, stream()); }

  void do_train(std::span<const std::int32_t> order, std::int64_t batch, std::span<const double> learning_rates,
                std::span<StepResult> results) override {
    MNIST_RANGE("train");
    cuda::DeviceGuard guard(device_);
    const auto samples = std::int64_t(order.size());
    batch = std::min(batch, samples);
    const std::int64_t full = samples / batch, rest = samples % batch;
    reserve(batch);
    reserve_results(results_, std::int64_t(results.size()));
    rates_.reserve(std::int64_t(learning_rates.size()));
    cuda::upload(rates_.data(), std::vector<float>(learning_rates.begin(), learning_rates.end()), stream());
    set_upstream(1);
    scoring_operands_.reset();
    if (placement_ == Placement::kHost) {
      train_from_host(order, batch);
    } else {
      order_.reserve(samples + 2 * batch);
      cuda::upload(order_.data(), order, stream());
      cuda::fill_bytes(order_.data() + samples, 0, 2 * batch, stream());
      const Samples from = data_.samples(nullptr);
      if (full > 0) run_steps(from, order_.data(), batch, rates_.data(), full, results_.data());
      if (rest > 0)
        run_steps(from, order_.data() + full * batch, rest, rates_.data() + full, 1, results_.data() + full);
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
      const auto step = n * chunk / batch;
      StepResult* results = results_.data() + step;
      const float* rates = rates_.data() + step;
      const Samples from = feed_->ring().samples(nullptr);
      if (full > 0) run_steps(from, places, batch, rates, full, results, n > 0);
      if (rest > 0) run_steps(from, places + full * batch, rest, rates + full, 1, results + full);
      feed_->release(n, *stream_);
    }
  }

  // ---- evaluation --------------------------------------------------------------------------------------------------

  // 0 .. count - 1 for the images of a pass, then zeros for the batch that head looks ahead to.
  const std::int32_t* identity_order(std::int64_t count) {
    auto& order = identity_orders_[count];
    if (order.size() == 0) {
      std::vector<std::int32_t> values(2 * count, 0);
      std::iota(values.begin(), values.begin() + count, 0);
      order.reserve(2 * count);
      cuda::upload(order.data(), values, stream());
    }
    return order.data();
  }

  // The parameters before fc1.weight, which are in the same place in the engine's order and in PyTorch's.
  std::vector<double> convolution_parameters() const {
    const auto values = download_floats(parameters_.data(), kParameters[kFc1Weight].offset);
    return {values.begin(), values.end()};
  }

  // What conv_forward and fc1_forward read of both batch norms under the population statistics, kept until these or a
  // parameter change.
  struct ScoringOperands {
    std::vector<float> bn1, bn2;
  };

  // conv_forward's filters and both batch norms as scoring wants them. head's next batch is a matter of training.
  void prepare_scoring(const Samples& any) {
    if (!scoring_operands_) {
      const auto parameters = convolution_parameters();
      scoring_operands_ = {bn1_operand(parameters, statistics_), bn2_operand(parameters, statistics_)};
    }
    Samples one = any;
    one.order = identity_order(1);
    kernels_.prepare(state_for(1, one), 0, stream());
    cuda::upload(state_.bn1.values, scoring_operands_->bn1, stream());
    cuda::upload(state_.bn2.values, scoring_operands_->bn2, stream());
  }

  // `count` images that a pass by population statistics works on: always as a pass of kEvalChunk images is cut up, so
  // that an image's scores do not depend on how many are scored with it.
  State scoring_state(std::int64_t count, const Samples& samples) const {
    State s = state_for(kEvalChunk, samples);
    s.batch = int(count);
    s.conv_forward_blocks = std::min(s.conv_forward_blocks, int(count));
    s.bn2_given = true;
    return s;
  }

  // Room for such a pass.
  void reserve_scoring() {
    reserve(kEvalChunk);
    set_upstream(0);
  }

  // Queues the scores (count, kClasses) of `count` images.
  void queue_scores(float* logits, Samples samples, std::int64_t count) {
    samples.order = identity_order(count);
    State s = scoring_state(count, samples);
    s.logits = logits;
    kernels_.conv_forward(s, 0, stream());
    kernels_.fc1_forward(s, stream());
    kernels_.head(s, 0, stream());
  }

  void do_logits(std::span<const std::uint8_t> images, BatchNormMode mode, std::span<double> scores) override {
    cuda::DeviceGuard guard(device_);
    const auto total = std::int64_t(images.size()) / kImagePixels;
    const bool population = mode == BatchNormMode::kPopulation;
    const auto chunk = population ? std::min(total, kEvalChunk) : total;
    if (population) {
      reserve_scoring();
    } else {
      reserve(chunk);
      set_upstream(0);
    }
    scratch_.reserve(chunk, stream());
    cuda::fill_bytes(scratch_.labels.data(), 0, chunk, stream());
    forget_identity_orders();
    for (std::int64_t first = 0; first < total; first += chunk) {
      const auto count = std::min(chunk, total - first);
      scratch_.fill(0, images.data() + first * kImagePixels, nullptr, count, stream());
      const Samples samples = scratch_.samples(identity_order(count));
      if (population) {
        if (first == 0) prepare_scoring(samples);
        queue_scores(state_.logits, samples, count);
      } else {
        const State s = state_for(count, samples);
        kernels_.prepare(s, 0, stream());
        kernels_.conv_forward(s, 0, stream());
        kernels_.fc1_forward(s, stream());
        kernels_.head(s, 0, stream());
      }
      std::ranges::copy(download_floats(state_.logits, count * kClasses), scores.begin() + first * kClasses);
    }
  }

  // There is one for each number of images that a pass had: of a caller's calls that could be any number.
  void forget_identity_orders() {
    if (identity_orders_.size() > 16) identity_orders_.clear();
  }

  void do_set_evaluation_set(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels) override {
    cuda::DeviceGuard guard(device_);
    reserve_scoring();  // now, so that the graphs of training outlive an evaluation
    const auto count = std::int64_t(labels.size());
    evaluation_.reserve(count, stream());
    evaluation_.fill(0, images.data(), labels.data(), count, stream());
    evaluation_logits_.reserve(count * kClasses);
    evaluation_scores_.reserve(score_blocks(count));
    stream_->synchronize();
  }

  Score do_evaluate() override {
    cuda::DeviceGuard guard(device_);
    reserve_scoring();
    forget_identity_orders();
    prepare_scoring(evaluation_.samples(nullptr));
    const auto total = evaluation_size();
    for_each_piece(evaluation_, total, [&](const Samples& samples, std::int64_t first, std::int64_t count) {
      queue_scores(evaluation_logits_.data() + first * kClasses, samples, count);
    });
    score_images(evaluation_scores_.data(), evaluation_logits_.data(), evaluation_.labels.data(), total, stream());
    std::vector<Score> parts(score_blocks(total));
    cuda::download(parts, evaluation_scores_.data(), stream());
    Score sum;
    for (const Score& part : parts) {
      sum.loss += part.loss;
      sum.correct += part.correct;
    }
    return sum;
  }

  // Calls visit(samples, first, count) for the pieces of a set.
  template <class Visit>
  static void for_each_piece(const DeviceSet& set, std::int64_t total, Visit visit) {
    for (std::int64_t first = 0; first < total; first += kEvalChunk)
      visit(set.samples_from(first, nullptr), first, std::min(kEvalChunk, total - first));
  }

  // The same for the data set, wherever it lives.
  template <class Visit>
  void for_each_piece_of_dataset(Visit visit) {
    if (placement_ == Placement::kDevice) return for_each_piece(data_, dataset_size(), visit);
    for (std::int64_t first = 0; first < dataset_size(); first += kEvalChunk) {
      const auto count = std::min(kEvalChunk, dataset_size() - first);
      scratch_.reserve(kEvalChunk, stream());
      scratch_.fill(0, feed_->images() + first * kImagePixels, feed_->labels() + first, count, stream());
      visit(scratch_.samples(nullptr), first, count);
    }
  }

  // bn1 exactly, from the moments of all images; bn2 from conv2's outputs under it.
  void do_compute_statistics() override {
    cuda::DeviceGuard guard(device_);
    reserve_scoring();
    forget_identity_orders();
    constexpr std::int64_t kSums = 2 * kConv2Channels;
    statistic_sums_.reserve(kMoments + kSums + sum_moments_scratch());
    double *moments = statistic_sums_.data(), *sums = moments + kMoments, *scratch = sums + kSums;
    cuda::fill_bytes(moments, 0, kMoments + kSums, stream());

    for_each_piece_of_dataset([&](const Samples& samples, std::int64_t, std::int64_t count) {
      sum_moments(moments, scratch, samples.moments, count, stream());
    });
    const auto parameters = convolution_parameters();
    statistics_.assign(kStatisticCount, 0.0);
    set_bn1_statistics(statistics_, parameters, download_doubles(moments, kMoments), double(dataset_size()));
    scoring_operands_ = {bn1_operand(parameters, statistics_), {}};

    bool first_piece = true;
    for_each_piece_of_dataset([&](const Samples& samples, std::int64_t, std::int64_t count) {
      if (std::exchange(first_piece, false)) prepare_scoring(samples);
      Samples piece = samples;
      piece.order = identity_order(count);
      const State s = scoring_state(count, piece);
      kernels_.conv_forward(s, 0, stream());
      add_z2_sums(sums, s.z2_sums, s.conv_forward_blocks, stream());
    });
    set_bn2_statistics(statistics_, parameters, download_doubles(sums, kSums), double(dataset_size()));
    scoring_operands_->bn2 = bn2_operand(parameters, statistics_);
  }

  // One batch again and again, launches one after the other: overlapped, one launch's time would be part of another's.
  std::vector<OpTime> do_profile(std::span<const std::int32_t> order, std::int64_t batch) override {
    MNIST_REQUIRE(placement_ == Placement::kDevice,
                  "profile: the data set is on the host, expected it in the GPU's memory");
    cuda::DeviceGuard guard(device_);
    reserve(batch);
    set_upstream(1);
    clear_rates();
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
      std::ranges::copy(download_floats(static_cast<const float*>(from), count), values.begin());
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
    scratch_.reserve(batch, stream());
    scratch_.fill(0, images.data(), labels.data(), batch, stream());
    set_upstream(options.upstream);
    clear_rates();
    forget_identity_orders();
    cuda::fill_bytes(gradients_.data(), 0, kParameterCount, stream());
    DeviceBuffer<std::uint8_t> route2(batch * kPool2Size);
    DeviceBuffer<float> saved(kParameterCount);
    cuda::copy(saved.data(), parameters_.data(), kParameterCount, stream());

    State s = state_for(batch, scratch_.samples(identity_order(batch)));
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
    probe.h = download_doubles(s.h, batch * kHidden);
    probe.logits = download_doubles(s.logits, batch * kClasses);
    probe.routing.relu3.resize(batch * kHidden);
    std::ranges::transform(probe.h, probe.routing.relu3.begin(), [](double h) { return std::uint8_t(!(h <= 0)); });

    const auto pooled_z2 = download_values(s.pooled_z2, batch * kFeatures);
    const auto bn2 = download_floats(s.bn2.values, 2 * kConv2Channels);
    probe.a2.resize(batch * kFeatures);
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t k = 0; k < kFeatures; ++k) {
        const double y = bn2[k % 64] * pooled_z2[b * kFeatures + k] + bn2[64 + k % 64];
        probe.a2[b * kFeatures + torch_feature(k)] = y <= 0 ? 0 : y;
      }
    // A learning rate of 0 leaves parameters alone, but not where a gradient is infinite.
    cuda::copy(parameters_.data(), saved.data(), kParameterCount, stream());
    kernels_.pack(state_, stream());
    stream_->synchronize();
    return probe;
  }

  std::vector<float> download_floats(const float* from, std::int64_t count) const {
    std::vector<float> values(count);
    cuda::download(values, from, stream());
    return values;
  }
  template <class T>
  std::vector<double> download_doubles(const T* from, std::int64_t count) const {
    std::vector<T> values(count);
    cuda::download(values, from, stream());
    return {values.begin(), values.end()};
  }

  int device_;
  Kernels kernels_;
  int value_bytes_;
  Means means_;
  std::optional<cuda::Stream> stream_;
  std::optional<StepTimer<cuda::EventClock>> timer_;
  std::optional<HostFeed> feed_;
  State state_{};
  DeviceBuffer<float> parameters_, gradients_;
  DeviceBuffer<float> exchange_;      // a slab in PyTorch's order, on its way,
  cuda::PinnedBuffer<float> pinned_;  // and in memory that the GPU copies by itself
  DeviceBuffer<float> upstream_, rates_, window_rates_;
  DeviceBuffer<std::uint8_t> small_, workspace_;
  DeviceBuffer<std::int32_t> order_;
  DeviceBuffer<StepResult> results_, window_results_;
  std::int32_t* window_ = nullptr;
  std::int64_t reserved_ = 0;
  std::map<std::tuple<int, int, const void*>, cuda::Graph> graphs_;
  const bool check_every_step_ = check_every_step();

  Placement placement_ = Placement::kDevice;
  DeviceSet data_, scratch_, evaluation_;
  DeviceBuffer<float> evaluation_logits_;
  DeviceBuffer<Score> evaluation_scores_;
  std::map<std::int64_t, DeviceBuffer<std::int32_t>> identity_orders_;
  DeviceBuffer<double> statistic_sums_;
  std::vector<double> statistics_ = std::vector<double>(kStatisticCount);
  std::optional<ScoringOperands> scoring_operands_;
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
  return create_on_device<FusedEngine>(info, options);
}

}  // namespace mnist
