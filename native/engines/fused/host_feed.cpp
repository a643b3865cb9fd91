// The ring of the host-fed data set: gathering, copying, and who waits for whom.
#include "engines/fused/host_feed.h"

#include <algorithm>

namespace mnist::fused {
namespace {

constexpr int kGatherThreads = 8;            // one is not enough: bf16 at a large batch trains on 8 GB/s
constexpr std::int64_t kSamplesOfTask = 64;  // 50 KB

}  // namespace

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
  cuda::upload(to, std::span(from_images, std::size_t(count) * kImagePixels), stream);
  if (from_labels) cuda::upload(labels.data() + first, std::span(from_labels, std::size_t(count)), stream);
  image_moments(moments.data() + first * kMoments, to, count, stream);
}

void HostFeed::set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels) {
  images_.assign(images.begin(), images.end());
  labels_.assign(labels.begin(), labels.end());
  if (!pool_) pool_.emplace(std::min(kGatherThreads, cpu::available_cores()));
}

void HostFeed::clear() {
  images_ = {};
  labels_ = {};
  pool_.reset();
}

bool HostFeed::reserve(std::int64_t chunk) {
  chunk_ = chunk;
  pinned_images_.reserve(kParts * chunk * kImagePixels);
  pinned_labels_.reserve(kParts * chunk);
  return ring_.reserve(kParts * chunk, copy_.get());
}

void HostFeed::send(std::int64_t n, std::span<const std::int32_t> indices, cuda::Stream& compute) {
  Part& part = parts_[n % kParts];
  const auto first = n % kParts * chunk_, count = std::int64_t(indices.size());
  std::uint8_t* images = pinned_images_.data() + first * kImagePixels;
  std::uint8_t* labels = pinned_labels_.data() + first;
  part.copied.synchronize();  // its last copy has left the pinned memory
  pool_->run(int((count + kSamplesOfTask - 1) / kSamplesOfTask), [&](int task, int) {
    const auto end = std::min((task + 1) * kSamplesOfTask, count);
    for (auto i = task * kSamplesOfTask; i < end; ++i) {
      std::copy_n(images_.data() + std::int64_t(indices[i]) * kImagePixels, kImagePixels, images + i * kImagePixels);
      labels[i] = labels_[indices[i]];
    }
  });
  copy_.wait(part.released);
  ring_.fill(first, images, labels, count, copy_.get());
  part.copied.record(copy_.get());
  compute.wait(part.copied);
}

void HostFeed::release(std::int64_t n, const cuda::Stream& compute) {
  parts_[n % kParts].released.record(compute.get());
}

}  // namespace mnist::fused
