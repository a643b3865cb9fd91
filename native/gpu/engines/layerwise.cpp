// Engine `layerwise`: about one launch for each layer and direction; float32 multiply-adds, no tensor cores, any GPU.
//
// It is `tiled` with what lies between two products moved into them: a kernel normalises, pools or sums what it has in
// registers anyway (its epilogue), or computes what it multiplies as it loads it (its prologue). A step, of which the
// two gradient_in_conv run side by side, in a stream each:
//
//   pixel_moments_of_bytes     gather the batch; bn1's statistics from sums of pixels
//   layer_of_bytes             conv1, bn1, relu, pool
//   conv2d_with_statistics     conv2, and the sums for bn2's statistics
//   merge_apply_pool           bn2, relu, pool
//   linear_forward_slices      fc1's product
//   head                       fc1's bias and relu, fc2, log_softmax, loss, and the way back to fc1
//   fc1_backward               both gradients of fc1's product
//   pooled_sums                bn2's gradients
//   gradient_in_conv_taps      back through pool, relu, bn2, conv2, pool and relu, to what conv1's gradient needs
//   gradient_in_conv_weight    conv2's weight gradient
//   update                     the last sums of all gradients, and SGD
//
// The launches of the convolutions are rows of the ladder conv_bn_relu_pool, whose header says what each of them saves.
// z1, y1, dy1, dz1, da1, y2, dy2, dz2 and most gradients never exist in memory.
#include "kernels/layerwise/layerwise.h"

#include <algorithm>
#include <array>

#include "engines/cuda_engine.h"
#include "kernels/chunks.h"
#include "kernels/conv_bn_relu_pool/conv_bn_relu_pool.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/slices.h"
#include "mnist/thresholds.h"
#include "profile/cost.h"

namespace mnist {
namespace {

constexpr std::int64_t kMostImages = 2048;  // beyond it nothing new happens

class LayerwiseEngine final : public CudaEngine<float> {
 public:
  LayerwiseEngine(EngineInfo info, EngineOptions options) : CudaEngine(std::move(info), options) {
    cuda::fill_bytes(finished_.data(), 0, finished_.size(), stream());
  }

  std::vector<std::int64_t> batch_thresholds() const override {
    return thresholds_of(kMostImages, [](std::int64_t batch) {
      const auto slices = [&](std::int64_t rows, std::int64_t columns, std::int64_t terms) {
        const auto [count, depth] = kernels::linear_slices(kernels::kLinearProductTile, rows, columns, terms);
        return rounds(count, 1) + rounds(depth, kernels::kLinearSliceUnit);
      };
      return std::array<std::int64_t, 7>{batch <= kernels::kSmallBatch,
                                         rounds(kernels::naive::chunk_count(batch), 1),
                                         batch > kernels::naive::kMaxChunks * kernels::naive::kLeastImagesPerChunk,
                                         rounds(batch, kernels::pixel_moments_partial_size(batch) / kernels::kMoments),
                                         rounds(batch, kernels::gradient_in_conv_chunks(batch)),
                                         slices(batch, kHidden, kFeatures),
                                         slices(kHidden, kFeatures, batch)};
    });
  }

 private:
  using Values = cuda::DeviceBuffer<float>;
  using Bytes = cuda::DeviceBuffer<std::uint8_t>;

  bool gathers() const override { return true; }
  bool records() const override { return true; }

  void reserve(std::int64_t batch) override {
    a1_.reserve(batch * kPool1Size);
    route1_.reserve(batch * kPool1Size);
    z2_.reserve(4 * batch * kPool2Size);
    for (auto* buffer : {&a2_, &da2_}) buffer->reserve(batch * kPool2Size);
    route2_.reserve(batch * kPool2Size);
    for (auto* buffer : {&h_, &dh_}) buffer->reserve(batch * kHidden);
    dlogits_.reserve(batch * kClasses);
    of_images_.reserve(2 * batch * kConv2Channels);
    moment_sums_.reserve(kernels::pixel_moments_partial_size(batch));
    fc1_slices_.reserve(kernels::most_of_batches(
        batch, [](std::int64_t b) { return kernels::linear_partial_size(b, kFeatures, kHidden); }));
    fc1_partial_.reserve(kernels::most_of_batches(batch, kernels::layerwise::fc1_partial_size));
    conv2_partial_.reserve(kernels::gradient_in_conv_chunks(batch) * kParameters[kConv2Weight].size);
    taps_.reserve(batch * kConv1Channels * (kTaps + 1));
  }

