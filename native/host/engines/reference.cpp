// Engine `reference`: the network of model.h spelled out with the float64 ops of cpu/reference_ops.h.
#include <algorithm>

#include "cpu/reference_ops.h"
#include "profile/step_timer.h"

namespace mnist {
namespace {

using Doubles = std::vector<double>;

constexpr int kArea1 = kImagePixels;             // conv1's output plane
constexpr int kArea2 = kPool1Side * kPool1Side;  // conv2's output plane
constexpr int kElement = sizeof(double);         // for the costs of ops
constexpr std::int64_t kStatisticsChunk = 250;   // images held at once while population statistics are summed

// What one forward pass leaves behind for its backward pass. x image, z before batch norm, y after it, a after
// relu and pooling, u before fc1's relu, h after it.
struct Activations {
  Doubles x, z1, y1, a1, z2, y2, a2, u, h, logits, log_p;
  Doubles statistics = Doubles(kStatisticCount);
  Routing routing;
};

class ReferenceEngine final : public Engine {
 public:
  using Engine::Engine;

  std::int64_t evaluation_chunk() const override { return kStatisticsChunk; }

 private:
  void do_set_parameters(std::span<const double> values) override { parameters_.assign(values.begin(), values.end()); }
  void do_get_parameters(std::span<double> values) const override { std::ranges::copy(parameters_, values.begin()); }
  void do_set_statistics(std::span<const double> values) override { statistics_.assign(values.begin(), values.end()); }
  void do_get_statistics(std::span<double> values) const override { std::ranges::copy(statistics_, values.begin()); }

  void do_set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels, Placement) override {
    images_.assign(images.begin(), images.end());
    labels_.assign(labels.begin(), labels.end());
  }

  const double* parameter(ParameterIndex index) const { return parameters_.data() + kParameters[index].offset; }

  // `statistics` null: normalise by the batch's own.
  void forward(Activations& act, std::span<const std::uint8_t> images, const double* statistics,
               const Routing* routing) const {
    using namespace reference;
    const auto batch = std::int64_t(images.size()) / kImagePixels;
    if (routing) act.routing = *routing;
    act.routing.relu3.resize(batch * kHidden);
    if (statistics) act.statistics.assign(statistics, statistics + kStatisticCount);

    forward_conv1(act, images);
    forward_pool1(act, batch, !statistics, routing != nullptr);
    forward_conv2(act, batch);
    normalise_and_pool(act.y2, act.a2, act.routing.pool2, act.z2, kBn2Weight, kBn2Bias, act, kBn2Mean, kBn2Var,
                       !statistics, batch, kConv2Channels, kPool2Side, routing != nullptr);

    act.u.resize(batch * kHidden);
    act.h.resize(batch * kHidden);
    act.logits.resize(batch * kClasses);
    act.log_p.resize(batch * kClasses);
    timer_.phase("fc1 forward");
    timer_.op("linear", kernels::linear_cost(batch, kFeatures, kHidden, kElement));
    linear_forward(act.u.data(), act.a2.data(), parameter(kFc1Weight), parameter(kFc1Bias), batch, kFeatures, kHidden);
    timer_.op("relu", kernels::relu_cost(batch * kHidden, kElement));
    relu_forward(act.h.data(), act.routing.relu3.data(), act.u.data(), batch * kHidden, routing == nullptr);
    timer_.phase("fc2 forward");
    timer_.op("linear", kernels::linear_cost(batch, kHidden, kClasses, kElement));
    linear_forward(act.logits.data(), act.h.data(), parameter(kFc2Weight), parameter(kFc2Bias), batch, kHidden,
                   kClasses);
    timer_.op("log_softmax", kernels::log_softmax_forward_cost(batch * kClasses, kElement));
    log_softmax_forward(act.log_p.data(), act.logits.data(), batch, kClasses);
  }

  void forward_conv1(Activations& act, std::span<const std::uint8_t> images) const {
    act.x.resize(images.size());
    timer_.phase("normalize");
    timer_.op("normalize", kernels::normalize_cost(std::int64_t(images.size()), kElement));
    std::ranges::transform(images, act.x.begin(), [](double u) { return (u / 255 - kPixelMean) / kPixelStd; });
    timer_.phase("layer 1 forward");
    convolve(act.z1, act.x, kConv1Weight, kConv1Bias, std::int64_t(images.size()) / kImagePixels, 1, kConv1Channels,
             kImageSide);
  }

