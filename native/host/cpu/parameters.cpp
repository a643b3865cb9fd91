// Reordering between PyTorch's slab and the engine's own.
#include "cpu/parameters.h"

#include <algorithm>

#include "mnist/ceil_div.h"

namespace mnist::cpu {
namespace {

constexpr std::int64_t kLine = 64 / sizeof(float);

// Calls visit(place in the engine's tensor, place in PyTorch's) for every element of a tensor.
template <class Visit>
void for_each_element(int index, Visit visit) {
  std::int64_t i = 0;
  if (index == kConv2Weight) {
    for (int out = 0; out < kConv2Channels; ++out)
      for (int in = 0; in < kConv1Channels; ++in)
        for (int tap = 0; tap < kTaps; ++tap) visit((in * kTaps + tap) * kConv2Channels + out, i++);
  } else if (index == kFc1Weight) {
    constexpr int kPixels = kPool2Side * kPool2Side;
    for (int out = 0; out < kHidden; ++out)
      for (int channel = 0; channel < kConv2Channels; ++channel)
        for (int pixel = 0; pixel < kPixels; ++pixel) visit((pixel * kConv2Channels + channel) * kHidden + out, i++);
  } else {
    for (; i < kParameters[index].size; ++i) visit(i, i);
  }
}

}  // namespace

Parameters::Parameters() {
  std::int64_t size = 0;
  for (int index = 0; index < kParameterTensors; ++index) {
    offsets_[index] = size;
    size += ceil_div(kParameters[index].size, kLine) * kLine;
  }
  values_ = AlignedArray<float>(size);
  std::fill_n(values_.data(), size, 0.0f);
}

void Parameters::assign(std::span<const double> slab) {
  for (int index = 0; index < kParameterTensors; ++index)
    for_each_element(index, [&](std::int64_t own, std::int64_t torch) {
      values_[offsets_[index] + own] = float(slab[kParameters[index].offset + torch]);
    });
}

void Parameters::copy_to(std::span<double> slab) const {
  for (int index = 0; index < kParameterTensors; ++index)
    for_each_element(index, [&](std::int64_t own, std::int64_t torch) {
      slab[kParameters[index].offset + torch] = values_[offsets_[index] + own];
    });
}

}  // namespace mnist::cpu
