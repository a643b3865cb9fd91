// The checks every engine shares: validate, then call the virtual method.
#include "mnist/engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace mnist {
namespace {

constexpr std::int64_t kMaxBatch = std::numeric_limits<std::int32_t>::max();  // StepResult counts with an int32

constexpr std::array kPrecisions = {"fp64", "fp32", "tf32", "bf16"};  // in the order of Precision

// The first loop has no way out, so that it is done many values at a time.
template <class T>
void require_finite(std::span<const T> values, const Parameter* table, int tensors, const char* what) {
  int bad = 0;
  for (const T value : values) bad |= !(std::abs(value) <= std::numeric_limits<T>::max());
  if (!bad) return;
  for (int t = 0; t < tensors; ++t)
    for (std::int64_t i = 0; i < table[t].size; ++i) {
      const T value = values[table[t].offset + i];
      MNIST_REQUIRE(std::isfinite(value),
                    what << ": " << table[t].name << "[" << i << "] is " << value << ", expected a finite number");
    }
}

void require_batch(std::span<const std::uint8_t> images, std::size_t count, const char* what) {
  MNIST_REQUIRE(count > 0, what << ": no images, expected at least 1");
  MNIST_REQUIRE(images.size() == count * kImagePixels, what << ": " << images.size() << " pixels for " << count
                                                            << " labels, expected " << count * kImagePixels);
}

void require_labels(std::span<const std::uint8_t> labels, const char* what) {
  for (std::size_t i = 0; i < labels.size(); ++i)
    MNIST_REQUIRE(labels[i] < kClasses, what << ": label " << i << " is " << int(labels[i]) << ", expected 0 to 9");
}

template <class T>
void require_parameters(std::span<const T> values) {
  MNIST_REQUIRE(std::int64_t(values.size()) == kParameterCount,
                "set_parameters: " << values.size() << " values, expected " << kParameterCount);
  require_finite(values, kParameters.data(), kParameterTensors, "set_parameters");
}

void require_room(std::size_t values) {
  MNIST_REQUIRE(std::int64_t(values) == kParameterCount,
                "get_parameters: room for " << values << " values, expected " << kParameterCount);
}

void require_gpu(const EngineInfo& info, const char* what) {
  MNIST_REQUIRE(info.device == "cuda", what << ": engine " << info.name << " runs on the host, expected one on a GPU");
}

// The inputs of `steps` steps.
void require_inputs(std::span<const std::int32_t> order, std::span<const double> learning_rates, std::int64_t steps,
                    std::int64_t images) {
  MNIST_REQUIRE(std::int64_t(learning_rates.size()) == steps, "train: " << learning_rates.size()
                                                                        << " learning rates, expected one for each of "
                                                                        << steps << " steps");
  for (std::size_t i = 0; i < learning_rates.size(); ++i)
    MNIST_REQUIRE(std::isfinite(learning_rates[i]) && learning_rates[i] >= 0, "train: learning rate of step "
                                                                                  << i << " is " << learning_rates[i]
                                                                                  << ", expected a finite number >= 0");
  for (std::size_t i = 0; i < order.size(); ++i)
    MNIST_REQUIRE(order[i] >= 0 && order[i] < images,
                  "train: order[" << i << "] is " << order[i] << ", expected 0 to " << images - 1);
}

}  // namespace

const char* to_string(Summation summation) {
  constexpr const char* kNames[] = {"partial", "plain", "library"};
  return kNames[int(summation)];
}

const char* to_string(Precision precision) { return kPrecisions[std::size_t(precision)]; }

Precision parse_precision(const std::string& name) {
  const auto found = std::ranges::find(kPrecisions, name);
  if (found != kPrecisions.end()) return Precision(found - kPrecisions.begin());
  throw ArgumentError("precision '" + name + "' is unknown, expected fp64, fp32, tf32 or bf16");
}

Engine::Engine(EngineInfo info, EngineOptions options) : info_(std::move(info)), options_(options) {}