  void forward_pool1(Activations& act, std::int64_t batch, bool of_batch, bool routed) const {
    normalise_and_pool(act.y1, act.a1, act.routing.pool1, act.z1, kBn1Weight, kBn1Bias, act, kBn1Mean, kBn1Var,
                       of_batch, batch, kConv1Channels, kPool1Side, routed);
  }

  void forward_conv2(Activations& act, std::int64_t batch) const {
    timer_.phase("layer 2 forward");
    convolve(act.z2, act.a1, kConv2Weight, kConv2Bias, batch, kConv1Channels, kConv2Channels, kPool1Side);
  }

  void convolve(Doubles& z, const Doubles& x, ParameterIndex weight, ParameterIndex bias, std::int64_t batch, int in,
                int out, int side) const {
    z.resize(batch * out * side * side);
    timer_.op("conv2d", kernels::conv2d_cost(batch, in, out, side, kElement));
    reference::conv2d_forward(z.data(), x.data(), parameter(weight), parameter(bias), batch, in, out, side);
  }

  void normalise_and_pool(Doubles& y, Doubles& a, std::vector<std::uint8_t>& route, const Doubles& z,
                          ParameterIndex gamma, ParameterIndex beta, Activations& act, StatisticIndex mean_index,
                          StatisticIndex var_index, bool of_batch, std::int64_t batch, int channels, int side,
                          bool routed) const {
    using namespace reference;
    const int area = 4 * side * side;
    double* mean = act.statistics.data() + kStatistics[mean_index].offset;
    double* var = act.statistics.data() + kStatistics[var_index].offset;
    y.resize(z.size());
    a.resize(z.size() / 4);
    route.resize(a.size());
    const auto values = std::int64_t(z.size());
    if (of_batch) {
      timer_.op("batch_norm_statistics", kernels::batch_norm_statistics_cost(values, kElement));
      batch_norm_statistics(mean, var, z.data(), batch, channels, area);
    }
    timer_.op("batch_norm", kernels::batch_norm_forward_cost(values, kElement));
    batch_norm_forward(y.data(), z.data(), parameter(gamma), parameter(beta), mean, var, batch, channels, area);
    timer_.op("relu_max_pool2d", kernels::relu_max_pool2d_forward_cost(values / 4, kElement));
    if (routed)
      relu_max_pool2d_forward_routed(a.data(), y.data(), route.data(), batch * channels, side);
    else
      relu_max_pool2d_forward(a.data(), route.data(), y.data(), batch * channels, side);
  }

