// What the CUDA engines that work op by op share: parameters and gradients in one slab each, batches, the step loop,
// evaluation. T is what they compute with at their ends, float or double: parameters, gradients, statistics, scores.
//
// An engine of this family supplies forward, backward and a few hooks below; they only queue work on stream(), with
// the GPU selected, and may be recorded into a CUDA graph. How a run of steps flows:
//
//   train(order)  -> order and learning rates to the GPU, once
//     step        -> gather the batch -> forward -> record loss -> backward -> update      (nothing waits)
//   results       <- read once, after the last step
#pragma once

#include <vector>

#include "cuda/buffer.h"
#include "cuda/graph.h"
#include "engines/batch_feeder.h"
#include "engines/gpu_engine.h"
#include "kernels/step.h"

namespace mnist {

template <class T>
class CudaEngine : public GpuEngine {
 public:
  CudaEngine(EngineInfo info, EngineOptions options);

  std::int64_t evaluation_chunk() const override;

 protected:
  // ---- what an engine supplies ------------------------------------------------------------------------------------
  // Makes room for batches of up to `batch` images, more than ever before. The only place to allocate and to choose
  // algorithms; recorded graphs are dropped afterwards.
  virtual void reserve(std::int64_t batch) = 0;

  // Sets logits() and log_p() of the batch. `statistics` (kStatisticCount): normalise by these; null: by the batch's
  // own, which are kept for backward.
  virtual void forward(const Batch& batch, const T* statistics) = 0;

  // Sets all gradients of batch.upstream * (mean loss) of the batch that the last forward saw.
  virtual void backward(const Batch& batch) = 0;

  // One step along the gradients; plain SGD unless overridden. *learning_rate is in the GPU's memory.
  virtual void update(const T* learning_rate);

  // An engine whose update ends the sums of backward, and stores no gradient: sets the gradients, where there is no
  // update.
  virtual void finish_gradients() {}

  // Whether forward, by the batch's own statistics and with labels, also records the step, in step_record().
  virtual bool records() const { return false; }

  // Whether forward gathers a batch of a data set on the GPU itself, from batch.from.
  virtual bool gathers() const { return false; }

  // Mean and biased variance by channel of what convolution `layer` (1 or 2) gives for the batch, bias included,
  // where batch norm 1 normalises by `statistics`; both outputs are in the GPU's memory.
  virtual void layer_statistics(int layer, const Batch& batch, const T* statistics, T* mean, T* var) = 0;

  // Fills a1, a2, h and the routing of the last forward, in the layouts of Probe. May wait.
  virtual void read_activations(std::int64_t batch, Probe& probe) = 0;

  // Where the registry says that the engine follows a routing: keeps it for the forward of a batch that is `routed`.
  virtual void write_routing(const Routing&) {}

  // The parameters were replaced: forget what was derived from them.
  virtual void parameters_changed() {}

  // An engine may keep parameters and gradients in another order than PyTorch's, tensor by tensor; these change a
  // slab from one to the other, in place, on the host.
  virtual void to_engine_order(std::span<T>) const {}
  virtual void to_torch_order(std::span<T>) const {}

  // ---- what an engine may use -------------------------------------------------------------------------------------
  T* parameter(ParameterIndex index) const { return parameters_.data() + kParameters[index].offset; }
  T* gradient(ParameterIndex index) const { return gradients_.data() + kParameters[index].offset; }
  kernels::StepRecord<T> step_record() const {
    return {results_.data(), state_.data(), learning_rate_.data(), learning_rates_.data()};
  }
  T* parameters() const { return parameters_.data(); }
  T* gradients() const { return gradients_.data(); }
  T* logits() const { return logits_.data(); }  // (B, kClasses)
  T* log_p() const { return log_p_.data(); }    // (B, kClasses)

  // A slab of parameters or gradients from the GPU, in PyTorch's order; waits.
  std::vector<double> read_slab(const T* slab) const;
  // `count` values from the GPU, widened to float64; waits.
  std::vector<double> read(const T* values, std::int64_t count) const { return read_values(values, count, stream()); }

 private:
  void do_set_parameters(std::span<const double> values) override;
  void do_get_parameters(std::span<double> values) const override;
  void do_get_device_parameters(void* values) const override;
  void do_set_statistics(std::span<const double> values) override;
  void do_get_statistics(std::span<double> values) const override;
  void do_compute_statistics() override;
  void do_set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                      Placement placement) override;
  void do_train(std::span<const std::int32_t> order, std::int64_t batch, std::span<const double> learning_rates,
                std::span<StepResult> results) override;
  void do_logits(std::span<const std::uint8_t> images, BatchNormMode mode, std::span<double> scores) override;
  void do_device_logits(std::span<const std::uint8_t> images, BatchNormMode mode, void* scores) override;
  // Calls visit(first, count) when it is queued that logits() has the scores of `count` images from `first` on.
  template <class Visit>
  void for_each_chunk_of(std::span<const std::uint8_t> images, BatchNormMode mode, Visit visit);
  Probe do_probe(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                 const ProbeOptions& options) override;
  std::vector<OpTime> do_profile(std::span<const std::int32_t> order, std::int64_t batch) override;

  // Room everywhere for batches of that size and a run of `steps`.
  void reserve_run(std::int64_t batch, std::int64_t steps);
  // Starts a run: step 0, cursor 0. reserve_run() made room for the rates, one a step.
  void start(std::span<const double> learning_rates);
  // Queues forward, and record_step unless forward records().
  void evaluate(const Batch& batch);
  // Queues one whole step on the slot's batch; the second time and later as a graph.
  void run_step(int slot, std::int64_t size);
  void queue_step(int slot, std::int64_t size);
  // Population statistics of one layer into statistics_, from those of the layer before.
  void accumulate_statistics(int layer, StatisticIndex mean, StatisticIndex var, std::int64_t area);

  // A step of one batch size on one slot: run once as it is, so that everything lazy has happened, then recorded.
  struct RecordedStep {
    int slot;
    std::int64_t size;
    cuda::Graph graph;
  };

  BatchFeeder feeder_{compute()};
  cuda::DeviceBuffer<T> parameters_{kParameterCount}, gradients_{kParameterCount}, statistics_{kStatisticCount};
  cuda::DeviceBuffer<T> logits_, log_p_, learning_rate_{1}, learning_rates_;
  cuda::DeviceBuffer<kernels::StepState> state_{1};
  cuda::DeviceBuffer<StepResult> results_;
  std::int64_t capacity_ = 0;  // batch size there is room for
  std::vector<RecordedStep> recorded_;
};

}  // namespace mnist
