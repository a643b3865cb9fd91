// Engine `fused`: four or six kernels a step (kernels/fused/), many steps a CUDA graph, the data set on the GPU.
#include "engines/fused/probe.h"
#include "engines/fused/scoring.h"
#include "engines/gpu_engine.h"
#include "engines/host_feed.h"
#include "mnist/thresholds.h"

namespace mnist {
namespace {

using namespace fused;
using cuda::DeviceBuffer;

constexpr std::int64_t kLargestScanned = 1 << 16;  // by batch_thresholds(): a data set
constexpr std::int64_t kFedChunk = 8192;  // images of host-fed steps that are queued at once: a millisecond or two

class FusedEngine final : public GpuEngine {
 public:
  FusedEngine(const EngineInfo& info, const EngineOptions& options)
      : GpuEngine(info, options), steps_(options, compute(), timer()), scoring_(steps_, compute()) {
    staging_.reserve(kParameterCount);
    pinned_.reserve(kParameterCount);
  }

  std::string arithmetic() const override {
    const std::string name = Engine::arithmetic();
    if (options().precision == Precision::kFp32)
      return name + " (3xfp16; 3xtf32 in fc1" + (steps_.gpu().limits.wgmma ? " of small batches)" : ")");
    if (options().precision == Precision::kTf32)
      return name + " (fp16 in units of powers of two; activations have 11 bits)";
    return name;
  }

  std::vector<std::int64_t> batch_thresholds() const override {
    return thresholds_of(kLargestScanned, [this](std::int64_t batch) { return steps_.course(batch); });
  }
  std::int64_t evaluation_chunk() const override { return Scoring::kChunk; }
  std::vector<std::string> algorithms() const override { return notes_for_user(steps_.gpu()); }
  // Weights that are stored as fp16, too, are divided by the scale of those before their last update, and parameters
  // that are set by the scale of their own largest weight: so the next steps are the same where both scales are.
  bool resumable() const override {
    if (options().precision == Precision::kBf16) return true;
    const bool tf32 = options().precision == Precision::kTf32;
    const auto guard = select();
    const State& s = steps_.arena().state();
    const auto scales = read_values(s.scales, kScales, stream());
    const auto settled = [&](const float* largest, int count, Scale scale) {
      return scales[scale] == weight_scale(float(std::ranges::max(read_values(largest, count, stream()))));
    };
    return settled(s.conv2_max, kConv2Values / 32, kConv2Scale) &&
           (!tf32 || settled(s.fc1_max(), 2 * kCells2 * kGradientWarps, kFc1Scale));
  }
  std::string transport() const override { return steps_.ranks() ? steps_.ranks()->description() : ""; }

 private:
  cuda::DeviceGuard select() const { return cuda::DeviceGuard(options().device); }

  // ---- parameters ---------------------------------------------------------------------------------------------------

  void do_set_parameters(std::span<const double> values) override {
    do_set_float_parameters(std::vector<float>(values.begin(), values.end()));
  }

  void do_set_float_parameters(std::span<const float> values) override {
    const auto guard = select();
    std::ranges::copy(values, pinned_.data());
    cuda::upload(staging_.data(), {pinned_.data(), values.size()}, stream());
    take_staging();
  }

  void do_initialize_parameters(const Pcg64& from) override {
    const auto guard = select();
    initialize_slab(staging_.data(), from, stream());
    take_staging();
  }

  // The parameters are those in staging_ from now on.
  void take_staging() {
    slab_to_engine(steps_.arena().parameters(), staging_.data(), stream());
    steps_.repack_weights();
    compute().synchronize();
    scoring_.forget_operands();
  }

  void do_get_parameters(std::span<double> values) const override {
    const auto guard = select();
    std::ranges::copy(read_slab(steps_.arena().parameters(), staging_.data(), stream()), values.begin());
  }

  void do_get_float_parameters(std::span<float> values) const override {
    const auto guard = select();
    slab_to_torch(staging_.data(), steps_.arena().parameters(), stream());
    cuda::download({pinned_.data(), values.size()}, staging_.data(), stream());
    std::copy_n(pinned_.data(), values.size(), values.begin());
  }

