// The device memory that steps share: what every step uses, and the intermediate values of a batch, an allocation each.
#pragma once

#include "cuda/buffer.h"
#include "engines/fused/gpu.h"
#include "kernels/fused/state.h"

namespace mnist::fused {

class Arena {
 public:
  static constexpr int kMostSteps = 32;  // of a window

  Arena(Precision precision, const Gpu& gpu, cudaStream_t stream);

  // Room for the intermediate values of a batch. `before_moving` is called if anything has to move, before it does.
  template <class F>
  void reserve(std::int64_t batch, F before_moving) {
    if (batch <= reserved_) return;
    before_moving();
    grow(batch);
  }

  // Every pointer and what the GPU can do; a batch's cuts are not in it.
  const State& state() const { return state_; }
  int value_bytes() const { return value_bytes_; }

  // What a graph of steps reads and writes at fixed addresses.
  std::int32_t* order() const { return order_; }  // (kMostSteps + 1, batch)
  float* rates() const { return rates_.data(); }
  StepResult* results() const { return results_.data(); }
  float* parameters() const { return parameters_.data(); }
  float* upstream() const { return upstream_.data(); }

 private:
  void grow(std::int64_t batch);

  int multiprocessors_, value_bytes_;
  cuda::DeviceBuffer<float> parameters_{kParameterCount}, upstream_{1}, rates_{kMostSteps};
  cuda::DeviceBuffer<StepResult> results_{kMostSteps};
  cuda::DeviceBuffer<std::uint8_t> small_, workspace_;
  State state_{};
  std::int32_t* order_ = nullptr;
  std::int64_t reserved_ = 0;
};

}  // namespace mnist::fused