  // ---- forward ------------------------------------------------------------------------------------------------------
  void forward(const Batch& batch, const float* statistics) override {
    forward_layer1(batch, statistics);
    forward_layer2(batch, statistics);
    const auto size = batch.size;
    MNIST_PHASE("fc1 and fc2");
    timer().op("linear", kernels::linear_cost(size, kFeatures, kHidden));
    const int slices = kernels::linear_forward_slices(fc1_slices_.data(), a2_.data(), parameter(kFc1Weight), size,
                                                      kFeatures, kHidden, stream());
    timer().op("head", kernels::linear_cost(size, kHidden, kClasses));
    kernels::layerwise::head({h_.data(), logits(), log_p(), dlogits_.data(), dh_.data(), fc1_slices_.data(), slices,
                              parameter(kFc1Bias), parameter(kFc2Weight), parameter(kFc2Bias), batch.labels,
                              float(batch.upstream / double(size)), step_record(), finished_.data() + 1},
                             size, stream());
  }

  // `statistics` null: of the batch, which also gathers it.
  void forward_layer1(const Batch& batch, const float* statistics) {
    MNIST_PHASE("layer 1 forward");
    if (!statistics) {
      statistics1(batch, of_batch(kBn1Mean), of_batch(kBn1Var));
      statistics = of_batch_.data();
    }
    timer().op("layer", kernels::conv_bn_relu_pool_cost(batch.size, 1, kConv1Channels, kImageSide));
    kernels::layer_of_bytes(a1_.data(), route1_.data(), batch.images, parameter(kConv1Weight), parameter(kConv1Bias),
                            parameter(kBn1Weight), parameter(kBn1Bias), of(statistics, kBn1Mean),
                            of(statistics, kBn1Var), batch.size, kConv1Channels, stream());
  }

  void statistics1(const Batch& batch, float* mean, float* var) {
    timer().op("pixel_moments", kernels::pixel_moments_cost(batch.size * kImagePixels));
    kernels::pixel_moments_of_bytes(
        moments_.data(), moment_sums_.data(), finished_.data(), batch.images, batch.labels, batch.from, batch.size,
        {mean, var, parameter(kConv1Weight), parameter(kConv1Bias), kConv1Channels}, stream());
  }

  void forward_layer2(const Batch& batch, const float* statistics) {
    MNIST_PHASE("layer 2 forward");
    if (!statistics) return forward_layer2(batch, of_batch(kBn2Mean), of_batch(kBn2Var));
    convolve2(batch, nullptr);
    kernels::apply_pool(a2_.data(), route2_.data(), z2_.data(), parameter(kBn2Weight), parameter(kBn2Bias),
                        of(statistics, kBn2Mean), of(statistics, kBn2Var), batch.size, kConv2Channels, kPool1Side,
                        stream());
  }

  // By the batch's own statistics, which it sets.
  void forward_layer2(const Batch& batch, float* mean, float* var) {
    convolve2(batch, of_images_.data());
    timer().op("apply_pool", kernels::relu_max_pool2d_forward_cost(batch.size * kPool2Size));
    kernels::merge_apply_pool(a2_.data(), route2_.data(), mean, var, z2_.data(), of_images_.data(),
                              parameter(kBn2Weight), parameter(kBn2Bias), batch.size, kConv2Channels, kPool1Side,
                              stream());
  }

  void convolve2(const Batch& batch, float* of_images) {
    timer().op("conv2d", kernels::conv2d_cost(batch.size, kConv1Channels, kConv2Channels, kPool1Side));
    kernels::conv2d_with_statistics(z2_.data(), of_images, a1_.data(), parameter(kConv2Weight), parameter(kConv2Bias),
                                    batch.size, kConv1Channels, kConv2Channels, kPool1Side, stream());
  }

