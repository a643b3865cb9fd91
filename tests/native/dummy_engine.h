// An engine for tests of what all engines have in common.
#pragma once

#include "testing.h"

namespace testing {

using namespace mnist;

// Computes nothing; a step moves every parameter by the learning rate.
class Dummy final : public Engine {
 public:
  using Engine::Engine;

  bool full = false;  // there is no memory for images

 private:
  void do_set_parameters(std::span<const double> values) override { parameters_.assign(values.begin(), values.end()); }
  void do_get_parameters(std::span<double> values) const override { std::ranges::copy(parameters_, values.begin()); }
  void do_set_statistics(std::span<const double>) override {}
  void do_get_statistics(std::span<double>) const override {}
  void do_compute_statistics() override {}
  void do_set_dataset(std::span<const std::uint8_t>, std::span<const std::uint8_t>, Placement) override {
    if (full) throw std::bad_alloc();
  }
  void do_set_evaluation_set(std::span<const std::uint8_t>, std::span<const std::uint8_t>) override {
    if (full) throw std::bad_alloc();
  }
  Score do_evaluate() override { return {}; }
  void do_train(std::span<const std::int32_t>, std::int64_t, std::span<const double> learning_rates,
                std::span<StepResult>) override {
    for (auto& value : parameters_) value -= learning_rates[0];
  }
  void do_logits(std::span<const std::uint8_t>, BatchNormMode, std::span<double>) override {}
  Probe do_probe(std::span<const std::uint8_t>, std::span<const std::uint8_t>, const ProbeOptions&) override {
    return {};
  }
  std::vector<OpTime> do_profile(std::span<const std::int32_t>, std::int64_t) override { return {}; }

  std::vector<double> parameters_ = std::vector<double>(kParameterCount);
};

}  // namespace testing
