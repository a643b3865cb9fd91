// Batches for the CUDA engines: slots, and the data set in the GPU's memory.
#include "engines/batch_feeder.h"

#include <algorithm>
#include <utility>

namespace mnist {

void BatchFeeder::set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                              Placement placement) {
  const bool on_device = placement == Placement::kDevice;
  // Complete before anything of the old data set goes, should memory run out.
  cuda::DeviceBuffer<std::uint8_t> device_images(on_device ? std::int64_t(images.size()) : 0);
  cuda::DeviceBuffer<std::uint8_t> device_labels(on_device ? std::int64_t(labels.size()) : 0);
  if (on_device) {
    cuda::bring(device_images.data(), images, compute_.get());
    cuda::upload(device_labels.data(), labels, compute_.get());
    compute_.synchronize();  // the caller's images may go
    host_.clear();
  } else {
    host_.set_dataset(images, labels);
  }
  device_images_ = std::move(device_images);
  device_labels_ = std::move(device_labels);
  dataset_size_ = std::int64_t(labels.size());
  placement_ = placement;
}

bool BatchFeeder::reserve(std::int64_t batch) {
  const bool grows = batch > slot_size_;
  if (grows) {
    slot_size_ = 0;
    images_.reserve(kSlots * batch * kImagePixels);
    labels_.reserve(kSlots * batch);
    slot_size_ = batch;
  }
  if (!on_device()) host_.reserve(slot_size_);
  return grows;
}

bool BatchFeeder::set_order(std::span<const std::int32_t> order) {
  if (!on_device()) return false;
  const bool moved = order_.reserve(std::max(std::int64_t(order.size()), dataset_size_));
  cuda::upload(order_.data(), order, compute_.get());
  return moved;
}

Batch BatchFeeder::batch(int slot, std::int64_t size) const {
  const std::int64_t place = slot * slot_size_;
  return {images_.data() + place * kImagePixels, labels_.data() + place, size};
}

void BatchFeeder::gather(std::int64_t size, const kernels::StepState* state) {
  kernels::gather_batch(images_.data(), labels_.data(), device_images_.data(), device_labels_.data(), order_.data(),
                        state, size, compute_.get());
}

void BatchFeeder::send(std::int64_t step, std::span<const std::int32_t> indices) {
  host_.send(step, indices, compute_,
             [this](std::int64_t place, const std::uint8_t* images, const std::uint8_t* labels, std::int64_t count,
                    cudaStream_t stream) {
               cuda::upload(images_.data() + place * kImagePixels, {images, std::size_t(count) * kImagePixels}, stream);
               cuda::upload(labels_.data() + place, {labels, std::size_t(count)}, stream);
             });
}

Batch BatchFeeder::load(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels) {
  cuda::bring(images_.data(), images, compute_.get());
  cuda::upload(labels_.data(), labels, compute_.get());
  return {images_.data(), labels.empty() ? nullptr : labels_.data(), std::int64_t(images.size()) / kImagePixels};
}

Batch BatchFeeder::load_dataset(std::int64_t first, std::int64_t count) {
  if (on_device()) return {device_images_.data() + first * kImagePixels, device_labels_.data() + first, count};
  return load(host_.images().subspan(first * kImagePixels, count * kImagePixels), host_.labels().subspan(first, count));
}

}  // namespace mnist
