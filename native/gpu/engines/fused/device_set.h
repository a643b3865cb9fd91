// Images and labels in the GPU's memory, with the moments of each image.
#pragma once

#include "cuda/buffer.h"
#include "kernels/fused/state.h"

namespace mnist::fused {

struct DeviceSet {
  cuda::DeviceBuffer<std::uint8_t> images, labels;
  cuda::DeviceBuffer<double> moments;

  // Room for `count` samples; true if anything moved. A step sums the moments of the batch after it, and after the last
  // one that means samples nobody has filled in: their moments are never used, but they are defined.
  bool reserve(std::int64_t count, cudaStream_t stream) {
    bool moved = images.reserve(count * kImagePixels);
    moved |= labels.reserve(count);
    if (!moments.reserve(count * kMoments)) return moved;
    cuda::fill_bytes(moments.data(), 0, moments.size(), stream);
    return true;
  }
  // Samples from `first` on; labels may be null.
  void fill(std::int64_t first, const std::uint8_t* from_images, const std::uint8_t* from_labels, std::int64_t count,
            cudaStream_t stream) {
    std::uint8_t* to = images.data() + first * kImagePixels;
    cuda::bring(to, std::span(from_images, std::size_t(count) * kImagePixels), stream);
    if (from_labels) cuda::upload(labels.data() + first, std::span(from_labels, std::size_t(count)), stream);
    image_moments(moments.data() + first * kMoments, to, count, stream);
  }
  Samples samples(const std::int32_t* order) const { return samples_from(0, order); }
  Samples samples_from(std::int64_t first, const std::int32_t* order) const {
    return {images.data() + first * kImagePixels, labels.data() + first, moments.data() + first * kMoments, order};
  }
};

}  // namespace mnist::fused
