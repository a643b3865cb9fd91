// Engine `cpu`: the network of cpu/network.h behind the seam.
#include <algorithm>

#include "cpu/network.h"

namespace mnist {
namespace {

constexpr std::int64_t kEvaluationChunk = 1024;  // images that logits() holds at once under population statistics

class CpuEngine final : public Engine {
 public:
  CpuEngine(const EngineInfo& info, const EngineOptions& options)
      : Engine(info, options), network_(*cpu::supported_kernels().front(), checked(options.threads)) {}

  std::vector<std::int64_t> batch_thresholds() const override { return cpu::Network::batch_thresholds(); }
  std::int64_t evaluation_chunk() const override { return kEvaluationChunk; }

 private:
  static int checked(int threads) {
    MNIST_REQUIRE(threads >= 0, "engine 'cpu': " << threads << " threads, expected 0 (one a core) or more");
    return threads;
  }

  void do_set_parameters(std::span<const double> values) override { network_.parameters.assign(values); }
  void do_get_parameters(std::span<double> values) const override { network_.parameters.copy_to(values); }
  void do_set_statistics(std::span<const double> values) override { statistics_.assign(values.begin(), values.end()); }
  void do_get_statistics(std::span<double> values) const override { std::ranges::copy(statistics_, values.begin()); }

  void do_set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels, Placement) override {
    images_.assign(images.begin(), images.end());
    labels_.assign(labels.begin(), labels.end());
  }

  static cpu::Batch batch_of(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels) {
    cpu::Batch batch;
    for (std::size_t i = 0; i < images.size(); i += kImagePixels) batch.images.push_back(images.data() + i);
    batch.labels.assign(labels.begin(), labels.end());
    return batch;
  }

  // The images of the data set that index(0), index(1), ... are, or with other ranks this one's share of them.
  template <class Index>
  void gather(cpu::Batch& batch, std::int64_t count, Index index) const {
    batch.ranks = ranks();
    const Share share = batch.ranks ? images_of_rank(count, batch.ranks->rank(), batch.ranks->size()) : Share{0, count};
    const auto image = [&](std::int64_t i) { return images_.data() + std::int64_t(index(i)) * kImagePixels; };
    batch.images.clear();
    batch.labels.clear();
    batch.whole.clear();
    for (auto i = share.first; i < share.last; ++i) {
      batch.images.push_back(image(i));
      batch.labels.push_back(labels_[index(i)]);
    }
    if (batch.ranks)
      for (std::int64_t i = 0; i < count; ++i) batch.whole.push_back(image(i));
  }

  void do_compute_statistics() override {
    cpu::Batch batch;
    gather(batch, std::int64_t(labels_.size()), [](std::int64_t i) { return i; });
    network_.compute_statistics(batch, statistics_);
  }

  void do_train(std::span<const std::int32_t> order, std::int64_t batch_size, std::span<const double> learning_rates,
                std::span<StepResult> results) override {
    cpu::Batch batch;
    for (std::size_t step = 0; step < results.size(); ++step) {
      const auto now = order.first(std::min(order.size(), std::size_t(batch_size)));
      order = order.subspan(now.size());
      gather(batch, std::int64_t(now.size()), [&](std::int64_t i) { return now[i]; });
      network_.forward(batch);
      results[step] = network_.backward_and_update(batch, learning_rates[step]);
      network_.timer.collect();
    }
  }

  void do_logits(std::span<const std::uint8_t> images, BatchNormMode mode, std::span<double> scores) override {
    const auto total = std::int64_t(scores.size()) / kClasses;
    const auto chunk = mode == BatchNormMode::kBatch ? total : std::min(total, kEvaluationChunk);
    for (std::int64_t first = 0; first < total; first += chunk) {
      const auto count = std::min(chunk, total - first);
      const auto batch = batch_of(images.subspan(first * kImagePixels, count * kImagePixels), {});
      if (mode == BatchNormMode::kBatch)
        network_.forward(batch);
      else
        network_.forward(batch, statistics_);
      for (std::int64_t b = 0; b < count; ++b)
        for (int k = 0; k < kClasses; ++k) scores[(first + b) * kClasses + k] = network_.logit(b, k);
    }
  }

  Probe do_probe(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                 const ProbeOptions& options) override {
    const auto batch = batch_of(images, labels);
    const StepResult result = network_.forward(batch, options.upstream);
    Probe probe{.loss = result.loss, .correct = result.correct};
    network_.export_activations(batch, probe);
    cpu::Parameters gradients;
    network_.backward(batch, gradients);
    probe.gradients.resize(kParameterCount);
    gradients.copy_to(probe.gradients);
    return probe;
  }

  std::vector<OpTime> do_profile(std::span<const std::int32_t> order, std::int64_t batch) override {
    std::vector<StepResult> results(order.size() / batch);
    const std::vector<double> learning_rates(results.size());
    return network_.timer.record([&] { do_train(order, batch, learning_rates, results); });
  }

  cpu::Network network_;
  std::vector<double> statistics_ = std::vector<double>(kStatisticCount);
  std::vector<std::uint8_t> images_, labels_;
};

}  // namespace

std::unique_ptr<Engine> create_cpu(const EngineInfo& info, const EngineOptions& options) {
  return std::make_unique<CpuEngine>(info, options);
}

}  // namespace mnist
