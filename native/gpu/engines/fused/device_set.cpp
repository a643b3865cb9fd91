// Room for samples, and what comes with each.
#include "engines/fused/device_set.h"

namespace mnist::fused {

bool DeviceSet::reserve(std::int64_t count, cudaStream_t stream) {
  bool moved = images.reserve(count * kImagePixels);
  moved |= labels.reserve(count);
  if (!moments.reserve(count * kMoments)) return moved;
  cuda::fill_bytes(moments.data(), 0, moments.size(), stream);
  return true;
}

void DeviceSet::fill(std::int64_t first, const std::uint8_t* from_images, const std::uint8_t* from_labels,
                     std::int64_t count, cudaStream_t stream) {
  std::uint8_t* to = images.data() + first * kImagePixels;
  cuda::bring(to, std::span(from_images, std::size_t(count) * kImagePixels), stream);
  if (from_labels) cuda::upload(labels.data() + first, std::span(from_labels, std::size_t(count)), stream);
  image_moments(moments.data() + first * kMoments, to, count, stream);
}

}  // namespace mnist::fused