  void do_get_device_parameters(void* values) const override {
    const auto guard = select();
    slab_to_torch(static_cast<float*>(values), steps_.arena().parameters(), stream());
    MNIST_CHECK(cudaStreamSynchronize(stream()));
  }

  // ---- other ranks --------------------------------------------------------------------------------------------------

  void do_join(const std::string& transport) override {
    const auto guard = select();
    std::unique_ptr<Ranks> all;
    if (ranks()->size() > 1)
      all = std::make_unique<Ranks>(shared_ranks(), options().precision, options().device, transport, stream());
    steps_.join(std::move(all));
  }

  // ---- training -----------------------------------------------------------------------------------------------------

  void do_set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                      Placement placement) override {
    const auto guard = select();
    placement_ = placement;
    feed_.clear();
    const auto count = std::int64_t(labels.size());
    if (placement == Placement::kHost) {
      feed_.set_dataset(images, labels);
    } else {
      if (data_.reserve(count, stream())) steps_.forget_graphs();
      data_.fill(0, images.data(), labels.data(), count, stream());
      compute().synchronize();
    }
  }

  void do_train(std::span<const std::int32_t> order, std::int64_t batch, std::span<const double> learning_rates,
                std::span<StepResult> results) override {
    MNIST_RANGE("train");
    const auto guard = select();
    const auto samples = std::int64_t(order.size());
    batch = std::min(batch, samples);
    const std::int64_t full = samples / batch, rest = samples % batch;
    const Ranks* const ranks = steps_.ranks();
    steps_.reserve(ranks ? ranks->largest_share(batch) : batch);
    if (results_.reserve(std::int64_t(results.size())))  // StepResult's padding is copied too
      cuda::fill_bytes(results_.data(), 0, results_.size(), stream());
    rates_.reserve(std::int64_t(learning_rates.size()));
    cuda::upload(rates_.data(), std::vector<float>(learning_rates.begin(), learning_rates.end()), stream());
    steps_.set_upstream(1);
    scoring_.forget_operands();
    if (ranks) {
      train_share(order, batch);
    } else if (placement_ == Placement::kHost) {
      train_from_host(order, batch);
    } else {
      order_.reserve(samples + 2 * batch);
      cuda::upload(order_.data(), order, stream());
      cuda::fill_bytes(order_.data() + samples, 0, 2 * batch, stream());
      const Samples from = data_.samples(nullptr);
      if (full > 0) steps_.run(from, order_.data(), {batch, batch}, rates_.data(), full, results_.data());
      if (rest > 0)
        steps_.run(from, order_.data() + full * batch, {rest, rest}, rates_.data() + full, 1, results_.data() + full);
    }
    cuda::download(results, results_.data(), stream());
  }

  // This rank's share of each batch. All ranks have all images: batch norm 1 asks for the pixels of the first batch.
  void train_share(std::span<const std::int32_t> order, std::int64_t batch) {
    MNIST_REQUIRE(placement_ == Placement::kDevice,
                  "train: the data set is on the host, expected it in the GPU's memory: engine 'fused' shares a batch "
                  "with other ranks from there");
    Ranks& ranks = *steps_.ranks();
    const auto samples = std::int64_t(order.size()), full = samples / batch, rest = samples % batch;
    std::vector<std::int32_t> own;  // a batch's share behind the other
    own.reserve(samples / ranks.size() + full + 1);
    const auto add = [&](std::int64_t first, std::int64_t whole) {
      const Share share = images_of_rank(whole, ranks.rank(), ranks.size());
      const auto count = std::max<std::int64_t>(share.last - share.first, 1);
      const auto from = order.begin() + first + std::min(share.first, whole - 1);
      own.insert(own.end(), from, from + count);
    };
    for (std::int64_t step = 0; step < full; ++step) add(step * batch, batch);
    const auto own_full = std::int64_t(own.size());
    if (rest > 0) add(full * batch, rest);
    own_order_.reserve(std::int64_t(own.size()) + 2 * ranks.largest_share(batch));
    cuda::fill_bytes(own_order_.data(), 0, own_order_.size(), stream());
    cuda::upload(own_order_.data(), own, stream());
    order_.reserve(2 * batch);  // the whole first batch, and the whole rest
    cuda::upload(order_.data(), order.first(std::min(batch, samples)), stream());
    cuda::upload(order_.data() + batch, order.last(rest), stream());
    const auto run = [&](std::int64_t first_step, std::int64_t whole, const std::int32_t* places, std::int64_t steps) {
      Batch share = ranks.rank_batch(whole);
      share.first = order_.data() + (first_step > 0 ? batch : 0);
      // The batch's loss is the mean of the shares' losses by their sizes.
      steps_.set_upstream(share.counts ? double(share.images) / double(whole) : 0);
      steps_.run(data_.samples(nullptr), places, share, rates_.data() + first_step, steps,
                 results_.data() + first_step);
    };
    if (full > 0) run(0, batch, own_order_.data(), full);
    if (rest > 0) run(full, rest, own_order_.data() + own_full, 1);
  }

