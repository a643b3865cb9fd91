// How a step is queued, and how many become a graph.
#include "engines/fused/steps.h"

#include <algorithm>
#include <bit>

#include "engines/fused/costs.h"

namespace mnist::fused {

Steps::Steps(const EngineOptions& options, cuda::Stream& stream, GpuTimer& timer)
    : stream_(stream),
      timer_(timer),
      precision_(options.precision),
      check_every_step_(options.check_every_step),
      kernels_(kernels_for(options.precision)),
      gpu_(gpu_of(options, kernels_)),
      arena_(options.precision, gpu_, stream.get()) {
  const std::string reason = why_it_does_not_fit(kernels_.tiles(), gpu_.limits);
  if (!reason.empty()) throw UnavailableError("engine 'fused' cannot run here: " + reason);
  stream_.synchronize();
}

void cut_up(State& s, const Plan& plan, std::int64_t batch) {
  s.batch = int(batch);
  s.inv_n1 = 1.0 / (double(s.batch) * kImagePixels);
  s.inv_n2 = 1.0 / (double(s.batch) * kCells1);
  s.conv_forward_many = plan.conv_forward.many;
  s.conv_forward_halves = plan.conv_forward.rows / (kPool1Side / 2);
  s.conv_forward_blocks = plan.conv_forward_blocks;
  s.fc1_forward_wgmma = plan.fc1_forward.wgmma;
  s.fc1_forward_rows = plan.fc1_forward.rows;
  s.fc1_forward_slices = plan.fc1_slices;
  s.fc1_forward_stages = std::uint8_t(plan.fc1_forward.stages);
  s.fc1_backward_stages = std::uint8_t(plan.fc1_backward.stages);
  s.fc1_backward_wgmma = plan.fc1_backward.wgmma;
  s.head_blocks = plan.head_blocks;
  s.conv2_backward_wgmma = plan.conv2_backward.layout != Layout::kPixels;
  s.conv2_backward_rows = plan.conv2_backward.rows;
  s.conv2_backward_parts = std::uint8_t(plan.conv2_backward.parts);
  s.conv2_backward_blocks = plan.conv2_backward_blocks;
}

State Steps::state_on(const Limits& limits, const State& arrays, std::int64_t batch, const Samples& samples) const {
  State s = arrays;
  s.samples = samples;
  cut_up(s, plan_for(kernels_.tiles(), limits, int(batch)).value(), batch);  // or there were no such engine
  return s;
}

// As a batch of the largest share is cut up: then all ranks run the same kernels, whose statistics are the same bits.
State Steps::share_state(const Batch& batch, const Samples& samples) const {
  State s = state_for(ranks_->largest_share(batch.whole), samples);
  s.batch = int(batch.images);
  s.inv_n1 = 1.0 / (double(batch.whole) * kImagePixels);
  s.inv_n2 = 1.0 / (double(batch.whole) * kCells1);
  s.conv_forward_blocks = std::min(s.conv_forward_blocks, s.batch * 2 / s.conv_forward_halves);
  s.conv2_backward_blocks =
      std::min(s.conv2_backward_blocks, s.batch * s.conv2_backward_parts * int(kPool1Side) / s.conv2_backward_rows);
  return s;
}

void Steps::join(std::unique_ptr<Ranks> ranks) {
  graphs_.clear();
  ranks_ = std::move(ranks);
}

void Steps::set_upstream(double upstream) {
  const float value = float(upstream);
  cuda::upload(arena_.upstream(), {&value, 1}, stream_.get());
}

void Steps::clear_rates() { cuda::fill_bytes(arena_.rates(), 0, Arena::kMostSteps, stream_.get()); }

void Steps::queue(State s, int k, const Batch* share) {
  s.learning_rate += k;
  const auto costs = launch_costs(s, precision_);
  const auto mark = [&](const char* phase, const char* does, const LaunchCost& cost) {
    timer_.phase(phase);
    timer_.op(does, cost.cost, cost.unit);
  };
  const cudaStream_t stream = stream_.get();
  mark("conv_forward", "conv1, bn1, pool1, conv2", costs.conv_forward);
  kernels_.conv_forward(s, k, stream);
  if (share) ranks_->exchange_z2(s, *share);
  mark("fc1_forward", "bn2, pool2, fc1", costs.fc1_forward);
  kernels_.fc1_forward(s, stream);
  mark("head", "fc2, loss, fc2 backward", costs.head);
  kernels_.head(s, k, stream);
  mark("fc1_backward", "fc1 backward, its SGD", costs.fc1_backward);
  kernels_.fc1_backward(share ? ranks_->keeping_fc1(s) : s, stream);
  if (share) ranks_->exchange_dy2(s, *share);
  mark("conv2_backward", "conv2 backward", costs.conv2_backward);
  kernels_.conv2_backward(s, k, stream);
  if (share) ranks_->exchange_gradients(s, *share);
  mark("update", "conv1 backward, SGD", costs.update);
  kernels_.update(s, k, stream);
  timer_.end_step();
}

// `steps` steps over a window, captured once for each batch size, count and data set.
const cuda::Graph& Steps::graph(const State& s, int steps, const Batch& batch) {
  auto& graph = graphs_[{batch.images, batch.whole, steps, s.samples.images}];
  if (!graph)
    graph = cuda::capture(stream_.get(), [&] {
      for (int k = 0; k < steps; ++k) queue(s, k, ranks_ ? &batch : nullptr);
    });
  return graph;
}

void Steps::run(const Samples& samples, const std::int32_t* order, const Batch& batch, const float* rates,
                std::int64_t steps, StepResult* results, bool continues) {
  const cudaStream_t stream = stream_.get();
  Samples window = samples;
  window.order = arena_.order();
  const State s = ranks_ ? share_state(batch, window) : state_for(batch.images, window);
  for (std::int64_t done = 0; done < steps;) {
    // The longest graph that fits; 16, 8, ... steps serve the rest.
    const int now = int(std::bit_floor(std::uint64_t(std::min<std::int64_t>(steps - done, Arena::kMostSteps))));
    set_steps({.to_order = arena_.order(),
               .order = order + done * batch.images,
               .samples = (now + 1) * batch.images,
               .to_rates = arena_.rates(),
               .rates = rates + done,
               .steps = now},
              stream);
    if (done == 0 && !continues) {
      State first = s;
      if (ranks_) {
        first.batch = int(batch.whole);
        first.samples.order = batch.first;
      }
      kernels_.prepare(first, 0, stream);
    }
    if (check_every_step_ || (ranks_ && !ranks_->in_graphs()))
      for (int k = 0; k < now; ++k) {
        queue(s, k, ranks_ ? &batch : nullptr);
        stream_.synchronize();
      }
    else
      graph(s, now, batch).launch(stream);
    cuda::copy(results + done, arena_.results(), now, stream);
    done += now;
  }
}

}  // namespace mnist::fused
