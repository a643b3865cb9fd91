// How a step of several models is queued, and how many become a graph.
#include "engines/fused/pack_steps.h"

#include <algorithm>
#include <bit>

namespace mnist::fused {

PackSteps::PackSteps(const EngineOptions& options, const Steps& steps, const Limits& share, cuda::Stream& stream,
                     int models, std::int64_t batch)
    : stream_(stream),
      steps_(steps),
      share_(share),
      check_every_step_(options.check_every_step),
      models_(models),
      batch_(batch),
      arena_(options.precision, steps.gpu(), share, batch, models, stream.get()) {
  const float one = 1;
  cuda::upload(upstream_.data(), {&one, 1}, stream.get());
  stream.synchronize();
}

void PackSteps::queue(const Plan& plan, Pack pack, int k) {
  pack.first.learning_rate += k;
  for (const Phase phase : kStepPhases) launch(plan[phase], pack, k, stream_.get());
}

const cuda::Graph& PackSteps::graph(const Plan& plan, const Pack& pack, int steps) {
  const Samples& samples = pack.first.samples;
  auto& graph = graphs_[{steps, samples.images, samples.labels, samples.moments}];
  if (!graph)
    graph = cuda::capture(stream_.get(), [&] {
      for (int k = 0; k < steps; ++k) queue(plan, pack, k);
    });
  return graph;
}

void PackSteps::run(const Samples& samples, const std::int32_t* order, std::int64_t order_stride, const float* rates,
                    std::int64_t steps, StepResult* results) {
  const cudaStream_t stream = stream_.get();
  const Arrays& arrays = arena_.first();
  Samples window = samples;
  window.order = arrays.order;
  const PlannedStep step = steps_.planned(share_, arrays.state, batch_, window);
  Pack pack{step.state, arena_.stride(), models_};
  pack.first.upstream = upstream_.data();
  for (std::int64_t done = 0; done < steps;) {
    const int now = int(std::bit_floor(std::uint64_t(std::min<std::int64_t>(steps - done, Arena::kMostSteps))));
    set_steps({.to_order = arrays.order,
               .order = order + done * batch_,
               .samples = (now + 1) * batch_,
               .to_rates = arrays.rates,
               .rates = rates + done,
               .steps = now,
               .models = models_,
               .to_stride = arena_.stride(),
               .order_stride = order_stride,
               .rates_stride = steps},
              stream);
    if (done == 0) launch(row_of(steps_.rows(), Phase::kStartBatchNorm), pack, 0, stream);
    if (check_every_step_)
      for (int k = 0; k < now; ++k) {
        queue(step.plan, pack, k);
        stream_.synchronize();
      }
    else
      graph(step.plan, pack, now).launch(stream);
    cuda::copy_rows(results + done, steps * std::int64_t(sizeof(StepResult)), arrays.state.results, arena_.stride(),
                    now, models_, stream);
    done += now;
  }
}

}  // namespace mnist::fused
