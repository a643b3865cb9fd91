// The device memory of steps: what lasts from one to the next, and the intermediate values of a batch.
#pragma once

#include "cuda/buffer.h"
#include "engines/fused/gpu.h"

namespace mnist::fused {

// Of a value as the kernels of a precision keep it.
inline int stored_bytes(Precision precision) { return precision == Precision::kFp32 ? 4 : 2; }

// How large each array is: calls place(name, pointer of the state, bytes) for those that every step uses.
template <class Place>
void for_arrays_of_engine(State& s, Precision precision, Place place) {
  const std::int64_t value_bytes = stored_bytes(precision);
  place("conv2_forward", s.conv2_forward, kConv2Values * value_bytes);
  place("conv2_dgrad", s.conv2_dgrad, std::max<std::int64_t>(DgradFilter::kBytes, kConv2Values * 4));  // zeros stay
  place("scales", s.scales, kScales * 4);
  place("conv2_max", s.conv2_max, (kConv2Values / 32 + 2 * kCells2 * kGradientWarps) * 4);
  // fp32 computes with the parameters themselves, the others with a rounded copy of fc1.weight.
  if (precision != Precision::kFp32) place("fc1", s.fc1, kHidden * kFeatures * value_bytes);
  if (s.wgmma) {
    place("fc1_copy", s.fc1_copy, kHidden * kFeatures * value_bytes);
    if (precision == Precision::kFp32) place("fc1_scales", s.fc1_scales, kFc1Groups * 4);
  }
  place("conv1", s.conv1, 2 * 4 * kConv1Channels * 16 * 2);
  place("bn1", s.bn1.values, Bn1Operand::kRows * kConv1Channels * 4);
  place("bn2", s.bn2.values, Bn2Operand::kRows * kConv2Channels * 4);
  place("bn2_sign", s.bn2_sign, kConv2Channels * 4);
  place("moments", s.moments, kConv1Blocks * kMoments * 8);
}

// The same for the intermediate values of a batch, on so many multiprocessors.
template <class Place>
void for_arrays_of_batch(State& s, Precision precision, std::int64_t multiprocessors, std::int64_t batch, Place place) {
  const std::int64_t value_bytes = stored_bytes(precision), blocks1 = multiprocessors, blocks2 = blocks1 + 1;
  const std::int64_t cells1 = s.wgmma ? kChunkedImage / 16 : kCells1;  // as conv2_backward reads them
  place("a1", s.a1, batch * kConv1Channels * cells1 * value_bytes);
  place("route1", s.route1, batch * kRoute1Words * 4);
  place("z2", s.z2, batch * kConv2Channels * cells1 * value_bytes);
  place("pooled_z2", s.pooled_z2, batch * kFeatures * value_bytes);
  place("dy2", s.dy2, batch * kFeatures * value_bytes);
  place("z2_sums", s.z2_sums, blocks1 * 2 * kConv2Channels * 4);
  place("h_slices", s.h_slices, (blocks1 * 128 + batch) * kHidden * 4);
  place("h", s.h, batch * kHidden * 4);
  place("logits", s.logits, batch * kClasses * 4);
  place("dh", s.dh, (batch + kSamplesPerDhTile - 1) / kSamplesPerDhTile * kSamplesPerDhTile * kHidden * value_bytes);
  place("head_sums", s.head_sums, blocks2 * kHeadValues * 4);
  place("dy2_sums", s.dy2_sums, 2 * kFeatures * 4);
  place("dy2_max", s.dy2_max, (2 * kCells2 * kGradientWarps + blocks2) * 4);
  place("conv2_sums", s.conv2_sums, blocks2 * kConv2Values * 4);
  place("routed_tap_sums", s.routed_tap_sums, blocks2 * kConv1Channels * kRoutedTapColumns * 4);
  place("moment_sums", s.moment_sums, blocks2 * kMoments * 8);
}

// A state whose arrays lie in an arena, and the pointers through which the host writes.
struct Placed {
  State state{};
  float *upstream = nullptr, *rates = nullptr;
  std::int32_t* order = nullptr;  // (kMostSteps + 1, batch)
};

// The arrays of one model, or of several side by side: those of a model lie `stride()` bytes behind those of the one
// before. What is said of arrays is said of the first model's.
class Arena {
 public:
  static constexpr int kMostSteps = 32;  // of a window

  // For one model, without room for a batch; or for several, each on so many multiprocessors, with room for `batch`
  // and for no larger one.
  Arena(Precision precision, const Gpu& gpu, cudaStream_t stream);
  Arena(Precision precision, const Gpu& gpu, int multiprocessors, int models, std::int64_t batch, cudaStream_t stream);

  // Room for the intermediate values of a batch. `before_moving` is called if anything has to move, before it does.
  template <class F>
  void reserve(std::int64_t batch, F before_moving) {
    if (batch <= reserved_) return;
    before_moving();
    grow(batch);
  }

  // Every pointer and what the GPU can do; a batch's cuts are not in it.
  const State& state() const { return placed_.state; }
  std::int64_t stride() const { return stride_; }

  // What a graph of steps reads and writes at fixed addresses.
  std::int32_t* order() const { return placed_.order; }
  float* rates() const { return placed_.rates; }
  StepResult* results() const { return state().results; }
  float* parameters() const { return state().parameters; }
  float* upstream() const { return placed_.upstream; }

  // What a model keeps from one step to the next: parameters, and what is made of them. In one piece, in the same order
  // in any arena, so that it can be copied from one to another.
  std::span<std::uint8_t> model_memory(int model) const {
    return {memory_.data() + model * stride_, std::size_t(model_bytes_)};
  }

 private:
  void grow(std::int64_t batch);

  Precision precision_;
  int multiprocessors_;
  cuda::DeviceBuffer<std::uint8_t> memory_, workspace_;
  Placed placed_;
  std::int64_t model_bytes_ = 0, stride_ = 0, reserved_ = 0;
};

}  // namespace mnist::fused
