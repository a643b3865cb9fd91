// Steps of the fused engine, of one model or of several side by side: six launches each, or four, cut up by the plan of
// their batch, many steps a CUDA graph. With other ranks three exchanges stand between them.
#pragma once

#include <map>
#include <tuple>

#include "engines/fused/arena.h"
#include "engines/fused/ranks.h"
#include "engines/gpu_engine.h"

namespace mnist::fused {

// Sets the numbers of a state that depend on a batch's size, by its plan.
void set_batch(State& s, const Plan& plan, std::int64_t batch);

// A step of a batch: its plan, and the state as the plan cuts it up.
struct PlannedStep {
  Plan plan;
  State state;
};
inline constexpr std::initializer_list<Phase> kForward = {Phase::kConvForward, Phase::kFc1Forward, Phase::kHead};

// Every method only queues work on `stream`, with the GPU selected, unless it says that it waits.
class Steps {
 public:
  Steps(const EngineOptions& options, cuda::Stream& stream, GpuTimer& timer);
  // Of several models on the GPU of `one`, each on `share` of it, which is less than `batch` multiprocessors.
  Steps(const Steps& one, const Limits& share, int models, std::int64_t batch);

  Precision precision() const { return precision_; }
  const Gpu& gpu() const { return gpu_; }
  std::span<const KernelRow> rows() const { return rows_; }
  const Arena& arena() const { return arena_; }

  // Room for batches of up to `batch` images. Graphs hold addresses, so they go if anything moves.
  void reserve(std::int64_t batch) {
    arena_.reserve(batch, [this] { graphs_.clear(); });
  }
  void forget_graphs() { graphs_.clear(); }  // the samples moved

  // A step on a batch, cut up for it; an evaluation pass is cut up for the whole GPU.
  PlannedStep training_step(std::int64_t batch, const Samples& samples) const {
    return planned(gpu_.step, batch, samples, true);
  }
  PlannedStep evaluation_pass(std::int64_t batch, const Samples& samples) const {
    return planned(gpu_.limits, batch, samples, false);
  }
  // For Engine::batch_thresholds().
  std::vector<std::int64_t> course(std::int64_t batch) const {
    return course_of(plan_for(rows_, gpu_.step, int(batch)).value(), int(batch));
  }

  // From now on run() makes steps of all ranks.
  void join(std::unique_ptr<Ranks> ranks) {
    graphs_.clear();
    ranks_ = std::move(ranks);
  }
  Ranks* ranks() const { return ranks_.get(); }  // null: none

  // Gradient of the objective with respect to the mean loss, for the steps to come of all models.
  void set_upstream(double upstream) {
    const float value = float(upstream);
    cuda::upload(arena_.upstream(), {&value, 1}, stream_.get());
  }
  // For steps that run outside of a window.
  void clear_rates() { cuda::fill_bytes(arena_.rates(), 0, Arena::kMostSteps, stream_.get()); }

  // The parameters changed: so do the kernels' copies of them.
  void repack_weights() { fused::repack_weights(rows_, arena_.state(), stream_.get()); }
  // bn1 for the batch of the first step of a graph, which update does for all others.
  void start_batch_norm(const State& s) { queue(row_of(rows_, Phase::kStartBatchNorm), s, 0); }
  // Step `k` of a graph, of this engine by itself; or some of its phases, of the first step.
  void queue(const PlannedStep& step, int k) { queue(step, k, nullptr); }
  void queue(const PlannedStep& step, std::initializer_list<Phase> phases) {
    for (const Phase phase : phases) queue(step.plan[phase], step.state, 0);
  }

  // Steps of one batch size over samples already on the device. `order` has one batch more than it trains on: the
  // last step still looks ahead. `continues`: the step before did that, for the first one here. Of several models
  // order is (models, order_stride), rates and results (models, steps).
  void run(const Samples& samples, const std::int32_t* order, const Batch& batch, const float* rates,
           std::int64_t steps, StepResult* results, bool continues = false, std::int64_t order_stride = 0);

 private:
  PlannedStep planned(const Limits& limits, std::int64_t batch, const Samples& samples, bool with_fc) const;
  PlannedStep rank_step(const Batch& batch, const Samples& samples) const;
  void queue(const KernelRow& row, const State& s, int k);
  void queue(PlannedStep step, int k, const Batch* share);
  // `steps` steps of a training, and what only later batches read.
  void queue_training(const PlannedStep& step, int steps, const Batch& batch);
  // State::fc1_copy, of the weights as they are now. In fp32 fc1_backward by wgmma leaves it itself, of its own rank.
  void copy_fc1(const State& s) {
    if (s.fc1_copy) queue(row_of(rows_, Phase::kCopyFc1), s, 0);
  }
  const cuda::Graph& graph(const PlannedStep& step, int steps, const Batch& batch);

  cuda::Stream& stream_;
  GpuTimer& timer_;
  Precision precision_;
  bool check_every_step_;
  std::span<const KernelRow> rows_;
  Gpu gpu_;
  int models_ = 1;
  Arena arena_;
  std::unique_ptr<Ranks> ranks_;
  // By their batch, steps, and where the samples are.
  std::map<std::tuple<std::int64_t, std::int64_t, int, const void*, const void*, const void*>, cuda::Graph> graphs_;
};

}  // namespace mnist::fused
