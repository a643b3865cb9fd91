// The step loop of the CUDA engines, and everything around it that does not depend on how a layer is computed.
#include "engines/cuda_engine.h"

#include <algorithm>
#include <utility>

#include "kernels/sgd.h"
#include "mnist/ceil_div.h"

namespace mnist {
namespace {

constexpr std::int64_t kEvaluationChunk = 1000;  // images of one pass where the batch's size is ours to choose

template <class T>
std::vector<T> rounded(std::span<const double> values) {
  return {values.begin(), values.end()};
}

}  // namespace

template <class T>
CudaEngine<T>::CudaEngine(EngineInfo info, EngineOptions options) : GpuEngine(std::move(info), options) {
  cuda::fill_bytes(parameters_.data(), 0, kParameterCount, stream());
  cuda::fill_bytes(gradients_.data(), 0, kParameterCount, stream());
}

template <class T>
std::int64_t CudaEngine<T>::evaluation_chunk() const {
  return kEvaluationChunk;
}

template <class T>
void CudaEngine<T>::update(const T* learning_rate) {
  kernels::sgd_update(parameters_.data(), gradients_.data(), learning_rate, kParameterCount, stream());
}

template <class T>
std::vector<double> CudaEngine<T>::read_slab(const T* slab) const {
  std::vector<T> host(kParameterCount);
  cuda::download(host, slab, stream());
  to_torch_order(host);
  return {host.begin(), host.end()};
}

template <class T>
void CudaEngine<T>::do_set_parameters(std::span<const double> values) {
  const cuda::DeviceGuard guard(options().device);
  auto host = rounded<T>(values);
  to_engine_order(host);
  cuda::upload(parameters_.data(), host, stream());
  parameters_changed();
}

template <class T>
void CudaEngine<T>::do_get_parameters(std::span<double> values) const {
  const cuda::DeviceGuard guard(options().device);
  std::ranges::copy(read_slab(parameters_.data()), values.begin());
}

// By way of the host, which knows PyTorch's order.
template <class T>
void CudaEngine<T>::do_get_device_parameters(void* values) const {
  const cuda::DeviceGuard guard(options().device);
  const auto host = rounded<T>(read_slab(parameters_.data()));
  cuda::upload(static_cast<T*>(values), host, stream());
  MNIST_CHECK(cudaStreamSynchronize(stream()));
}

template <class T>
void CudaEngine<T>::do_set_statistics(std::span<const double> values) {
  const cuda::DeviceGuard guard(options().device);
  cuda::upload(statistics_.data(), rounded<T>(values), stream());
}

template <class T>
void CudaEngine<T>::do_get_statistics(std::span<double> values) const {
  const cuda::DeviceGuard guard(options().device);
  std::ranges::copy(read(statistics_.data(), kStatisticCount), values.begin());
}

template <class T>
void CudaEngine<T>::do_set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                                   Placement placement) {
  const cuda::DeviceGuard guard(options().device);
  recorded_.clear();
  feeder_.set_dataset(images, labels, placement);
}

template <class T>
void CudaEngine<T>::reserve_run(std::int64_t batch, std::int64_t steps) {
  if (batch > capacity_) recorded_.clear();  // before anything moves: memory may run out half way
  bool moved = feeder_.reserve(batch);
  if (results_.reserve(steps)) {
    cuda::fill_bytes(results_.data(), 0, results_.size(), stream());  // StepResult's padding is read back too
    moved = true;
  }
  moved |= learning_rates_.reserve(steps);
  if (batch > capacity_) {
    capacity_ = 0;
    logits_.reserve(batch * kClasses);
    log_p_.reserve(batch * kClasses);
    reserve(batch);
    capacity_ = batch;
  }
  if (moved) recorded_.clear();
}

template <class T>
void CudaEngine<T>::start(std::span<const double> learning_rates) {
  const kernels::StepState state;
  cuda::upload(state_.data(), {&state, 1}, stream());
  cuda::upload(learning_rates_.data(), rounded<T>(learning_rates), stream());
}