  // Sets all kParameterCount gradients of upstream * (mean loss), the statistics being functions of the batch.
  void backward(Doubles& gradients, const Activations& act, std::span<const std::uint8_t> labels,
                double upstream) const {
    using namespace reference;
    const auto batch = std::int64_t(labels.size());
    timer_.phase("backward");
    timer_.op("zeroed buffers", {});
    gradients.assign(kParameterCount, 0.0);
    const auto gradient = [&](ParameterIndex index) { return gradients.data() + kParameters[index].offset; };
    const auto statistic = [&](StatisticIndex index) { return act.statistics.data() + kStatistics[index].offset; };

    Doubles dlogits(act.logits.size()), dh(act.h.size()), du(act.u.size()), da2(act.a2.size()), dy2(act.y2.size()),
        dz2(act.z2.size()), da1(act.a1.size()), dy1(act.y1.size()), dz1(act.z1.size());
    timer_.phase("fc2 backward");
    timer_.op("log_softmax_nll", kernels::log_softmax_nll_backward_cost(batch * kClasses, kElement));
    log_softmax_nll_backward(dlogits.data(), act.log_p.data(), labels.data(), upstream, batch, kClasses);
    timer_.op("linear", kernels::linear_backward_cost(batch, kHidden, kClasses, kElement));
    linear_backward(dh.data(), gradient(kFc2Weight), gradient(kFc2Bias), dlogits.data(), act.h.data(),
                    parameter(kFc2Weight), batch, kHidden, kClasses);
    timer_.phase("fc1 backward");
    timer_.op("relu", kernels::relu_cost(batch * kHidden, kElement));
    relu_backward(du.data(), dh.data(), act.routing.relu3.data(), batch * kHidden);
    timer_.op("linear", kernels::linear_backward_cost(batch, kFeatures, kHidden, kElement));
    linear_backward(da2.data(), gradient(kFc1Weight), gradient(kFc1Bias), du.data(), act.a2.data(),
                    parameter(kFc1Weight), batch, kFeatures, kHidden);

    const auto conv1 = kernels::conv2d_cost(batch, 1, kConv1Channels, kImageSide, kElement);
    const auto conv2 = kernels::conv2d_cost(batch, kConv1Channels, kConv2Channels, kPool1Side, kElement);
    timer_.phase("layer 2 backward");
    timer_.op("relu_max_pool2d", kernels::relu_max_pool2d_backward_cost(batch * kPool2Size, kElement));
    relu_max_pool2d_backward(dy2.data(), da2.data(), act.routing.pool2.data(), batch * kConv2Channels, kPool2Side);
    timer_.op("batch_norm", kernels::batch_norm_backward_cost(batch * 4 * kPool2Size, kElement));
    batch_norm_backward(dz2.data(), gradient(kBn2Weight), gradient(kBn2Bias), dy2.data(), act.z2.data(),
                        parameter(kBn2Weight), statistic(kBn2Mean), statistic(kBn2Var), batch, kConv2Channels, kArea2);
    timer_.op("conv2d weight", conv2);
    conv2d_backward_weight(gradient(kConv2Weight), dz2.data(), act.a1.data(), batch, kConv1Channels, kConv2Channels,
                           kPool1Side);
    timer_.op("conv2d data", conv2);
    conv2d_backward_data(da1.data(), dz2.data(), parameter(kConv2Weight), batch, kConv1Channels, kConv2Channels,
                         kPool1Side);

    timer_.phase("layer 1 backward");
    timer_.op("relu_max_pool2d", kernels::relu_max_pool2d_backward_cost(batch * kPool1Size, kElement));
    relu_max_pool2d_backward(dy1.data(), da1.data(), act.routing.pool1.data(), batch * kConv1Channels, kPool1Side);
    timer_.op("batch_norm", kernels::batch_norm_backward_cost(batch * 4 * kPool1Size, kElement));
    batch_norm_backward(dz1.data(), gradient(kBn1Weight), gradient(kBn1Bias), dy1.data(), act.z1.data(),
                        parameter(kBn1Weight), statistic(kBn1Mean), statistic(kBn1Var), batch, kConv1Channels, kArea1);
    timer_.op("conv2d weight", conv1);
    conv2d_backward_weight(gradient(kConv1Weight), dz1.data(), act.x.data(), batch, 1, kConv1Channels, kImageSide);
    // conv1.bias and conv2.bias stay 0: batch norm subtracts the batch's mean, so a constant added before it
    // changes nothing, and sum over the batch of dz is 0 for every channel.
  }

  static StepResult result_of(const Activations& act, std::span<const std::uint8_t> labels) {
    const auto batch = std::int64_t(labels.size());
    StepResult result{reference::nll_loss_forward(act.log_p.data(), labels.data(), batch, kClasses), 0};
    for (std::int64_t b = 0; b < batch; ++b) {
      const double* row = act.logits.data() + b * kClasses;
      result.correct += std::max_element(row, row + kClasses) - row == labels[b];
    }
    return result;
  }

  void do_train(std::span<const std::int32_t> order, std::int64_t batch, std::span<const double> learning_rates,
                std::span<StepResult> results) override {
    Activations act;
    Doubles gradients;
    std::vector<std::uint8_t> images, labels;
    for (std::size_t step = 0; step < results.size(); ++step) {
      const auto now = order.first(std::min(order.size(), std::size_t(batch)));
      order = order.subspan(now.size());
      timer_.phase("gather");
      timer_.op("gather_batch", kernels::gather_cost(std::int64_t(now.size())));
      images.clear();
      labels.clear();
      for (const auto index : now) {
        const auto* image = images_.data() + std::int64_t(index) * kImagePixels;
        images.insert(images.end(), image, image + kImagePixels);
        labels.push_back(labels_[index]);
      }
      forward(act, images, nullptr, nullptr);
      timer_.phase("record");
      timer_.op("record_step", kernels::record_cost(std::int64_t(now.size())));
      results[step] = result_of(act, labels);
      backward(gradients, act, labels, 1.0);
      timer_.phase("update");
      timer_.op("sgd_update", kernels::sgd_cost(kParameterCount, kElement));
      reference::sgd_update(parameters_.data(), gradients.data(), learning_rates[step], kParameterCount);
      timer_.end_step();
      timer_.collect();
    }
  }