  // Batches come from host memory, in chunks of steps: see HostFeed. The copy stream adds the moments of the images.
  void train_from_host(std::span<const std::int32_t> order, std::int64_t batch) {
    const auto samples = std::int64_t(order.size());
    const std::int64_t chunk = std::clamp<std::int64_t>(kFedChunk / batch, 1, Arena::kMostSteps) * batch;
    const std::int64_t chunks = (samples + chunk - 1) / chunk, ring = HostFeed::kRingSlots * chunk;
    feed_.reserve(chunk);
    if (ring_.reserve(ring, feed_.copy_stream())) steps_.forget_graphs();
    std::vector<std::int32_t> once_around(ring + batch);
    for (std::int64_t i = 0; i < ring + batch; ++i) once_around[i] = std::int32_t(i % ring);
    order_.reserve(ring + batch);
    cuda::upload(order_.data(), once_around, stream());
    const auto send = [&](std::int64_t n) {
      feed_.send(n, order.subspan(n * chunk, std::min(chunk, samples - n * chunk)), compute(),
                 [&](auto... from) { ring_.fill(from...); });
    };
    send(0);
    for (std::int64_t n = 0; n < chunks; ++n) {
      if (n + 1 < chunks) send(n + 1);
      const auto count = std::min(chunk, samples - n * chunk), full = count / batch, rest = count % batch;
      const std::int32_t* places = order_.data() + feed_.place(n);
      const auto step = n * chunk / batch;
      StepResult* results = results_.data() + step;
      const float* rates = rates_.data() + step;
      const Samples from = ring_.samples(nullptr);
      if (full > 0) steps_.run(from, places, {batch, batch}, rates, full, results, n > 0);
      if (rest > 0) steps_.run(from, places + full * batch, {rest, rest}, rates + full, 1, results + full);
      feed_.release(n, compute());
    }
  }

  // One batch again and again, launches one after the other: overlapped, one launch's time would be part of another's.
  std::vector<OpTime> do_profile(std::span<const std::int32_t> order, std::int64_t batch) override {
    require_for_profile(placement_ == Placement::kDevice);
    MNIST_REQUIRE(!steps_.ranks(), "profile: engine 'fused' has joined other ranks, expected it alone");
    const auto guard = select();
    steps_.reserve(batch);
    steps_.set_upstream(1);
    steps_.clear_rates();
    std::int32_t* const window = steps_.arena().order();
    for (const auto place : {window, window + batch}) cuda::upload(place, order.first(batch), stream());
    PlannedStep step = steps_.training_step(batch, data_.samples(window));
    step.state.overlap = false;
    steps_.start_batch_norm(step.state);
    return time_ops(std::int64_t(order.size()) / batch, [&] { steps_.queue(step, 0); });
  }

