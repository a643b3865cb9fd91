// Batches for the fused engine, with the moments of their images: a data set in the GPU's memory, and the ring that a
// data set in the host's memory is fed through.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cpu/thread_pool.h"
#include "cuda/buffer.h"
#include "cuda/stream.h"
#include "kernels/fused/state.h"

namespace mnist::fused {

// Images and labels in the GPU's memory, with the moments of each image.
struct DeviceSet {
  cuda::DeviceBuffer<std::uint8_t> images, labels;
  cuda::DeviceBuffer<double> moments;

  // Room for `count` samples; true if anything moved. A step sums the moments of the batch after it, and after the last
  // one that means samples nobody has filled in: their moments are never used, but they are defined.
  bool reserve(std::int64_t count, cudaStream_t stream);
  // Samples from `first` on; labels may be null.
  void fill(std::int64_t first, const std::uint8_t* from_images, const std::uint8_t* from_labels, std::int64_t count,
            cudaStream_t stream);
  Samples samples(const std::int32_t* order) const { return samples_from(0, order); }
  Samples samples_from(std::int64_t first, const std::int32_t* order) const {
    return {images.data() + first * kImagePixels, labels.data() + first, moments.data() + first * kMoments, order};
  }
};

// A run of steps is cut into chunks, and chunk n goes through part n % kParts of a ring, first in pinned memory, then
// in the GPU's. While the GPU computes chunk n, chunk n + 1 is already there, because the last step of n looks ahead
// into it, and n + 2 is on its way:
//
//   host threads   gather n + 2
//   copy stream    copy n + 2, moments of its images     once chunk n - 1 is over, which was in that part
//   compute        steps of chunk n
//
// The copies are the copy engine's. The GPU could fetch the images from pinned memory by itself, but the blocks of the
// fused kernels take an SM each: one that waits for the bus would make a whole phase wait.
//
// Every method is called with the GPU selected.
class HostFeed {
 public:
  static constexpr int kParts = 3;

  void set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels);
  void clear();
  const std::uint8_t* images() const { return images_.data(); }  // (N, kImagePixels)
  const std::uint8_t* labels() const { return labels_.data(); }  // (N)

  // Chunks of up to `chunk` samples from now on, between runs only; true if the ring moved.
  bool reserve(std::int64_t chunk);
  // Sample i of chunk n is at (n % kParts) * chunk + i.
  const DeviceSet& ring() const { return ring_; }

  // Gathers a chunk and queues its copy, which `compute` will wait for. The order of calls: send(0), then for each n
  // send(n + 1), its steps, release(n).
  void send(std::int64_t n, std::span<const std::int32_t> indices, cuda::Stream& compute);
  // The steps queued so far are the last of chunk n.
  void release(std::int64_t n, const cuda::Stream& compute);

 private:
  struct Part {
    cuda::Event copied, released;
  };

  std::vector<std::uint8_t> images_, labels_;
  std::optional<cpu::ThreadPool> pool_;  // while there is a data set
  cuda::Stream copy_;
  std::int64_t chunk_ = 0;
  DeviceSet ring_;
  cuda::PinnedBuffer<std::uint8_t> pinned_images_, pinned_labels_;
  std::array<Part, kParts> parts_;
};

}  // namespace mnist::fused