template <class T>
void CudaEngine<T>::evaluate(const Batch& batch) {
  forward(batch, nullptr);
  if (records()) return;
  MNIST_PHASE("record");
  timer().op("record_step", kernels::record_cost(batch.size));
  kernels::record_step(step_record(), log_p(), logits(), batch.labels, batch.size, stream());
}

template <class T>
void CudaEngine<T>::queue_step(int slot, std::int64_t size) {
  Batch batch = feeder_.batch(slot, size);
  if (feeder_.on_device() && gathers()) {
    batch.from = feeder_.gather_from(state_.data());
  } else if (feeder_.on_device()) {
    MNIST_PHASE("gather");
    timer().op("gather_batch", kernels::gather_cost(size));
    feeder_.gather(size, state_.data());
  }
  evaluate(batch);
  backward(batch);
  MNIST_PHASE("update");
  timer().op("sgd_update", kernels::sgd_cost(kParameterCount, sizeof(T)));
  update(learning_rate_.data());
  timer().end_step();
}

template <class T>
void CudaEngine<T>::run_step(int slot, std::int64_t size) {
  if (options().check_every_step) {
    queue_step(slot, size);
    compute().synchronize();
    return;
  }
  for (auto& step : recorded_) {
    if (step.slot != slot || step.size != size) continue;
    if (!step.graph) step.graph = cuda::capture(stream(), [&] { queue_step(slot, size); });
    step.graph.launch(stream());
    return;
  }
  queue_step(slot, size);
  recorded_.push_back({slot, size, {}});
}

template <class T>
void CudaEngine<T>::do_train(std::span<const std::int32_t> order, std::int64_t batch,
                             std::span<const double> learning_rates, std::span<StepResult> results) {
  MNIST_RANGE("train");
  const cuda::DeviceGuard guard(options().device);
  batch = std::min(batch, std::int64_t(order.size()));
  reserve_run(batch, std::int64_t(results.size()));
  start(learning_rates);
  if (feeder_.set_order(order)) recorded_.clear();
  for (std::size_t step = 0; step < results.size(); ++step) {
    const auto now = order.subspan(step * batch).first(std::min(order.size() - step * batch, std::size_t(batch)));
    if (feeder_.on_device()) {
      run_step(0, std::int64_t(now.size()));
    } else {
      feeder_.send(std::int64_t(step), now);
      run_step(int(step % BatchFeeder::kSlots), std::int64_t(now.size()));
      feeder_.release(std::int64_t(step));
    }
  }
  cuda::download(results, results_.data(), stream());
}

template <class T>
void CudaEngine<T>::do_logits(std::span<const std::uint8_t> images, BatchNormMode mode, std::span<double> scores) {
  for_each_chunk_of(images, mode, [&](std::int64_t first, std::int64_t count) {
    std::ranges::copy(read(logits(), count * kClasses), scores.begin() + first * kClasses);
  });
}

template <class T>
void CudaEngine<T>::do_device_logits(std::span<const std::uint8_t> images, BatchNormMode mode, void* scores) {
  for_each_chunk_of(images, mode, [&](std::int64_t first, std::int64_t count) {
    cuda::copy(static_cast<T*>(scores) + first * kClasses, logits(), count * kClasses, stream());
  });
  compute().synchronize();
}

template <class T>
template <class Visit>
void CudaEngine<T>::for_each_chunk_of(std::span<const std::uint8_t> images, BatchNormMode mode, Visit visit) {
  const cuda::DeviceGuard guard(options().device);
  const auto total = std::int64_t(images.size()) / kImagePixels;
  const bool population = mode == BatchNormMode::kPopulation;
  const auto chunk = population ? std::min(total, kEvaluationChunk) : total;
  reserve_run(chunk, 1);
  for (std::int64_t first = 0; first < total; first += chunk) {
    const auto count = std::min(chunk, total - first);
    forward(feeder_.load(images.subspan(first * kImagePixels, count * kImagePixels)),
            population ? statistics_.data() : nullptr);
    visit(first, count);
  }
}

