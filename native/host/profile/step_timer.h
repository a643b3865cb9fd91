// StepTimer: what an engine marks the ops of a step with, and where Engine::profile() has its times from.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "mnist/engine.h"
#include "profile/cost.h"

namespace mnist {

// Off but in record(); a mark costs a comparison then. An op lasts from its mark to the next, so that the ops of a step
// add up to the step. Clock's stamp() notes the time; take() gives what lies between the stamps, in time since
// restart().
template <class Clock>
class StepTimer {
 public:
  explicit StepTimer(Clock clock = Clock()) : clock_(std::move(clock)) {}

  bool on() const { return on_; }

  // The ops to come belong to this phase.
  void phase(const char* name) { phase_ = name; }
  // An op begins: the least that it has to move and to compute, and what multiplies.
  void op(const char* name, const kernels::Cost& cost, kernels::Unit unit = kernels::Unit::kFma) {
    if (!on_) return;
    if (steps_.empty()) ops_.push_back({phase_, name, kernels::name_of(unit), cost.bytes, cost.flops});
    clock_.stamp();
  }
  // The last op of the step ends.
  void end_step() {
    if (on_) clock_.stamp();
  }

  // A step is over: keeps its times.
  void collect() {
    if (on_) steps_.push_back(clock_.take());
  }

  // Runs `steps` with the timer on. Each op with its times of the collected steps and their median, 0 where there were
  // none.
  template <class F>
  std::vector<OpTime> record(F&& steps) {
    ops_.clear();
    steps_.clear();
    clock_.restart();
    on_ = true;
    try {
      steps();
    } catch (...) {
      on_ = false;
      throw;
    }
    on_ = false;
    std::vector<double> seconds(steps_.size());
    for (std::size_t i = 0; i < ops_.size() && !seconds.empty(); ++i) {
      for (std::size_t k = 0; k < steps_.size(); ++k) {
        const Span span = steps_[k].at(i);
        ops_[i].spans.push_back({span.start - steps_[0][0].start, span.seconds});
        seconds[k] = span.seconds;
      }
      const auto middle = seconds.begin() + std::ptrdiff_t(seconds.size() / 2);
      std::ranges::nth_element(seconds, middle);
      ops_[i].seconds = *middle;
    }
    return std::move(ops_);
  }

 private:
  Clock clock_;
  bool on_ = false;
  const char* phase_ = "";
  std::vector<OpTime> ops_;
  std::vector<std::vector<Span>> steps_;
};

// The host's clock, for engines that compute while they are called.
class HostClock {
 public:
  void stamp() { stamps_.push_back(std::chrono::steady_clock::now()); }
  void restart() {
    stamps_.clear();
    start_ = Clock::now();
  }
  std::vector<Span> take() {
    const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
    std::vector<Span> spans;
    for (std::size_t i = 1; i < stamps_.size(); ++i)
      spans.push_back({seconds(stamps_[i - 1] - start_), seconds(stamps_[i] - stamps_[i - 1])});
    stamps_.clear();
    return spans;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_;
  std::vector<Clock::time_point> stamps_;
};
using HostTimer = StepTimer<HostClock>;

}  // namespace mnist