  // ---- backward -----------------------------------------------------------------------------------------------------
  void backward(const Batch& batch) override {
    const auto size = batch.size;
    size_ = size;
    {
      MNIST_PHASE("fc1 backward");
      timer().op("linear", kernels::linear_backward_cost(size, kFeatures, kHidden));
      fc1_count_ = kernels::layerwise::fc1_backward(da2_.data(), fc1_partial_.data(), dh_.data(), a2_.data(),
                                                    parameter(kFc1Weight), size, stream());
    }
    MNIST_PHASE("layers 2 and 1 backward");
    const kernels::PooledGradient of{da2_.data(),        z2_.data(),        route2_.data(),       parameter(kBn2Weight),
                                     of_batch(kBn2Mean), of_batch(kBn2Var), gradient(kBn2Weight), gradient(kBn2Bias)};
    timer().op("pooled_sums", {9.0 * double(size * kPool2Size), 4.0 * double(size * kPool2Size)});
    kernels::pooled_sums(gradient(kBn2Weight), gradient(kBn2Bias), da2_.data(), z2_.data(), route2_.data(), of.mean,
                         of.var, size, kConv2Channels, kPool1Side, stream());
    // Neither of the next two fills the GPU, nor needs the other: they run side by side, except where each is timed.
    cuda::Stream& beside = timer().on() ? compute() : beside_;
    summed_.record(stream());
    beside.wait(summed_);
    const auto cost = kernels::conv2d_cost(size, kConv1Channels, kConv2Channels, kPool1Side);
    timer().op("conv2d data", cost);
    kernels::gradient_in_conv_taps({taps_.data(), batch.images, route1_.data()}, of, parameter(kConv2Weight), size,
                                   stream());
    timer().op("conv2d weight", cost);
    kernels::gradient_in_conv_weight(conv2_partial_.data(), of, a1_.data(), size, kConv1Channels, kConv2Channels,
                                     kPool1Side, beside.get());
    multiplied_.record(beside.get());
    compute().wait(multiplied_);
    // The convolutions' biases keep the gradient 0 that the slab was filled with (unfused_engine.h).
  }

  void update(const float* learning_rate) override {
    kernels::layerwise::update({parameters(), gradients(), learning_rate, fc1_partial_.data(), conv2_partial_.data(),
                                fc1_count_, int(kernels::gradient_in_conv_chunks(size_)), taps_.data(), moments_.data(),
                                of_batch(kBn1Var), h_.data(), dh_.data(), dlogits_.data()},
                               size_, stream());
  }

  void finish_gradients() override { update(nullptr); }

  // ---- around a step ------------------------------------------------------------------------------------------------
  void layer_statistics(int layer, const Batch& batch, const float* statistics, float* mean, float* var) override {
    if (layer == 1) return statistics1(batch, mean, var);
    forward_layer1(batch, statistics);
    forward_layer2(batch, mean, var);
  }

  void read_activations(std::int64_t batch, Probe& probe) override {
    probe.a1 = read(a1_.data(), batch * kPool1Size);
    probe.a2 = read(a2_.data(), batch * kPool2Size);
    probe.h = read(h_.data(), batch * kHidden);
    const auto fetch = [&](std::vector<std::uint8_t>& to, const Bytes& from, std::int64_t count) {
      to.resize(count);
      cuda::download(to, from.data(), stream());
    };
    fetch(probe.routing.pool1, route1_, batch * kPool1Size);
    fetch(probe.routing.pool2, route2_, batch * kPool2Size);
    // What relu let through is above 0 in h, or no number.
    for (const double h : probe.h) probe.routing.relu3.push_back(!(h <= 0));
  }

  static const float* of(const float* statistics, StatisticIndex index) {
    return statistics + kStatistics[index].offset;
  }
  float* of_batch(StatisticIndex index) const { return of_batch_.data() + kStatistics[index].offset; }

  Values a1_, z2_, a2_, da2_, h_, dh_, dlogits_, of_images_, taps_;
  Values fc1_slices_, fc1_partial_, conv2_partial_;  // parts of sums: of fc1's product, of both weight gradients
  Values of_batch_{kStatisticCount};                 // statistics of the last batch
  Bytes route1_, route2_;
  cuda::DeviceBuffer<double> moments_{kernels::kMoments}, moment_sums_;
  cuda::DeviceBuffer<unsigned> finished_{2};  // blocks of pixel_moments and of head
  cuda::Stream beside_;
  cuda::Event summed_, multiplied_;  // pooled_sums, and conv2's weight gradient
  std::int64_t size_ = 0;            // of the batch that backward saw
  int fc1_count_ = 0;                // slices of fc1's weight gradient
};

}  // namespace

std::unique_ptr<Engine> create_layerwise(const EngineInfo& info, const EngineOptions& options) {
  return create_on_device<LayerwiseEngine>(info, options);
}

}  // namespace mnist