template <class T>
Probe CudaEngine<T>::do_probe(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                              const ProbeOptions& options) {
  const cuda::DeviceGuard guard(this->options().device);
  const auto size = std::int64_t(labels.size());
  reserve_run(size, 1);
  start(std::vector<double>(1));
  Batch batch = feeder_.load(images, labels);
  batch.upstream = options.upstream;
  batch.routed = options.routing != nullptr;
  if (batch.routed) write_routing(*options.routing);
  evaluate(batch);
  backward(batch);
  finish_gradients();
  Probe probe;
  StepResult result;
  cuda::download({&result, 1}, results_.data(), stream());
  probe.loss = result.loss;
  probe.correct = result.correct;
  probe.gradients = read_slab(gradients_.data());
  probe.logits = read(logits(), size * kClasses);
  read_activations(size, probe);
  return probe;
}

template <class T>
std::vector<OpTime> CudaEngine<T>::do_profile(std::span<const std::int32_t> order, std::int64_t batch) {
  require_for_profile(feeder_.on_device());
  const cuda::DeviceGuard guard(options().device);
  const auto steps = std::int64_t(order.size()) / batch;
  reserve_run(batch, steps);
  start(std::vector<double>(steps));
  if (feeder_.set_order(order)) recorded_.clear();
  return time_ops(steps, [&] { queue_step(0, batch); });
}

template <class T>
void CudaEngine<T>::do_compute_statistics() {
  const cuda::DeviceGuard guard(options().device);
  reserve_run(std::min(dataset_size(), kEvaluationChunk), 1);
  accumulate_statistics(1, kBn1Mean, kBn1Var, kImagePixels);
  accumulate_statistics(2, kBn2Mean, kBn2Var, std::int64_t(kPool1Side) * kPool1Side);
}

// Chunks of n_k values with mean m_k and variance v_k merge by the law of total variance, in float64
// (Chan, Golub, LeVeque 1979): with d = m_k - mean and n the count so far,
//   mean += d n_k / (n + n_k),   n var += n_k v_k + d^2 n n_k / (n + n_k).
template <class T>
void CudaEngine<T>::accumulate_statistics(int layer, StatisticIndex mean_index, StatisticIndex var_index,
                                          std::int64_t area) {
  const auto channels = kStatistics[mean_index].size;
  const auto total = dataset_size(), chunks = ceil_div(total, kEvaluationChunk);
  cuda::DeviceBuffer<T> partial(chunks * 2 * channels);  // mean, then variance, of each chunk
  for (std::int64_t k = 0; k < chunks; ++k) {
    const auto first = k * kEvaluationChunk;
    T* mean = partial.data() + 2 * k * channels;
    layer_statistics(layer, feeder_.load_dataset(first, std::min(kEvaluationChunk, total - first)), statistics_.data(),
                     mean, mean + channels);
  }
  const auto chunk_values = read(partial.data(), partial.size());
  std::vector<T> means, vars;
  for (std::int64_t c = 0; c < channels; ++c) {
    double n = 0, mean = 0, squares = 0;
    for (std::int64_t k = 0; k < chunks; ++k) {
      const double count = double(std::min(kEvaluationChunk, total - k * kEvaluationChunk)) * double(area);
      const double difference = chunk_values[2 * k * channels + c] - mean;
      mean += difference * count / (n + count);
      squares += count * chunk_values[(2 * k + 1) * channels + c] + difference * difference * n * count / (n + count);
      n += count;
    }
    means.push_back(T(mean));
    vars.push_back(T(squares / n));
  }
  cuda::upload(statistics_.data() + kStatistics[mean_index].offset, means, stream());
  cuda::upload(statistics_.data() + kStatistics[var_index].offset, vars, stream());
}

template class CudaEngine<float>;
template class CudaEngine<double>;

}  // namespace mnist
