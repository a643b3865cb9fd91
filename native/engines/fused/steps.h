// Steps of the fused engine: six launches each, cut up by the plan of their batch, many steps a CUDA graph. With other
// ranks three exchanges stand between them.
#pragma once

#include <map>
#include <memory>
#include <tuple>

#include "cuda/graph.h"
#include "cuda/stream.h"
#include "engines/fused/arena.h"
#include "engines/fused/gpu.h"
#include "engines/fused/kernels.h"
#include "engines/fused/ranks.h"
#include "engines/gpu_engine.h"

namespace mnist::fused {

// Sets what of a state depends on a batch's size, by its plan.
void cut_up(State& s, const Plan& plan, std::int64_t batch);

// Every method only queues work on `stream`, with the GPU selected, unless it says that it waits.
class Steps {
 public:
  Steps(const EngineOptions& options, cuda::Stream& stream, GpuTimer& timer);

  Precision precision() const { return precision_; }
  const Gpu& gpu() const { return gpu_; }
  const Kernels& kernels() const { return kernels_; }
  const Arena& arena() const { return arena_; }

  // Room for batches of up to `batch` images. Graphs hold addresses, so they go if anything moves.
  void reserve(std::int64_t batch) {
    arena_.reserve(batch, [this] { graphs_.clear(); });
  }
  void forget_graphs() { graphs_.clear(); }  // the samples moved

  // A step on a batch, cut up for it; an evaluation pass is cut up for the whole GPU.
  State state_for(std::int64_t batch, const Samples& samples) const {
    return state_on(gpu_.step, arena_.state(), batch, samples);
  }
  State pass_for(std::int64_t batch, const Samples& samples) const {
    return state_on(gpu_.limits, arena_.state(), batch, samples);
  }
  State state_on(const Limits& limits, const State& arrays, std::int64_t batch, const Samples& samples) const;
  // What of that decides how the phases go through it, for Engine::batch_thresholds().
  Schedule schedule(std::int64_t batch) const { return kernels_.schedule(state_for(batch, {})); }

  // From now on run() makes steps of all ranks.
  void join(std::unique_ptr<Ranks> ranks);
  Ranks* ranks() const { return ranks_.get(); }  // null: none

  // Gradient of the objective with respect to the mean loss, for the steps to come.
  void set_upstream(double upstream);
  // For steps that run outside of a window.
  void clear_rates();

  // Step `k` of a graph, of this engine by itself.
  void queue(State s, int k) { queue(s, k, nullptr); }

  // Steps of one batch size over samples already on the device. `order` has one batch more than it trains on: the
  // last step still looks ahead. `continues`: the step before did that, for the first one here.
  void run(const Samples& samples, const std::int32_t* order, const Batch& batch, const float* rates,
           std::int64_t steps, StepResult* results, bool continues = false);

 private:
  State share_state(const Batch& batch, const Samples& samples) const;
  void queue(State s, int k, const Batch* share);
  const cuda::Graph& graph(const State& s, int steps, const Batch& batch);

  cuda::Stream& stream_;
  GpuTimer& timer_;
  Precision precision_;
  bool check_every_step_;
  Kernels kernels_;
  Gpu gpu_;
  Arena arena_;
  std::unique_ptr<Ranks> ranks_;
  std::map<std::tuple<std::int64_t, std::int64_t, int, const void*>, cuda::Graph> graphs_;
};

}  // namespace mnist::fused