  void do_logits(std::span<const std::uint8_t> images, BatchNormMode mode, std::span<double> scores) override {
    Activations act;
    forward(act, images, mode == BatchNormMode::kPopulation ? statistics_.data() : nullptr, nullptr);
    std::ranges::copy(act.logits, scores.begin());
  }

  Probe do_probe(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                 const ProbeOptions& options) override {
    Activations act;
    forward(act, images, nullptr, options.routing);
    const StepResult result = result_of(act, labels);
    Probe probe{.loss = result.loss, .correct = result.correct};
    backward(probe.gradients, act, labels, options.upstream);
    probe.a1 = std::move(act.a1);
    probe.a2 = std::move(act.a2);
    probe.h = std::move(act.h);
    probe.logits = std::move(act.logits);
    probe.routing = std::move(act.routing);
    return probe;
  }

  std::vector<OpTime> do_profile(std::span<const std::int32_t> order, std::int64_t batch) override {
    std::vector<StepResult> results(order.size() / batch);
    const std::vector<double> learning_rates(results.size());
    return timer_.record([&] { do_train(order, batch, learning_rates, results); });
  }

  // Layer 1 over all images first, then layer 2 under layer 1's statistics.
  void do_compute_statistics() override {
    statistics_.assign(kStatisticCount, 0.0);
    Activations act;
    for_each_chunk([&](std::span<const std::uint8_t> images, std::int64_t before, std::int64_t count) {
      forward_conv1(act, images);
      join_statistics(kBn1Mean, kBn1Var, act.z1, before, count, kConv1Channels, kArea1);
    });
    act.statistics = statistics_;
    for_each_chunk([&](std::span<const std::uint8_t> images, std::int64_t before, std::int64_t count) {
      forward_conv1(act, images);
      forward_pool1(act, count, false, false);
      forward_conv2(act, count);
      join_statistics(kBn2Mean, kBn2Var, act.z2, before, count, kConv2Channels, kArea2);
    });
  }

  // Calls visit(images, how many came before, how many these are) until all of the data set is seen.
  template <class Visit>
  void for_each_chunk(Visit visit) const {
    const auto total = std::int64_t(labels_.size());
    for (std::int64_t before = 0; before < total; before += kStatisticsChunk) {
      const auto count = std::min(kStatisticsChunk, total - before);
      visit(std::span(images_).subspan(before * kImagePixels, count * kImagePixels), before, count);
    }
  }

  // Adds `count` images' z to the mean and variance of the `before` images so far (Chan, Golub and LeVeque, 1979):
  // with d = mean(new) - mean(old) and w = count / (before + count),
  //   mean += w d,   var = (1-w) var + w var(new) + w (1-w) d^2.
  void join_statistics(StatisticIndex mean_index, StatisticIndex var_index, const Doubles& z, std::int64_t before,
                       std::int64_t count, int channels, int area) {
    Doubles new_mean(channels), new_var(channels);
    reference::batch_norm_statistics(new_mean.data(), new_var.data(), z.data(), count, channels, area);
    double* mean = statistics_.data() + kStatistics[mean_index].offset;
    double* var = statistics_.data() + kStatistics[var_index].offset;
    const double w = double(count) / double(before + count);
    for (int c = 0; c < channels; ++c) {
      const double d = new_mean[c] - mean[c];
      mean[c] += w * d;
      var[c] = (1 - w) * var[c] + w * new_var[c] + w * (1 - w) * d * d;
    }
  }

  Doubles parameters_ = Doubles(kParameterCount);
  Doubles statistics_ = Doubles(kStatisticCount);
  std::vector<std::uint8_t> images_, labels_;
  mutable HostTimer timer_;
};

}  // namespace

std::unique_ptr<Engine> create_reference(const EngineInfo& info, const EngineOptions& options) {
  return std::make_unique<ReferenceEngine>(info, options);
}

}  // namespace mnist
