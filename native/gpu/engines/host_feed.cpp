// The host's side of the ring: the data set, and the threads that gather samples of it.
#include "engines/host_feed.h"

#include <algorithm>

#include "mnist/ceil_div.h"

namespace mnist {
namespace {

constexpr int kGatherThreads = 8;             // one is not enough: bf16 at a large batch trains on 8 GB/s
constexpr std::int64_t kSamplesOfTask = 64;   // 50 KB
constexpr std::int64_t kSamplesAlone = 1024;  // up to so many by the calling thread: no other is woken

}  // namespace

void HostFeed::set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels) {
  images_.assign(images.begin(), images.end());
  labels_.assign(labels.begin(), labels.end());
  if (!pool_) pool_.emplace(std::min(kGatherThreads, cpu::available_cores()));
}

void HostFeed::clear() {
  images_ = std::vector<std::uint8_t>();  // `= {}` would keep the memory
  labels_ = std::vector<std::uint8_t>();
  pool_.reset();
}

void HostFeed::reserve(std::int64_t chunk) {
  chunk_ = chunk;
  pinned_images_.reserve(kRingSlots * chunk * kImagePixels);
  pinned_labels_.reserve(kRingSlots * chunk);
}

void HostFeed::gather(std::int64_t place, std::span<const std::int32_t> indices) {
  const auto count = std::int64_t(indices.size());
  std::uint8_t *images = pinned_images_.data() + place * kImagePixels, *labels = pinned_labels_.data() + place;
  const auto run = [&](std::int64_t first, std::int64_t end) {
    for (auto i = first; i < end; ++i) {
      std::copy_n(images_.data() + std::int64_t(indices[i]) * kImagePixels, kImagePixels, images + i * kImagePixels);
      labels[i] = labels_[indices[i]];
    }
  };
  if (count <= kSamplesAlone) return run(0, count);
  pool_->run(int(ceil_div(count, kSamplesOfTask)),
             [&](int task, int) { run(task * kSamplesOfTask, std::min((task + 1) * kSamplesOfTask, count)); });
}

}  // namespace mnist
