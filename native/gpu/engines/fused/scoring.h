// Evaluation of the fused engine: scores under population statistics, and these statistics themselves.
#pragma once

#include <functional>

#include "engines/fused/device_set.h"
#include "engines/fused/steps.h"

namespace mnist::fused {

// Passes of up to kChunk images, always cut up as a pass of kChunk images, so that an image's scores do not depend on
// how many are scored with it. Every method is called with the GPU selected.
class Scoring {
 public:
  static constexpr std::int64_t kChunk = 4096;

  Scoring(Steps& steps, cuda::Stream& stream) : steps_(steps), stream_(stream) {}

  std::span<const double> statistics() const { return statistics_; }
  void set_statistics(std::span<const double> values) {
    statistics_.assign(values.begin(), values.end());
    operands_.reset();
  }
  // Parameters changed: what was derived from them is forgotten.
  void forget_operands() { operands_.reset(); }

  // Room for passes; training's graphs survive one that there is room for already.
  void reserve() {
    steps_.reserve(kChunk);
    steps_.set_upstream(0);
  }
  // 0 .. count - 1 for the images of a pass, then zeros for the batch that head looks ahead to.
  const std::int32_t* identity_order(std::int64_t count);
  // There is one for each number of images that a pass had: of a caller's calls that could be any number.
  void forget_identity_orders() {
    if (identity_orders_.size() > 16) identity_orders_.clear();
  }

  // Sets what passes read of the parameters and statistics; head's next batch, which is `any`, is a matter of training.
  void bind_statistics(const Samples& any);
  // Queues the scores (count, kClasses) of `count` images.
  void queue(float* logits, Samples samples, std::int64_t count);

  void set_evaluation_set(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels);
  Score evaluate();

  // Sets the statistics: bn1's exactly, from the moments of all images, bn2's from conv2's outputs under them.
  // for_each_piece(visit) calls visit(samples, count) for pieces of up to kChunk of the `images` images.
  using Visit = std::function<void(const Samples& samples, std::int64_t count)>;
  void compute_statistics(std::int64_t images, const std::function<void(const Visit&)>& for_each_piece);

 private:
  // What conv_forward and fc1_forward read of both batch norms under the population statistics, kept until these or a
  // parameter change.
  struct Operands {
    std::vector<float> bn1, bn2;
  };

  PlannedStep pass(std::int64_t count, const Samples& samples) const;
  // The parameters before fc1.weight, which are in the same place in the engine's order and in PyTorch's.
  std::vector<double> convolution_parameters() const;

  Steps& steps_;
  cuda::Stream& stream_;
  std::vector<double> statistics_ = std::vector<double>(kStatisticCount);
  std::optional<Operands> operands_;
  std::map<std::int64_t, cuda::DeviceBuffer<std::int32_t>> identity_orders_;
  cuda::DeviceBuffer<double> sums_;
  DeviceSet evaluation_;
  std::int64_t evaluation_size_ = 0;
  cuda::DeviceBuffer<float> evaluation_logits_;
  cuda::DeviceBuffer<Score> evaluation_scores_;
};

// Calls visit(samples, first, count) for the pieces of a set.
template <class Visit>
void for_each_piece(const DeviceSet& set, std::int64_t total, Visit visit) {
  for (std::int64_t first = 0; first < total; first += Scoring::kChunk)
    visit(set.samples_from(first, nullptr), first, std::min(Scoring::kChunk, total - first));
}

}  // namespace mnist::fused
