// Steps of several models side by side: as Steps, with launches that serve them all.
#pragma once

#include <map>
#include <tuple>

#include "cuda/graph.h"
#include "engines/fused/steps.h"

namespace mnist::fused {

// Every method only queues work on `stream`, with the GPU selected.
class PackSteps {
 public:
  // Each model's steps are cut up for `share`, which is less than `batch` multiprocessors.
  PackSteps(const EngineOptions& options, const Steps& steps, const Limits& share, cuda::Stream& stream, int models,
            std::int64_t batch);

  const PackArena& arena() const { return arena_; }

  // Steps over samples already on the device: order (models, order_stride), of which it trains on steps * batch and
  // looks ahead one batch more, rates and results (models, steps).
  void run(const Samples& samples, const std::int32_t* order, std::int64_t order_stride, const float* rates,
           std::int64_t steps, StepResult* results);

 private:
  void queue(const Plan& plan, Pack pack, int k);
  const cuda::Graph& graph(const Plan& plan, const Pack& pack, int steps);

  cuda::Stream& stream_;
  const Steps& steps_;
  Limits share_;
  bool check_every_step_;
  int models_;
  std::int64_t batch_;
  PackArena arena_;
  cuda::DeviceBuffer<float> upstream_{1};  // of all models: 1
  // By their steps, and where the samples are.
  std::map<std::tuple<int, const void*, const void*, const void*>, cuda::Graph> graphs_;
};

}  // namespace mnist::fused