void Engine::set_parameters(std::span<const double> values) {
  require_parameters(values);
  do_set_parameters(values);
  has_statistics_ = false;
}

void Engine::set_parameters(std::span<const float> values) {
  require_parameters(values);
  do_set_float_parameters(values);
  has_statistics_ = false;
}

void Engine::get_parameters(std::span<double> values) const {
  require_room(values.size());
  do_get_parameters(values);
}

void Engine::get_parameters(std::span<float> values) const {
  require_room(values.size());
  do_get_float_parameters(values);
}

void Engine::get_device_parameters(void* values) const {
  require_gpu(info_, "get_device_parameters");
  do_get_device_parameters(values);
}

void Engine::initialize_parameters(const Pcg64& stream) {
  do_initialize_parameters(stream);
  has_statistics_ = false;
}

void Engine::do_set_float_parameters(std::span<const float> values) {
  do_set_parameters(std::vector<double>(values.begin(), values.end()));
}

void Engine::do_get_float_parameters(std::span<float> values) const {
  std::vector<double> wide(values.size());
  do_get_parameters(wide);
  std::ranges::transform(wide, values.begin(), [](double value) { return float(value); });
}

void Engine::do_initialize_parameters(const Pcg64& from) {
  Pcg64 stream = from;
  std::vector<double> values(kParameterCount);
  for (const InitialTensor& tensor : initial_tensors())
    for (auto& value : std::span(values).subspan(tensor.offset, tensor.size))
      // Rounded to float, so that every engine starts at the same point whatever it stores.
      value = tensor.bound == 0 ? tensor.value
                                : float(-tensor.bound + (tensor.bound + tensor.bound) * unit_interval(stream.next()));
  do_set_parameters(values);
}

void Engine::set_statistics(std::span<const double> values) {
  MNIST_REQUIRE(std::int64_t(values.size()) == kStatisticCount,
                "set_statistics: " << values.size() << " values, expected " << kStatisticCount);
  require_finite(values, kStatistics.data(), kStatisticTensors, "set_statistics");
  for (const auto index : {kBn1Var, kBn2Var})
    for (std::int64_t i = 0; i < kStatistics[index].size; ++i) {
      const double value = values[kStatistics[index].offset + i];
      MNIST_REQUIRE(value >= 0, "set_statistics: " << kStatistics[index].name << "[" << i << "] is " << value
                                                   << ", expected a variance >= 0");
    }
  do_set_statistics(values);
  has_statistics_ = true;
}

void Engine::get_statistics(std::span<double> values) const {
  MNIST_REQUIRE(std::int64_t(values.size()) == kStatisticCount,
                "get_statistics: room for " << values.size() << " values, expected " << kStatisticCount);
  MNIST_REQUIRE(has_statistics_, "get_statistics: none yet; call compute_statistics or set_statistics first");
  do_get_statistics(values);
}

void Engine::join(std::shared_ptr<Communicator> ranks, const std::string& transport) {
  MNIST_REQUIRE(info_.shares_batches, "join: engine '" << info_.name << "' shares no batch with other ranks");
  ranks_ = std::move(ranks);
  do_join(transport);
}

void Engine::compute_statistics() {
  MNIST_REQUIRE(dataset_size_ > 0, "compute_statistics: no data set; call set_dataset first");
  do_compute_statistics();
  has_statistics_ = true;
}

void Engine::set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                         Placement placement) {
  require_batch(images, labels.size(), "set_dataset");
  require_labels(labels, "set_dataset");
  dataset_size_ = 0;  // if the new one does not fit in memory there is none
  do_set_dataset(images, labels, placement);
  dataset_size_ = std::int64_t(labels.size());
}

std::int64_t Engine::require_steps(std::span<const std::int32_t> order, std::int64_t batch,
                                   std::span<const double> learning_rates) const {
  MNIST_REQUIRE(dataset_size_ > 0, "train: no data set; call set_dataset first");
  MNIST_REQUIRE(batch > 0 && batch <= kMaxBatch, "train: batch size is " << batch << ", expected 1 to " << kMaxBatch);
  const auto steps = step_count(std::int64_t(order.size()), batch);
  require_inputs(order, learning_rates, steps, dataset_size_);
  return steps;
}

