// How a step is queued, and how many become a graph.
#include "engines/fused/steps.h"

#include "engines/fused/costs.h"

namespace mnist::fused {

Steps::Steps(const EngineOptions& options, cuda::Stream& stream, GpuTimer& timer)
    : stream_(stream),
      timer_(timer),
      precision_(options.precision),
      check_every_step_(options.check_every_step),
      rows_(kernel_rows(options.precision)),
      gpu_(gpu_of(options, rows_)),
      arena_(options.precision, gpu_, stream.get()) {
  const std::string reason = why_it_does_not_fit(rows_, gpu_.limits);
  if (!reason.empty()) throw UnavailableError("engine 'fused' cannot run here: " + reason);
  stream_.synchronize();
}

Steps::Steps(const Steps& one, const Limits& share, int models, std::int64_t batch)
    : stream_(one.stream_),
      timer_(one.timer_),
      precision_(one.precision_),
      check_every_step_(one.check_every_step_),
      rows_(one.rows_),
      gpu_(one.gpu_),
      models_(models),
      arena_(precision_, gpu_, share.multiprocessors, models, batch, stream_.get()) {
  gpu_.step = share;
  stream_.synchronize();
}

void set_batch(State& s, const Plan& plan, std::int64_t batch) {
  s.batch = int(batch);
  s.inv_n1 = 1.0 / (double(s.batch) * kImagePixels);
  s.inv_n2 = 1.0 / (double(s.batch) * kCells1);
  s.conv_forward_blocks = plan.conv_forward_blocks;
  s.fc1_forward_slices = plan.fc1_slices;
  s.head_blocks = plan.head_blocks;
  s.with_fc = plan.with_fc;
  if (plan.with_fc) s.head_blocks = plan.fc_blocks;
  s.conv2_backward_blocks = plan.conv2_backward_blocks;
  s.conv2_backward_rows = plan[Phase::kConv2Backward].rows;
  s.fc1_backward_wgmma = plan[Phase::kFc1Backward].wgmma;
}

PlannedStep Steps::planned(const Limits& limits, std::int64_t batch, const Samples& samples, bool with_fc) const {
  PlannedStep step{plan_for(rows_, limits, int(batch)).value(),
                   arena_.state()};  // the constructor saw that there is a plan
  step.plan.with_fc &= with_fc;
  step.state.samples = samples;
  set_batch(step.state, step.plan, batch);
  return step;
}

// As a batch of the largest share is cut up: then all ranks run the same kernels, whose statistics are the same bits.
PlannedStep Steps::rank_step(const Batch& batch, const Samples& samples) const {
  PlannedStep step = planned(gpu_.step, ranks_->largest_share(batch.whole), samples, false);
  State& s = step.state;
  s.batch = int(batch.images);
  s.inv_n1 = 1.0 / (double(batch.whole) * kImagePixels);
  s.inv_n2 = 1.0 / (double(batch.whole) * kCells1);
  s.conv_forward_blocks = std::min(s.conv_forward_blocks, s.batch * step.plan[Phase::kConvForward].pieces());
  s.conv2_backward_blocks = std::min(s.conv2_backward_blocks, s.batch * step.plan[Phase::kConv2Backward].pieces());
  return step;
}

void Steps::queue(const KernelRow& row, const State& s, int k) {
  if (models_ == 1)
    launch(row, s, k, stream_.get());
  else
    launch(row, Pack{s, arena_.stride(), models_}, k, stream_.get());
}

void Steps::queue(PlannedStep step, int k, const Batch* share) {
  State& s = step.state;
  s.learning_rate += k;
  const auto costs = launch_costs(step.plan, s, precision_);
  for (const Phase phase : step.plan.step()) {
    const LaunchCost& cost = costs[std::size_t(phase)];
    timer_.phase(cost.phase);
    timer_.op(cost.does, cost.cost, cost.unit);
    const bool keeps_fc1 = share && phase == Phase::kFc1Backward;
    queue(step.plan[phase], keeps_fc1 ? ranks_->keeping_fc1(s) : s, k);
    // With the other ranks, where a phase leaves sums over the batch.
    if (share && phase == Phase::kConvForward) ranks_->exchange_z2(s, *share);
    if (share && phase == Phase::kFc1Backward) ranks_->exchange_dy2(s, *share);
    if (share && phase == Phase::kConv2Backward) {
      ranks_->exchange_gradients(s, *share);
      if (precision_ == Precision::kFp32 && step.plan[Phase::kFc1Backward].wgmma) copy_fc1(s);
    }
  }
  timer_.end_step();
}

void Steps::queue_training(const PlannedStep& step, int steps, const Batch& batch) {
  for (int k = 0; k < steps; ++k) {
    queue(step, k, ranks_ ? &batch : nullptr);
    if (check_every_step_) stream_.synchronize();
  }
  const bool leaves_copy = precision_ == Precision::kFp32 ? step.plan[Phase::kFc1Backward].wgmma : step.plan.with_fc;
  if (!leaves_copy) copy_fc1(step.state);
}

// `steps` steps over a window, captured once for each batch size, count and data set.
const cuda::Graph& Steps::graph(const PlannedStep& step, int steps, const Batch& batch) {
  const Samples& samples = step.state.samples;
  auto& graph = graphs_[{batch.images, batch.whole, steps, samples.images, samples.labels, samples.moments}];
  if (!graph) graph = cuda::capture(stream_.get(), [&] { queue_training(step, steps, batch); });
  return graph;
}

void Steps::run(const Samples& samples, const std::int32_t* order, const Batch& batch, const float* rates,
                std::int64_t steps, StepResult* results, bool continues, std::int64_t order_stride) {
  const cudaStream_t stream = stream_.get();
  Samples window = samples;
  window.order = arena_.order();
  const PlannedStep step = ranks_ ? rank_step(batch, window) : training_step(batch.images, window);
  for (std::int64_t done = 0; done < steps;) {
    // The longest graph that fits; 16, 8, ... steps serve the rest.
    const int now = int(std::bit_floor(std::uint64_t(std::min<std::int64_t>(steps - done, Arena::kMostSteps))));
    set_steps({.to_order = arena_.order(),
               .order = order + done * batch.images,
               .samples = (now + 1) * batch.images,
               .to_rates = arena_.rates(),
               .rates = rates + done,
               .steps = now,
               .models = models_,
               .to_stride = arena_.stride(),
               .order_stride = order_stride,
               .rates_stride = steps},
              stream);
    if (done == 0 && !continues) {
      State first = step.state;
      if (ranks_) {
        first.batch = int(batch.whole);
        first.samples.order = batch.first;
      }
      start_batch_norm(first);
    }
    if (check_every_step_ || (ranks_ && !ranks_->in_graphs()))
      queue_training(step, now, batch);
    else
      graph(step, now, batch).launch(stream);
    if (models_ == 1)
      cuda::copy(results + done, arena_.results(), now, stream);
    else
      cuda::copy_rows(results + done, steps * std::int64_t(sizeof(StepResult)), arena_.results(), arena_.stride(), now,
                      models_, stream);
    done += now;
  }
}

}  // namespace mnist::fused
