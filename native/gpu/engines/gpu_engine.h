// What every engine on a GPU has, however it makes its steps: a stream, a clock for its ops, and values from the GPU.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/buffer.h"
#include "cuda/graph.h"
#include "cuda/stream.h"
#include "mnist/engine.h"
#include "profile/event_clock.h"
#include "profile/kernel_use.h"
#include "profile/nvtx.h"
#include "profile/step_timer.h"

// A phase of the step, until the end of the scope: a range in Nsight, and what profile() files the ops of timer()
// under.
#define MNIST_PHASE(name) \
  MNIST_RANGE(name);      \
  timer().phase(name)

namespace mnist {

using GpuTimer = StepTimer<cuda::EventClock>;

// `count` values from the GPU, widened to float64; waits.
template <class T>
std::vector<double> read_values(const T* values, std::int64_t count, cudaStream_t stream) {
  std::vector<T> host(count);
  cuda::download(host, values, stream);
  if constexpr (std::is_same_v<T, double>)
    return host;
  else
    return {host.begin(), host.end()};
}

// Constructed with its GPU selected, as create_on_device() does.
class GpuEngine : public Engine {
 public:
  // A launcher of the user's that forgets its stream takes the default stream: with this one it stays in order, and
  // makes the recording of a step fail, which would else miss it.
  GpuEngine(EngineInfo info, EngineOptions options)
      : Engine(std::move(info), options),
        stream_(options.own_ops.empty() ? cudaStreamNonBlocking : cudaStreamDefault) {}

 protected:
  cuda::Stream& compute() { return stream_; }  // of the steps
  cudaStream_t stream() const { return stream_.get(); }
  // Every op of a step is marked with its cost, within a phase.
  GpuTimer& timer() { return timer_; }

  // For do_profile(): the ops of the step that queue() queues, run `runs` times, the first one to warm up.
  template <class Queue>
  std::vector<OpTime> time_ops(std::int64_t runs, Queue queue) {
    timer_.record(queue);  // everything lazy happens, and the clock makes its events
    std::vector<std::vector<KernelUse>> kernels;
    auto ops = timer_.record([&] {
      const auto recorded = cuda::record(stream(), queue);
      kernels = cuda::kernels_between_events(recorded.get());
      const cuda::Graph step(recorded);
      for (std::int64_t run = 1; run < runs; ++run) {
        step.launch(stream());
        timer_.collect();
      }
    });
    for (std::size_t i = 0; i < ops.size(); ++i) ops[i].kernels = std::move(kernels.at(i + 1));
    return ops;
  }
  static void require_for_profile(bool on_device) {
    MNIST_REQUIRE(on_device, "profile: the data set is on the host, expected it in the GPU's memory");
  }

 private:
  cuda::Stream stream_;
  GpuTimer timer_{cuda::EventClock(stream_.get())};
};

// The factory of engine E: selects the GPU, which the registry's row has checked, for E's constructor.
template <class E>
std::unique_ptr<Engine> create_on_device(const EngineInfo& info, const EngineOptions& options) {
  const cuda::DeviceGuard guard(options.device);
  return std::make_unique<E>(info, options);
}

}  // namespace mnist
