// Where each array of a step lies.
#include "engines/fused/arena.h"

#include <type_traits>

namespace mnist::fused {
namespace {

// One allocation for many arrays: list(place) calls place(name, pointer, bytes) for each, once to add up and once to
// point.
template <class List>
void carve(cuda::DeviceBuffer<std::uint8_t>& memory, List list) {
  std::int64_t bytes = 0;
  const auto place = [&](const char*, auto*& pointer, std::int64_t size) {
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
    : precision_(precision), multiprocessors_(gpu.limits.multiprocessors) {
  state_.overlap = gpu.overlap;
  state_.wgmma = gpu.limits.wgmma;
  state_.parameters = parameters_.data();
  state_.upstream = upstream_.data();
  state_.learning_rate = rates_.data();
  state_.results = results_.data();
  carve(small_, [&](auto place) { for_arrays_of_engine(state_, precision, place); });
  if (precision == Precision::kFp32) state_.fc1 = parameters_.data() + kParameters[kFc1Weight].offset;
  cuda::fill_bytes(small_.data(), 0, small_.size(), stream);
  cuda::fill_bytes(parameters_.data(), 0, kParameterCount, stream);
  cuda::fill_bytes(results_.data(), 0, kMostSteps, stream);  // StepResult's padding is copied too
}

void Arena::grow(std::int64_t batch) {
  reserved_ = 0;
  carve(workspace_, [&](auto place) {
    for_arrays_of_batch(state_, precision_, multiprocessors_, batch, place);
    place("order", order_, (kMostSteps + 1) * batch * 4);
  });
  reserved_ = batch;
}

}  // namespace mnist::fused