void Engine::train(std::span<const std::int32_t> order, std::int64_t batch, std::span<const double> learning_rates,
                   std::span<StepResult> results) {
  const auto steps = require_steps(order, batch, learning_rates);
  MNIST_REQUIRE(std::int64_t(results.size()) == steps,
                "train: room for " << results.size() << " results, expected one for each of " << steps << " steps");
  if (steps == 0) return;
  has_statistics_ = false;
  do_train(order, batch, learning_rates, results);
}

void Engine::require_for_logits(std::span<const std::uint8_t> images, BatchNormMode mode) const {
  require_batch(images, images.size() / kImagePixels, "logits");
  MNIST_REQUIRE(mode == BatchNormMode::kBatch || has_statistics_,
                "logits: no population statistics; call compute_statistics or set_statistics first");
}

void Engine::logits(std::span<const std::uint8_t> images, BatchNormMode mode, std::span<double> scores) {
  require_for_logits(images, mode);
  const auto expected = images.size() / kImagePixels * kClasses;
  MNIST_REQUIRE(scores.size() == expected, "logits: room for " << scores.size() << " scores, expected " << expected);
  do_logits(images, mode, scores);
}

void Engine::device_logits(std::span<const std::uint8_t> images, BatchNormMode mode, void* scores) {
  require_gpu(info_, "device_logits");
  require_for_logits(images, mode);
  do_device_logits(images, mode, scores);
}

void Engine::set_evaluation_set(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels) {
  require_batch(images, labels.size(), "set_evaluation_set");
  require_labels(labels, "set_evaluation_set");
  evaluation_size_ = 0;
  do_set_evaluation_set(images, labels);
  evaluation_size_ = std::int64_t(labels.size());
}

Score Engine::evaluate() {
  MNIST_REQUIRE(evaluation_size_ > 0, "evaluate: no images; call set_evaluation_set first");
  MNIST_REQUIRE(has_statistics_, "evaluate: no population statistics; call compute_statistics or set_statistics first");
  return do_evaluate();
}

void Engine::do_set_evaluation_set(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels) {
  evaluation_images_.assign(images.begin(), images.end());
  evaluation_labels_.assign(labels.begin(), labels.end());
}

Score Engine::do_evaluate() {
  constexpr std::int64_t kChunk = 500;  // an engine may hold all activations of a call
  const Share share =
      ranks_ ? images_of_rank(evaluation_size_, ranks_->rank(), ranks_->size()) : Share{0, evaluation_size_};
  std::vector<double> logits((share.last - share.first) * kClasses);
  for (std::int64_t first = share.first; first < share.last; first += kChunk) {
    const auto count = std::min(kChunk, share.last - first);
    do_logits(std::span(evaluation_images_).subspan(first * kImagePixels, count * kImagePixels),
              BatchNormMode::kPopulation,
              std::span(logits).subspan((first - share.first) * kClasses, count * kClasses));
  }
  Score total = score(logits, std::span(evaluation_labels_).subspan(share.first, share.last - share.first));
  if (ranks_) {
    double sums[1 + kClasses] = {total.loss};
    std::ranges::copy(total.correct, sums + 1);
    ranks_->sum(std::span(sums));
    total.loss = sums[0];
    std::ranges::transform(std::span(sums).subspan(1), total.correct, [](double n) { return std::int64_t(n); });
  }
  return total;
}

Score score(std::span<const double> logits, std::span<const std::uint8_t> labels) {
  Score total;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto row = logits.subspan(i * kClasses, kClasses);
    const auto best = std::ranges::max_element(row);
    const bool finite = std::ranges::all_of(row, [](double value) { return std::isfinite(value); });
    double sum = 0;
    for (const double value : row) sum += std::exp(value - *best);
    total.loss += std::log(sum) - (row[labels[i]] - *best);
    total.correct[labels[i]] += finite && best - row.begin() == labels[i];
  }
  return total;
}

