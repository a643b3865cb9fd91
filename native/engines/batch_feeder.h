// Brings batches to the GPU: gathered there from a data set in its memory, or copied from the host while it computes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/buffer.h"
#include "cuda/stream.h"
#include "kernels/step.h"
#include "mnist/engine.h"

namespace mnist {

// One batch as a step sees it, in the GPU's memory.
struct Batch {
  const std::uint8_t* images;  // (size, kImagePixels)
  const std::uint8_t* labels;  // (size)
  std::int64_t size;
  bool routed = false;  // a probe that follows a routing
};

// Two slots hold a batch each. With the data set on the GPU a step gathers its batch into slot 0 itself. With the
// data set on the host the slots take turns:
//
//   host           gather 0 | gather 1 | wait, gather 0 ...   into pinned memory
//   copy stream             | copy 0   | copy 1   | copy 0    waits until the step that used the slot is over
//   compute stream                     | step 0   | step 1    waits for its copy
//
// Every method is called with the GPU selected. `compute` is the stream of the steps.
class BatchFeeder {
 public:
  explicit BatchFeeder(const cuda::Stream& compute) : compute_(compute) {}

  void set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels, Placement placement);
  bool on_device() const { return placement_ == Placement::kDevice; }

  // Room for batches of up to `batch` images; true if the slots' addresses changed.
  bool reserve(std::int64_t batch);
  // The indices of the steps to come; true if an address that gather() uses changed.
  bool set_order(std::span<const std::int32_t> order);

  Batch batch(int slot, std::int64_t size) const;

  // Data set on the GPU: queues the gathering of the batch at state->cursor into slot 0. May be captured.
  void gather(std::int64_t size, const kernels::StepState* state);

  // Data set on the host: queues the copy of these images into the slot and makes the compute stream wait for it;
  // release() tells that the steps queued so far are the last that use the slot.
  void send(int slot, std::span<const std::int32_t> indices);
  void release(int slot);

  // Images (and labels) of the caller, or a run of the data set, as a batch in slot 0 or in the data set itself.
  Batch load(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels = {});
  Batch load_dataset(std::int64_t first, std::int64_t count);

  static constexpr int kSlots = 2;

 private:
  // Images first, then labels, so that a batch is one copy.
  struct Slot {
    cuda::DeviceBuffer<std::uint8_t> device;
    cuda::PinnedBuffer<std::uint8_t> pinned;  // only where the data set is on the host
    cuda::Event copied, released;
  };

  const cuda::Stream& compute_;
  cuda::Stream copy_;
  std::array<Slot, kSlots> slots_;
  Placement placement_ = Placement::kDevice;
  std::int64_t dataset_size_ = 0;
  cuda::DeviceBuffer<std::uint8_t> device_images_, device_labels_;
  std::vector<std::uint8_t> host_images_, host_labels_;
  cuda::DeviceBuffer<std::int32_t> order_;
};

}  // namespace mnist
