// How large each array of a step is, and where it lies.
#include "engines/fused/arena.h"

#include <algorithm>
#include <type_traits>

namespace mnist::fused {
namespace {

// One allocation for many arrays: list(place) calls place(pointer, bytes) for each, once to add up and once to point.
template <class List>
void carve(cuda::DeviceBuffer<std::uint8_t>& memory, List list) {
  std::int64_t bytes = 0;
  const auto place = [&](auto*& pointer, std::int64_t size) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory.data() + bytes);
    bytes += (size + 255) / 256 * 256;
  };
  list(place);
  memory.reserve(bytes);
  bytes = 0;
  list(place);
}

}  // namespace

Arena::Arena(Precision precision, const Gpu& gpu, cudaStream_t stream)
    : multiprocessors_(gpu.limits.multiprocessors), value_bytes_(precision == Precision::kBf16 ? 2 : 4) {
  // fp32 computes with the parameters themselves, the others with a rounded copy of fc1.weight.
  const bool shadow = precision != Precision::kFp32;
  state_.overlap = gpu.overlap;
  state_.wgmma = gpu.limits.wgmma;
  state_.parameters = parameters_.data();
  state_.upstream = upstream_.data();
  state_.learning_rate = rates_.data();
  state_.results = results_.data();
  carve(small_, [&](auto place) {
    place(state_.conv2_forward, kConv2Values * value_bytes_);
    place(state_.conv2_dgrad, kConv2Values * value_bytes_);
    place(state_.conv2_dgrad_wgmma, std::max<std::int64_t>(DgradFilter::kBytes, kConv2Values * 4));  // its zeros stay
    place(state_.conv2_scales, 2 * 4);
    place(state_.conv2_max, kConv2Values / 32 * 4);
    if (shadow) place(state_.fc1, kHidden * kFeatures * value_bytes_);
    place(state_.conv1, 2 * 4 * kConv1Channels * 16 * 2);
    place(state_.bn1.values, Bn1Operand::kRows * kConv1Channels * 4);
    place(state_.bn2.values, Bn2Operand::kRows * kConv2Channels * 4);
    place(state_.bn2_sign, kConv2Channels * 4);
    place(state_.moments, kConv1Blocks * kMoments * 8);
  });
  if (!shadow) state_.fc1 = parameters_.data() + kParameters[kFc1Weight].offset;
  cuda::fill_bytes(small_.data(), 0, small_.size(), stream);
  cuda::fill_bytes(parameters_.data(), 0, kParameterCount, stream);
  cuda::fill_bytes(results_.data(), 0, kMostSteps, stream);  // StepResult's padding is copied too
}

void Arena::grow(std::int64_t batch) {
  reserved_ = 0;
  const std::int64_t blocks1 = multiprocessors_, blocks2 = blocks1 + 1;
  const std::int64_t cells1 = state_.wgmma ? kChunkedImage / 16 : kCells1;  // as conv2_backward wants them
  carve(workspace_, [&](auto place) {
    place(state_.a1, batch * kConv1Channels * cells1 * value_bytes_);
    place(state_.route1, batch * kRoute1Words * 4);
    place(state_.z2, batch * kConv2Channels * cells1 * value_bytes_);
    place(state_.pooled_z2, batch * kFeatures * value_bytes_);
    place(state_.dy2, batch * kFeatures * value_bytes_);
    place(state_.z2_sums, blocks1 * 2 * kConv2Channels * 4);
    place(state_.h_slices, (blocks1 * 128 + batch) * kHidden * 4);
    place(state_.h, batch * kHidden * 4);
    place(state_.logits, batch * kClasses * 4);
    place(state_.dh, (batch + kDhTile - 1) / kDhTile * kDhTile * kHidden * value_bytes_);
    place(state_.head_sums, blocks2 * kHeadValues * 4);
    place(state_.dy2_sums, 2 * kFeatures * 4);
    place(state_.dy2_max, 2 * kCells2 * kGradientWarps * 4);
    place(state_.conv2_sums, blocks2 * kConv2Values * 4);
    place(state_.routed_tap_sums, blocks2 * kConv1Channels * kRoutedTapColumns * 4);
    place(state_.moment_sums, blocks2 * kMoments * 8);
    place(order_, (kMostSteps + 1) * batch * 4);
  });
  reserved_ = batch;
}

}  // namespace mnist::fused
