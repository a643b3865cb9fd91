// Passes over images without training.
#include "engines/fused/scoring.h"

#include <numeric>

#include "engines/fused/population.h"

namespace mnist::fused {

const std::int32_t* Scoring::identity_order(std::int64_t count) {
  auto& order = identity_orders_[count];
  if (order.size() == 0) {
    std::vector<std::int32_t> values(2 * count, 0);
    std::iota(values.begin(), values.begin() + count, 0);
    order.reserve(2 * count);
    cuda::upload(order.data(), values, stream_.get());
  }
  return order.data();
}

std::vector<double> Scoring::convolution_parameters() const {
  return read_values(steps_.arena().parameters(), kParameters[kFc1Weight].offset, stream_.get());
}

void Scoring::bind_statistics(const Samples& any) {
  if (!operands_) {
    const auto parameters = convolution_parameters();
    operands_ = {bn1_operand(steps_.precision(), parameters, statistics_), bn2_operand(parameters, statistics_)};
  }
  Samples one = any;
  one.order = identity_order(1);
  steps_.start_batch_norm(steps_.training_step(1, one).state);
  const State& arrays = steps_.arena().state();
  cuda::upload(arrays.bn1.values, operands_->bn1, stream_.get());
  cuda::upload(arrays.bn2.values, operands_->bn2, stream_.get());
}

PlannedStep Scoring::pass(std::int64_t count, const Samples& samples) const {
  PlannedStep pass = steps_.evaluation_pass(kChunk, samples);
  State& s = pass.state;
  s.batch = int(count);
  s.conv_forward_blocks = std::min(s.conv_forward_blocks, s.batch * pass.plan[Phase::kConvForward].pieces());
  s.bn2_given = true;
  return pass;
}

void Scoring::queue(float* logits, Samples samples, std::int64_t count) {
  samples.order = identity_order(count);
  PlannedStep scores = pass(count, samples);
  scores.state.logits = logits;
  steps_.queue(scores, kForward);
}

// ---- the evaluation set ---------------------------------------------------------------------------------------------

void Scoring::set_evaluation_set(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels) {
  reserve();  // now, so that the graphs of training outlive an evaluation
  evaluation_size_ = std::int64_t(labels.size());
  evaluation_.reserve(evaluation_size_, stream_.get());
  evaluation_.fill(0, images.data(), labels.data(), evaluation_size_, stream_.get());
  evaluation_logits_.reserve(evaluation_size_ * kClasses);
  evaluation_scores_.reserve(score_blocks(evaluation_size_));
  stream_.synchronize();
}

Score Scoring::evaluate() {
  reserve();
  forget_identity_orders();
  bind_statistics(evaluation_.samples(nullptr));
  const auto total = evaluation_size_;
  for_each_piece(evaluation_, total, [&](const Samples& samples, std::int64_t first, std::int64_t count) {
    queue(evaluation_logits_.data() + first * kClasses, samples, count);
  });
  score_images(evaluation_scores_.data(), evaluation_logits_.data(), evaluation_.labels.data(), total, stream_.get());
  std::vector<Score> parts(score_blocks(total));
  cuda::download(parts, evaluation_scores_.data(), stream_.get());
  Score sum;
  for (const Score& part : parts) {
    sum.loss += part.loss;
    for (int k = 0; k < kClasses; ++k) sum.correct[k] += part.correct[k];
  }
  return sum;
}

// ---- the population's statistics ------------------------------------------------------------------------------------

void Scoring::compute_statistics(std::int64_t images, const std::function<void(const Visit&)>& for_each_piece) {
  constexpr std::int64_t kConv2Sums = 2 * kConv2Channels;
  const cudaStream_t stream = stream_.get();
  reserve();
  forget_identity_orders();
  sums_.reserve(kMoments + kConv2Sums + sum_moments_scratch());
  double *const moments = sums_.data(), *const conv2_sums = moments + kMoments;
  cuda::fill_bytes(moments, 0, kMoments + kConv2Sums, stream);
  for_each_piece([&](const Samples& samples, std::int64_t count) {
    sum_moments(moments, conv2_sums + kConv2Sums, samples.moments, count, stream);
  });
  const auto parameters = convolution_parameters();
  statistics_.assign(kStatisticCount, 0.0);
  set_bn1_statistics(statistics_, parameters, read_values(moments, kMoments, stream), double(images));
  operands_ = {bn1_operand(steps_.precision(), parameters, statistics_), {}};

  bool first = true;
  for_each_piece([&](const Samples& samples, std::int64_t count) {
    if (first) bind_statistics(samples);
    first = false;
    Samples piece = samples;
    piece.order = identity_order(count);
    const PlannedStep outputs = pass(count, piece);
    steps_.queue(outputs, {Phase::kConvForward});
    add_z2_sums(conv2_sums, outputs.state.z2_sums, outputs.state.conv_forward_blocks, stream);
  });
  auto sums = read_values(conv2_sums, kConv2Sums, stream);
  const double z2_scale = read_values(steps_.arena().state().scales + kZ2Scale, 1, stream)[0];
  for (std::int64_t i = 0; i < kConv2Sums; ++i) sums[i] *= i < kConv2Channels ? z2_scale : z2_scale * z2_scale;
  set_bn2_statistics(statistics_, parameters, sums, double(images));
  operands_->bn2 = bn2_operand(parameters, statistics_);
}

}  // namespace mnist::fused
