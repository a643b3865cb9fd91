// Batches for the CUDA engines: slots, the copy stream and the data set.
#include "engines/batch_feeder.h"

#include <algorithm>
#include <utility>

namespace mnist {

namespace {
constexpr std::int64_t kSampleBytes = kImagePixels + 1;  // an image and its label
}  // namespace

void BatchFeeder::set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                              Placement placement) {
  const bool on_device = placement == Placement::kDevice;
  // Complete before anything of the old data set goes, should memory run out.
  cuda::DeviceBuffer<std::uint8_t> device_images(on_device ? std::int64_t(images.size()) : 0);
  cuda::DeviceBuffer<std::uint8_t> device_labels(on_device ? std::int64_t(labels.size()) : 0);
  if (on_device) {
    cuda::upload(device_images.data(), images, compute_.get());
    cuda::upload(device_labels.data(), labels, compute_.get());
    host_images_.clear();
    host_labels_.clear();
  } else {
    host_images_.assign(images.begin(), images.end());
    host_labels_.assign(labels.begin(), labels.end());
  }
  device_images_ = std::move(device_images);
  device_labels_ = std::move(device_labels);
  dataset_size_ = std::int64_t(labels.size());
  placement_ = placement;
}

bool BatchFeeder::reserve(std::int64_t batch) {
  bool moved = false;
  for (auto& slot : slots_) {
    if (!on_device()) slot.pinned.reserve(batch * kSampleBytes);
    moved |= slot.device.reserve(batch * kSampleBytes);
  }
  return moved;
}

bool BatchFeeder::set_order(std::span<const std::int32_t> order) {
  if (!on_device()) return false;
  const bool moved = order_.reserve(std::max(std::int64_t(order.size()), dataset_size_));
  cuda::upload(order_.data(), order, compute_.get());
  return moved;
}

Batch BatchFeeder::batch(int slot, std::int64_t size) const {
  const std::uint8_t* images = slots_[slot].device.data();
  return {images, images + size * kImagePixels, size};
}

void BatchFeeder::gather(std::int64_t size, const kernels::StepState* state) {
  std::uint8_t* images = slots_[0].device.data();
  kernels::gather_batch(images, images + size * kImagePixels, device_images_.data(), device_labels_.data(),
                        order_.data(), state, size, compute_.get());
}

void BatchFeeder::send(int slot_index, std::span<const std::int32_t> indices) {
  Slot& slot = slots_[slot_index];
  slot.copied.synchronize();  // the copy before last has left the pinned memory
  std::uint8_t* to = slot.pinned.data();
  for (const auto index : indices) {
    std::copy_n(host_images_.data() + std::int64_t(index) * kImagePixels, kImagePixels, to);
    to += kImagePixels;
  }
  for (const auto index : indices) *to++ = host_labels_[index];
  copy_.wait(slot.released);
  cuda::upload(slot.device.data(), {slot.pinned.data(), indices.size() * kSampleBytes}, copy_.get());
  slot.copied.record(copy_.get());
  MNIST_CHECK(cudaStreamWaitEvent(compute_.get(), slot.copied.get(), 0));
}

void BatchFeeder::release(int slot) { slots_[slot].released.record(compute_.get()); }

Batch BatchFeeder::load(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels) {
  std::uint8_t* to = slots_[0].device.data();
  cuda::upload(to, images, compute_.get());
  cuda::upload(to + images.size(), labels, compute_.get());
  return {to, to + images.size(), std::int64_t(images.size()) / kImagePixels};
}

Batch BatchFeeder::load_dataset(std::int64_t first, std::int64_t count) {
  if (on_device()) return {device_images_.data() + first * kImagePixels, device_labels_.data() + first, count};
  return load(std::span<const std::uint8_t>(host_images_).subspan(first * kImagePixels, count * kImagePixels),
              std::span<const std::uint8_t>(host_labels_).subspan(first, count));
}

}  // namespace mnist
