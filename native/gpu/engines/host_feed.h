// Feeds a GPU from a data set in the host's memory: threads gather samples, asynchronous copies bring them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cpu/thread_pool.h"
#include "cuda/buffer.h"
#include "cuda/stream.h"
#include "mnist/model.h"

namespace mnist {

// A run of steps is cut into chunks, and chunk n goes through slot n % kRingSlots of a ring, first in pinned memory,
// then in the GPU's. While the GPU computes chunk n, chunk n + 1 is already there, for an engine whose last step of n
// looks ahead into it, and n + 2 is on its way:
//
//   host threads   gather n + 2
//   copy stream    copy n + 2                            once chunk n - 1 is over, which was in that slot
//   compute        steps of chunk n
//
// The copies are cudaMemcpyAsync's. The GPU could fetch the images from pinned memory by itself, but the blocks of the
// fused kernels take an SM each: one that waits for the bus would make a whole phase wait.
//
// Every method is called with the GPU selected. `compute` is the stream of the steps.
class HostFeed {
 public:
  static constexpr int kRingSlots = 3;

  void set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels);
  void clear();
  std::span<const std::uint8_t> images() const { return images_; }  // (N, kImagePixels)
  std::span<const std::uint8_t> labels() const { return labels_; }  // (N)

  // Chunks of up to `chunk` samples from now on, between runs only; the pinned memory, while there is a data set.
  void reserve(std::int64_t chunk);
  // The place of chunk n's first sample in the ring, which is kRingSlots * chunk samples in the GPU's memory.
  std::int64_t place(std::int64_t n) const { return n % kRingSlots * chunk_; }

  // Gathers chunk n and queues what fill(place, images, labels, count, stream) has to copy to the ring's `place`;
  // `compute` will wait for it. The order of calls: send(n) before the steps of n, release(n) after them.
  template <class Fill>
  void send(std::int64_t n, std::span<const std::int32_t> indices, cuda::Stream& compute, Fill fill) {
    Slot& slot = slots_[n % kRingSlots];
    const auto count = std::int64_t(indices.size());
    slot.copied.synchronize();  // its last copy has left the pinned memory
    gather(place(n), indices);
    copy_.wait(slot.released);
    fill(place(n), pinned_images_.data() + place(n) * kImagePixels, pinned_labels_.data() + place(n), count,
         copy_.get());
    slot.copied.record(copy_.get());
    compute.wait(slot.copied);
  }
  // The steps queued so far are the last of chunk n.
  void release(std::int64_t n, const cuda::Stream& compute) { slots_[n % kRingSlots].released.record(compute.get()); }

  cudaStream_t copy_stream() const { return copy_.get(); }

 private:
  struct Slot {
    cuda::Event copied, released;
  };

  // Samples of the data set to the pinned memory.
  void gather(std::int64_t place, std::span<const std::int32_t> indices);

  std::vector<std::uint8_t> images_, labels_;
  std::optional<cpu::ThreadPool> pool_;  // while there is a data set
  cuda::Stream copy_;
  std::int64_t chunk_ = 0;
  cuda::PinnedBuffer<std::uint8_t> pinned_images_, pinned_labels_;
  std::array<Slot, kRingSlots> slots_;
};

}  // namespace mnist
