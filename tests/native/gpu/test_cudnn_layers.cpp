// The layers of engine `cudnn` in every precision; batch norm and pooling both as cuDNN compiles them and by its older
// interface.
#include <numeric>

#include "cudnn_cases.h"

using namespace testing;

namespace {

// The older pooling keeps NaN where it is; the compiled one loses it, which the engine makes good (below).
void test_pool_nan(const Setup& setup) {
  auto x = random_values(setup, kChannels * kArea, 1);
  x[100] = std::nanf("");
  std::fill_n(x.begin() + kArea, kArea, std::nanf(""));  // a channel, as batch norm leaves it
  std::vector<double> want(x.size() / 4);
  std::vector<std::uint8_t> route(want.size());
  reference::relu_max_pool2d_forward(want.data(), route.data(), widen(x).data(), kChannels, kSide / 2);
  const Tensor input(setup, swapped(x, kChannels, kArea)), y(setup, std::int64_t(want.size()));
  MaxPool2dRelu pool(setup.libraries, "pool", 1, kChannels, kSide);
  pool.forward(y.data(), nullptr, input.data());
  check_same_nans(swapped(y.read("NaN"), kArea / 4, kChannels), want, "max_pool2d and relu, " + setup.name);
}

// Weights of conv1 so large that z overflows: no number that follows may look right.
void test_overflow(Precision precision) {
  const auto engine = create_engine("cudnn", {.precision = precision});
  std::vector<double> parameters = random_normal<double>(kParameterCount, 1);
  for (auto& v : parameters) v = float(0.02 * v);
  const std::vector<std::uint8_t> images(3 * kImagePixels, 200), labels{1, 2, 3};
  engine->set_parameters(parameters);
  CHECK(std::isfinite(engine->probe(images, labels).loss));
  std::fill_n(parameters.begin(), kParameters[kConv1Weight].size, double(3e38f));
  engine->set_parameters(parameters);
  const Probe probe = engine->probe(images, labels);
  CHECK(std::isnan(probe.loss));
  for (const auto v : probe.logits) CHECK(std::isnan(v));
}

void test_log_softmax(std::int64_t batch) {
  const Setup setup(Precision::kFp32, batch, true);
  const auto x = random_normal<float>(batch * kClasses, 1);
  std::vector<std::uint8_t> labels(batch);
  std::iota(labels.begin(), labels.end(), 0);
  for (auto& label : labels) label %= kClasses;
  std::vector<double> want(x.size()), dwant(x.size());
  reference::log_softmax_forward(want.data(), widen(x).data(), batch, kClasses);
  reference::log_softmax_nll_backward(dwant.data(), want.data(), labels.data(), -2.5, batch, kClasses);
  const Guarded<float> X(x), log_p(batch * kClasses), dx(batch * kClasses);
  const Guarded<std::uint8_t> L(labels);
  Activations activations(setup.libraries, batch);
  activations.log_softmax_forward(log_p.data(), X.data());
  kernels::nll_loss_backward(dx.data(), L.data(), -2.5f, batch, kClasses, setup.stream.get());
  activations.log_softmax_backward(dx.data(), log_p.data());
  CHECK_CLOSE(log_p.read("log_softmax"), want, 1e-6, "log_softmax, " + setup.name);
  CHECK_CLOSE(dx.read("backward"), dwant, 1e-6, "log_softmax and nll_loss backward, " + setup.name);
}

}  // namespace

int main() {
  require_gpu();
  const auto precisions = cudnn_precisions();
  for (const auto precision : precisions) {
    for (const std::int64_t batch : {1, 3, 33, 64}) {
      const Setup setup(precision, batch, true);
      test_conv2d(setup, batch, "conv1", 1, kConv1Channels, kImageSide);
      test_conv2d(setup, batch, "conv2", kConv1Channels, kConv2Channels, kPool1Side);
      test_linear(setup, batch, kFeatures, kHidden, true);
      test_linear(setup, batch, kHidden, kClasses, false);
    }
    if (precision == Precision::kTf32) continue;  // the rest has no products: as in fp32
    for (const bool compiled : {true, false})
      for (const std::int64_t batch : {3, 64}) {
        const Setup setup(precision, batch, compiled);
        test_batch_norm(setup, batch);
        if (batch == 64) continue;
        for (const auto& input : inputs(batch * kChannels * kArea, 1))
          if (input.slack == 1) test_max_pool2d_relu(setup, batch, input);
      }
    test_pool_nan(Setup(precision, 1, false));
  }
  for (const auto precision : precisions) test_overflow(precision);
  for (const std::int64_t batch : {1, 33, 1000}) test_log_softmax(batch);
  return finish();
}
