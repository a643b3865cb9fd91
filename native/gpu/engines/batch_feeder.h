// Brings batches to the GPU: gathered there from a data set in its memory, or copied from the host while it computes.
#pragma once

#include <cstdint>
#include <span>

#include "cuda/buffer.h"
#include "cuda/stream.h"
#include "engines/host_feed.h"
#include "kernels/step.h"
#include "mnist/engine.h"

namespace mnist {

// One batch as a step sees it, in the GPU's memory.
struct Batch {
  std::uint8_t* images;  // (size, kImagePixels)
  std::uint8_t* labels;  // (size); null where the caller has none
  std::int64_t size;
  bool routed = false;       // a probe that follows a routing
  double upstream = 1;       // of the loss, where backward begins
  kernels::GatherFrom from;  // set: images and labels are still to be brought to their places, by forward
};

// With the data set on the GPU a step gathers its batch into slot 0 itself. With the data set on the host the slots are
// the ring of HostFeed, whose chunks are batches.
//
// Every method is called with the GPU selected. `compute` is the stream of the steps.
class BatchFeeder {
 public:
  explicit BatchFeeder(cuda::Stream& compute) : compute_(compute) {}

  void set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels, Placement placement);
  bool on_device() const { return placement_ == Placement::kDevice; }

  // Room for batches of up to `batch` images; true if the slots' addresses changed.
  bool reserve(std::int64_t batch);
  // The indices of the steps to come; true if an address that gather() uses changed.
  bool set_order(std::span<const std::int32_t> order);

  Batch batch(int slot, std::int64_t size) const;

  // Data set on the GPU: queues the gathering of the batch at state->cursor into slot 0. May be captured.
  void gather(std::int64_t size, const kernels::StepState* state);
  // The same for a kernel that gathers on the way.
  kernels::GatherFrom gather_from(const kernels::StepState* state) const {
    return {device_images_.data(), device_labels_.data(), order_.data(), state};
  }

  // Data set on the host: queues the copy of these images into slot `step` % kSlots and makes the compute stream wait
  // for it; release() tells that the steps queued so far are the last that use the slot.
  void send(std::int64_t step, std::span<const std::int32_t> indices);
  void release(std::int64_t step) { host_.release(step, compute_); }

  // Images (and labels) of the caller, or a run of the data set, as a batch in slot 0 or in the data set itself.
  Batch load(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels = {});
  Batch load_dataset(std::int64_t first, std::int64_t count);

  static constexpr int kSlots = HostFeed::kRingSlots;

 private:
  cuda::Stream& compute_;
  Placement placement_ = Placement::kDevice;
  std::int64_t dataset_size_ = 0, slot_size_ = 0;
  cuda::DeviceBuffer<std::uint8_t> images_, labels_;                // of the slots
  cuda::DeviceBuffer<std::uint8_t> device_images_, device_labels_;  // a data set in the GPU's memory,
  HostFeed host_;                                                   // or in the host's
  cuda::DeviceBuffer<std::int32_t> order_;
};

}  // namespace mnist
