// Where each array of a step lies.
#include "engines/fused/arena.h"

namespace mnist::fused {
namespace {

// One allocation for many arrays, `copies` times: list(place) calls place(name, pointer, bytes) for each, once to add
// up and once to point to the first copy. Returns the bytes of a copy.
template <class List>
std::int64_t carve(cuda::DeviceBuffer<std::uint8_t>& memory, std::int64_t copies, List list) {
  std::int64_t bytes = 0;
  const auto place = [&](const char*, auto*& pointer, std::int64_t size) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory.data() + bytes);
    bytes += (size + 255) / 256 * 256;
  };
  list(place);
  memory.reserve(copies * bytes);
  bytes = 0;
  list(place);
  return bytes;
}

template <class Place>
void place_lasting(Placed& placed, Precision precision, Place place) {
  State& s = placed.state;
  place("parameters", s.parameters, kParameterCount * 4);
  place("upstream", placed.upstream, 4);
  place("rates", placed.rates, Arena::kMostSteps * 4);
  place("results", s.results, Arena::kMostSteps * sizeof(StepResult));
  for_arrays_of_engine(s, precision, place);
  if (precision == Precision::kFp32) s.fc1 = s.parameters + kParameters[kFc1Weight].offset;
  s.upstream = placed.upstream;
  s.learning_rate = placed.rates;
}

template <class Place>
void place_batch(Placed& placed, Precision precision, int multiprocessors, std::int64_t batch, Place place) {
  for_arrays_of_batch(placed.state, precision, multiprocessors, batch, place);
  place("order", placed.order, (Arena::kMostSteps + 1) * batch * 4);
}

}  // namespace

Arena::Arena(Precision precision, const Gpu& gpu, cudaStream_t stream)
    : precision_(precision), multiprocessors_(gpu.limits.multiprocessors) {
  placed_.state.overlap = gpu.overlap;
  placed_.state.wgmma = gpu.limits.wgmma;
  model_bytes_ = stride_ = carve(memory_, 1, [&](auto place) { place_lasting(placed_, precision, place); });
  cuda::fill_bytes(memory_.data(), 0, memory_.size(), stream);                   // StepResult's padding is copied, too
  cuda::upload(placed_.state.scales, std::vector<float>(kScales, 1.f), stream);  // where nothing is divided they stay
}

Arena::Arena(Precision precision, const Gpu& gpu, int multiprocessors, int models, std::int64_t batch,
             cudaStream_t stream)
    : Arena(precision, gpu, stream) {  // for model_bytes_
  stride_ = carve(memory_, models, [&](auto place) {
    place_lasting(placed_, precision, place);
    place_batch(placed_, precision, multiprocessors, batch, place);
  });
  cuda::fill_bytes(memory_.data(), 0, memory_.size(), stream);
  reserved_ = batch;
}

void Arena::grow(std::int64_t batch) {
  reserved_ = 0;
  carve(workspace_, 1, [&](auto place) { place_batch(placed_, precision_, multiprocessors_, batch, place); });
  reserved_ = batch;
}

}  // namespace mnist::fused