  Probe do_probe(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                 const ProbeOptions& options) override {
    const auto guard = select();
    const auto batch = std::int64_t(labels.size());
    steps_.reserve(batch);
    scratch_.reserve(batch, stream());
    scratch_.fill(0, images.data(), labels.data(), batch, stream());
    scoring_.forget_identity_orders();
    return probe_step(steps_, compute(), scratch_.samples(scoring_.identity_order(batch)), batch, options.upstream,
                      staging_.data());
  }

  // ---- evaluation ---------------------------------------------------------------------------------------------------

  void do_set_statistics(std::span<const double> values) override { scoring_.set_statistics(values); }
  void do_get_statistics(std::span<double> values) const override {
    std::ranges::copy(scoring_.statistics(), values.begin());
  }

  void do_compute_statistics() override {
    const auto guard = select();
    scoring_.compute_statistics(dataset_size(), [this](const auto& visit) { for_each_piece_of_dataset(visit); });
  }

  // Calls visit(samples, count) for pieces of the data set, wherever it lives.
  template <class Visit>
  void for_each_piece_of_dataset(Visit visit) {
    if (placement_ == Placement::kDevice)
      return for_each_piece(data_, dataset_size(),
                            [&](const Samples& samples, std::int64_t, std::int64_t count) { visit(samples, count); });
    for (std::int64_t first = 0; first < dataset_size(); first += Scoring::kChunk) {
      const auto count = std::min(Scoring::kChunk, dataset_size() - first);
      scratch_.reserve(Scoring::kChunk, stream());
      scratch_.fill(0, feed_.images().data() + first * kImagePixels, feed_.labels().data() + first, count, stream());
      visit(scratch_.samples(nullptr), count);
    }
  }

  void do_logits(std::span<const std::uint8_t> images, BatchNormMode mode, std::span<double> scores) override {
    for_each_chunk_of(images, mode, [&](const float* logits, std::int64_t first, std::int64_t count) {
      std::ranges::copy(read_values(logits, count * kClasses, stream()), scores.begin() + first * kClasses);
    });
  }

  void do_device_logits(std::span<const std::uint8_t> images, BatchNormMode mode, void* scores) override {
    for_each_chunk_of(images, mode, [&](const float* logits, std::int64_t first, std::int64_t count) {
      cuda::copy(static_cast<float*>(scores) + first * kClasses, logits, count * kClasses, stream());
    });
    compute().synchronize();
  }

  // Calls visit(logits, first, count) when the scores of `count` images from `first` on are queued.
  template <class Visit>
  void for_each_chunk_of(std::span<const std::uint8_t> images, BatchNormMode mode, Visit visit) {
    const auto guard = select();
    const auto total = std::int64_t(images.size()) / kImagePixels;
    const bool population = mode == BatchNormMode::kPopulation;
    const auto chunk = population ? std::min(total, Scoring::kChunk) : total;
    if (population) {
      scoring_.reserve();
    } else {
      steps_.reserve(chunk);
      steps_.set_upstream(0);
    }
    float* const logits = steps_.arena().state().logits;
    scratch_.reserve(chunk, stream());
    cuda::fill_bytes(scratch_.labels.data(), 0, chunk, stream());
    scoring_.forget_identity_orders();
    for (std::int64_t first = 0; first < total; first += chunk) {
      const auto count = std::min(chunk, total - first);
      scratch_.fill(0, images.data() + first * kImagePixels, nullptr, count, stream());
      const Samples samples = scratch_.samples(scoring_.identity_order(count));
      if (population) {
        if (first == 0) scoring_.bind_statistics(samples);
        scoring_.queue(logits, samples, count);
      } else {
        const PlannedStep pass = steps_.evaluation_pass(count, samples);
        steps_.start_batch_norm(pass.state);
        steps_.queue(pass, kForward);
      }
      visit(logits, first, count);
    }
  }

  void do_set_evaluation_set(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels) override {
    const auto guard = select();
    scoring_.set_evaluation_set(images, labels);
  }

  Score do_evaluate() override {
    const auto guard = select();
    return scoring_.evaluate();
  }

  // ---- several models -----------------------------------------------------------------------------------------------