Probe Engine::probe(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                    const ProbeOptions& options) {
  require_batch(images, labels.size(), "probe");
  require_labels(labels, "probe");
  if (options.routing) {
    MNIST_REQUIRE(info_.follows_routing, "probe: engine '" << info_.name << "' follows no routing, expected none");
    const auto& r = *options.routing;
    MNIST_REQUIRE(r.pool1.size() == labels.size() * kPool1Size && r.pool2.size() == labels.size() * kPool2Size &&
                      r.relu3.size() == labels.size() * kHidden,
                  "probe: routing has " << r.pool1.size() << ", " << r.pool2.size() << " and " << r.relu3.size()
                                        << " entries, expected " << labels.size() << " x (" << kPool1Size << ", "
                                        << kPool2Size << ", " << kHidden << ")");
    for (const auto* pool : {&r.pool1, &r.pool2})
      for (const auto where : *pool)
        MNIST_REQUIRE(where <= Routing::kDead, "probe: routing has a position " << int(where) << ", expected 0 to 4");
  }
  return do_probe(images, labels, options);
}

std::vector<OpTime> Engine::profile(std::int64_t batch, std::int64_t steps) {
  MNIST_REQUIRE(dataset_size_ > 0, "profile: no data set; call set_dataset first");
  MNIST_REQUIRE(batch > 0 && batch <= dataset_size_,
                "profile: batch size is " << batch << ", expected 1 to " << dataset_size_);
  MNIST_REQUIRE(steps > 0, "profile: " << steps << " steps, expected at least 1");
  std::vector<double> parameters(kParameterCount);
  do_get_parameters(parameters);
  std::vector<std::int32_t> order((steps + 1) * batch);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = std::int32_t(std::int64_t(i) % dataset_size_);
  auto ops = do_profile(order, batch);
  do_set_parameters(parameters);  // a learning rate of 0 keeps their values, but not the sign of a 0
  return ops;
}

// ---- several models -------------------------------------------------------------------------------------------------

std::unique_ptr<Fleet> Engine::fleet(int models, std::int64_t batch, int multiprocessors) {
  MNIST_REQUIRE(models > 0, "fleet: " << models << " models, expected at least 1");
  MNIST_REQUIRE(batch > 0 && batch <= kMaxBatch, "fleet: batch size is " << batch << ", expected 1 to " << kMaxBatch);
  return do_fleet(models, batch, multiprocessors);
}

std::unique_ptr<Fleet> Engine::do_fleet(int, std::int64_t, int) {
  throw UnavailableError("engine '" + info_.name + "' trains one model at a time");
}

void Fleet::require_model(int model, const char* what) const {
  MNIST_REQUIRE(model >= 0 && model < models_, what << ": model is " << model << ", expected 0 to " << models_ - 1);
}

void Fleet::store(int model) {
  require_model(model, "store");
  do_store(model);
}

void Fleet::load(int model) {
  require_model(model, "load");
  do_load(model);
  engine_.has_statistics_ = false;
}

void Fleet::train(std::span<const std::int32_t> orders, std::span<const double> learning_rates,
                  std::span<StepResult> results) {
  MNIST_REQUIRE(engine_.dataset_size_ > 0, "train: no data set; call set_dataset first");
  const auto steps = std::int64_t(orders.size()) / batch_;  // of all models
  MNIST_REQUIRE(std::int64_t(orders.size()) % (batch_ * models_) == 0,
                "train: " << orders.size() << " images, expected whole batches of " << batch_ << ", as many of each of "
                          << models_ << " models");
  require_inputs(orders, learning_rates, steps, engine_.dataset_size_);
  MNIST_REQUIRE(std::int64_t(results.size()) == steps,
                "train: room for " << results.size() << " results, expected one for each of " << steps << " steps");
  if (steps > 0) do_train(orders, learning_rates, results);
}

}  // namespace mnist