  class FusedFleet final : public Fleet {
   public:
    FusedFleet(FusedEngine& engine, const Limits& share, int models, std::int64_t batch)
        : Fleet(engine, models, batch), engine_(engine), steps_(engine.steps_, share, models, batch) {}

   private:
    void do_store(int model) override {
      const auto guard = engine_.select();
      const auto from = engine_.steps_.arena().model_memory(0), to = steps_.arena().model_memory(model);
      cuda::copy(to.data(), from.data(), std::int64_t(from.size()), engine_.stream());
      engine_.compute().synchronize();
    }
    void do_load(int model) override {
      const auto guard = engine_.select();
      const auto from = steps_.arena().model_memory(model), to = engine_.steps_.arena().model_memory(0);
      cuda::copy(to.data(), from.data(), std::int64_t(from.size()), engine_.stream());
      engine_.compute().synchronize();
      engine_.scoring_.forget_operands();
    }
    void do_train(std::span<const std::int32_t> orders, std::span<const double> learning_rates,
                  std::span<StepResult> results) override {
      MNIST_RANGE("train a fleet");
      MNIST_REQUIRE(engine_.placement_ == Placement::kDevice,
                    "train: the data set is on the host, expected it in the GPU's memory");
      const auto guard = engine_.select();
      const cudaStream_t stream = engine_.stream();
      const std::int64_t images = std::int64_t(orders.size()) / models(), stride = images + batch();
      order_.reserve(models() * stride);
      rates_.reserve(std::int64_t(learning_rates.size()));
      if (results_.reserve(std::int64_t(results.size())))  // StepResult's padding is copied too
        cuda::fill_bytes(results_.data(), 0, results_.size(), stream);
      cuda::fill_bytes(order_.data(), 0, order_.size(), stream);  // what the last step looks ahead to
      cuda::copy_rows(order_.data(), stride * 4, orders.data(), images * 4, images, models(), stream);
      cuda::upload(rates_.data(), std::vector<float>(learning_rates.begin(), learning_rates.end()), stream);
      steps_.set_upstream(1);
      steps_.run(engine_.data_.samples(nullptr), order_.data(), {batch(), batch()}, rates_.data(), images / batch(),
                 results_.data(), false, stride);
      cuda::download(results, results_.data(), stream);
    }

    FusedEngine& engine_;
    Steps steps_;
    DeviceBuffer<std::int32_t> order_;
    DeviceBuffer<float> rates_;
    DeviceBuffer<StepResult> results_;
  };

  std::unique_ptr<Fleet> do_fleet(int models, std::int64_t batch, int multiprocessors) override {
    const fused::Gpu& gpu = steps_.gpu();
    const Limits share = limits_for_model(gpu.limits, multiprocessors, steps_.rows());
    MNIST_REQUIRE(multiprocessors < batch && batch <= kLargestOfPack,
                  "fleet: batch size is " << batch << ", expected more than the " << multiprocessors
                                          << " multiprocessors of a model and at most " << kLargestOfPack);
    MNIST_REQUIRE(!fused::plan_for(steps_.rows(), share, int(batch)).value().with_fc,
                  "fleet: batch size " << batch << " takes kernels for one model alone on " << multiprocessors
                                       << " multiprocessors, expected fewer");
    const auto guard = select();
    return std::make_unique<FusedFleet>(*this, share, models, batch);
  }

  Steps steps_;
  Scoring scoring_;
  DeviceBuffer<float> staging_;       // a slab in PyTorch's order, on its way,
  cuda::PinnedBuffer<float> pinned_;  // and in memory that the GPU copies by itself
  Placement placement_ = Placement::kDevice;
  DeviceSet data_, scratch_, ring_;
  HostFeed feed_;
  DeviceBuffer<float> rates_;
  DeviceBuffer<std::int32_t> order_, own_order_;
  DeviceBuffer<StepResult> results_;
};

}  // namespace

std::unique_ptr<Engine> create_fused(const EngineInfo& info, const EngineOptions& options) {
  return create_on_device<FusedEngine>(info, options);
}

}  // namespace mnist
