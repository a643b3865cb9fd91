// The layers of engine `cudnn`, each call of a library against the reference, in every precision; batch norm and
// pooling both as cuDNN compiles them and by its older interface.
#include <numeric>

#include "cpu/reference_ops.h"
#include "cuda/stream.h"
#include "engines/cudnn/layers.h"
#include "gpu_testing.h"
#include "kernels/library_gaps.h"

using namespace mnist;
using namespace testing;
using namespace mnist::cudnn_engine;
using bench::swapped;

namespace {

constexpr int kChannels = 64, kSide = 14, kArea = kSide * kSide;  // of the second block

// Libraries with a stream, a workspace and ones of their own.
struct Setup {
  Setup(Precision precision, std::int64_t batch, bool compiled)
      : name(std::string(to_string(precision)) + ", batch " + std::to_string(batch) + (compiled ? "" : ", older")),
        workspace(workspace_limit(batch)),
        ones(std::vector<float>(batch, 1.0f)),
        ones_bf16(batch),
        libraries{.stream = stream.get(), .compiled_engines = compiled, .policy = Policy(precision)} {
    libraries.dnn = cudnn::create_context(stream.get());
    libraries.blas = cublas::create_context();
    libraries.workspace = workspace.data();
    kernels::convert(ones_bf16.data(), ones.data(), batch, stream.get());
    libraries.ones = bf16() ? static_cast<const void*>(ones_bf16.data()) : ones.data();
  }
  bool bf16() const { return libraries.policy.bf16(); }
  // Relative error of one op: the factors' rounding, or float32 sums.
  double bound() const { return libraries.policy.precision == Precision::kFp32 ? 1e-5 : bf16() ? 6e-3 : 1e-3; }

  std::string name;
  cuda::Stream stream;
  cuda::DeviceBuffer<std::uint8_t> workspace;
  Guarded<float> ones;
  Guarded<__nv_bfloat16> ones_bf16;
  Libraries libraries;
};

// A tensor in the storage type, between guards; NaN until written.
class Tensor {
 public:
  Tensor(const Setup& setup, std::int64_t count)
      : setup_(setup), wide_(setup.bf16() ? 0 : count), narrow_(setup.bf16() ? count : 0), count_(count) {}
  Tensor(const Setup& setup, const std::vector<float>& values) : Tensor(setup, std::int64_t(values.size())) {
    if (setup.bf16())
      cuda::upload(narrow_.data(), std::vector<__nv_bfloat16>(values.begin(), values.end()), nullptr);
    else
      cuda::upload(wide_.data(), values, nullptr);
    MNIST_CHECK(cudaDeviceSynchronize());
  }
  void* data() const { return setup_.bf16() ? static_cast<void*>(narrow_.data()) : static_cast<void*>(wide_.data()); }
  std::vector<float> read(const std::string& what) const {
    if (!setup_.bf16()) return wide_.read(what);
    const auto values = narrow_.read(what);
    return {values.begin(), values.end()};
  }

 private:
  const Setup& setup_;
  Guarded<float> wide_;
  Guarded<__nv_bfloat16> narrow_;
  std::int64_t count_;
};

// Random values that the storage type holds exactly.
std::vector<float> random_values(const Setup& setup, std::int64_t count, unsigned seed) {
  auto values = random_normal<float>(count, seed);
  if (setup.bf16())
    for (auto& v : values) v = float(__nv_bfloat16(v));
  return values;
}

void test_conv2d(const Setup& setup, std::int64_t batch, const char* layer, int in, int out, int side) {
  const int area = side * side;
  const auto x = random_values(setup, batch * in * area, 1), w = random_values(setup, out * in * kTaps, 2),
             dy = random_values(setup, batch * out * area, 3);
  std::vector<double> y_want(dy.size()), dx_want(x.size()), dw_want(w.size()), bias(out, 0.0);
  reference::conv2d_forward(y_want.data(), widen(x).data(), widen(w).data(), bias.data(), batch, in, out, side);
  reference::conv2d_backward_data(dx_want.data(), widen(dy).data(), widen(w).data(), batch, in, out, side);
  reference::conv2d_backward_weight(dw_want.data(), widen(dy).data(), widen(x).data(), batch, in, out, side);

  const Tensor X(setup, swapped(x, in, area)), W(setup, swapped(w, in, kTaps)), DY(setup, swapped(dy, out, area));
  const Tensor Y(setup, std::int64_t(dy.size())), DX(setup, std::int64_t(x.size())), DW(setup, std::int64_t(w.size()));
  Conv2d conv2d(setup.libraries, layer, batch, in, out, side);
  const std::string what = std::string(" of ") + layer + ", " + setup.name;
  conv2d.forward(Y.data(), X.data(), W.data());
  CHECK_CLOSE(swapped(Y.read("forward" + what), area, out), y_want, setup.bound(), "forward" + what);
  conv2d.backward_weight(DW.data(), DY.data(), X.data());
  CHECK_CLOSE(swapped(DW.read("weight" + what), kTaps, in), dw_want, setup.bound(), "backward weight" + what);
  if (in == 1) return;  // the network never asks for the image's gradient
  conv2d.backward_data(DX.data(), DY.data(), W.data());
  CHECK_CLOSE(swapped(DX.read("data" + what), area, in), dx_want, setup.bound(), "backward data" + what);
}

void test_batch_norm(const Setup& setup, std::int64_t batch) {
  const std::int64_t count = batch * kChannels * kArea;
  auto x = random_values(setup, count, 1);
  const auto dy = random_values(setup, count, 2);
  const auto gamma = random_normal<float>(kChannels, 3), beta = random_normal<float>(kChannels, 4),
             bias = random_normal<float>(kChannels, 5);
  const auto X = widen(x), G = widen(gamma), B = widen(beta);
  std::vector<double> mean(kChannels), var(kChannels), y_want(count), dx_want(count), dg_want(kChannels),
      db_want(kChannels), inverse_want, population_want(count), biased_mean;
  reference::batch_norm_statistics(mean.data(), var.data(), X.data(), batch, kChannels, kArea);
  reference::batch_norm_forward(y_want.data(), X.data(), G.data(), B.data(), mean.data(), var.data(), batch, kChannels,
                                kArea);
  reference::batch_norm_backward(dx_want.data(), dg_want.data(), db_want.data(), widen(dy).data(), X.data(), G.data(),
                                 mean.data(), var.data(), batch, kChannels, kArea);
  for (int c = 0; c < kChannels; ++c) {
    inverse_want.push_back(1 / std::sqrt(var[c] + kBatchNormEpsilon));
    biased_mean.push_back(mean[c] + bias[c]);
  }

  const auto last = [](const auto& values) { return swapped(values, kChannels, kArea); };
  const auto first = [](const auto& values) { return swapped(values, kArea, kChannels); };
  const Tensor input(setup, last(x)), upstream(setup, last(dy)), y(setup, count), dx(setup, count), again(setup, count);
  const Guarded<float> scale(gamma), shift(beta), conv_bias(bias), saved_mean(kChannels), inverse(kChannels),
      dgamma(kChannels), dbeta(kChannels), full_mean(kChannels), full_var(kChannels), shifted(kChannels);
  BatchNorm batch_norm(setup.libraries, "bn", batch, kChannels, kSide);
  const std::string what = " of batch_norm, " + setup.name;
  const double bound = setup.bf16() ? 4e-3 : 1e-5;  // rounding of the result
  batch_norm.forward(y.data(), saved_mean.data(), inverse.data(), input.data(), scale.data(), shift.data());
  CHECK_CLOSE(first(y.read("forward" + what)), y_want, bound, "forward" + what);
  CHECK_CLOSE(saved_mean.read("mean" + what), mean, 1e-5, "mean" + what);
  CHECK_CLOSE(inverse.read("inverse" + what), inverse_want, 1e-5, "inverse deviation" + what);
  batch_norm.backward(dx.data(), dgamma.data(), dbeta.data(), upstream.data(), input.data(), scale.data(),
                      saved_mean.data(), inverse.data());
  CHECK_CLOSE(first(dx.read("backward" + what)), dx_want, bound, "backward" + what);
  CHECK_CLOSE(dgamma.read("dgamma" + what), dg_want, 1e-5, "dgamma" + what);
  CHECK_CLOSE(dbeta.read("dbeta" + what), db_want, 1e-5, "dbeta" + what);

  kernels::batch_norm_statistics_from_saved(full_mean.data(), full_var.data(), conv_bias.data(), saved_mean.data(),
                                            inverse.data(), kBatchNormEpsilon, kChannels, setup.stream.get());
  CHECK_CLOSE(full_mean.read("mean" + what), biased_mean, 1e-5, "mean with the bias" + what);
  CHECK_CLOSE(full_var.read("var" + what), var, 1e-5, "variance" + what);
  batch_norm.forward_population(again.data(), input.data(), scale.data(), shift.data(), full_mean.data(),
                                full_var.data(), conv_bias.data(), shifted.data());
  CHECK_CLOSE(first(again.read("population" + what)), y_want, bound, "by the same population statistics" + what);
}

void test_max_pool2d_relu(const Setup& setup, std::int64_t batch, const Input& kind) {
  const std::int64_t planes = batch * kChannels, count = planes * kArea;
  auto x = kind.values;
  if (setup.bf16())
    for (auto& v : x) v = float(__nv_bfloat16(v));
  const auto dy = random_values(setup, count / 4, 2);
  std::vector<double> y_want(count / 4), dx_want(count);
  std::vector<std::uint8_t> route(count / 4);
  reference::relu_max_pool2d_forward(y_want.data(), route.data(), widen(x).data(), planes, kSide / 2);
  reference::relu_max_pool2d_backward(dx_want.data(), widen(dy).data(), route.data(), planes, kSide / 2);

  const Tensor input(setup, swapped(x, kChannels, kArea)), upstream(setup, swapped(dy, kChannels, kArea / 4)),
      y(setup, count / 4), without_backward(setup, count / 4), dx(setup, count);
  const Guarded<std::uint8_t> index(count / 4);
  MaxPool2dRelu pool(setup.libraries, "pool", batch, kChannels, kSide);
  const std::string what = " of " + std::string(kind.name) + ", " + setup.name;
  pool.forward(y.data(), index.data(), input.data());
  pool.forward(without_backward.data(), nullptr, input.data());
  CHECK_CLOSE(swapped(y.read("pool" + what), kArea / 4, kChannels), y_want, 0, "max_pool2d and relu" + what);
  CHECK_CLOSE(swapped(without_backward.read("pool" + what), kArea / 4, kChannels), y_want, 0,
              "max_pool2d and relu without places" + what);
  pool.backward(dx.data(), upstream.data(), y.data(), index.data(), input.data());
  CHECK_CLOSE(swapped(dx.read("pool" + what), kArea, kChannels), dx_want, 0, "max_pool2d backward" + what);
}

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

void test_linear(const Setup& setup, std::int64_t batch, int in, int out, bool relu) {
  const auto x = random_values(setup, batch * in, 1), w = random_values(setup, out * in, 2),
             bias = random_values(setup, out, 3), dy = random_values(setup, batch * out, 4);
  std::vector<double> y_want(dy.size()), dx_want(x.size()), dw_want(w.size()), db_want(out);
  reference::linear_forward(y_want.data(), widen(x).data(), widen(w).data(), widen(bias).data(), batch, in, out);
  reference::linear_backward(dx_want.data(), dw_want.data(), db_want.data(), widen(dy).data(), widen(x).data(),
                             widen(w).data(), batch, in, out);
  if (relu)
    for (auto& v : y_want) v = std::max(v, 0.0);

  const Tensor X(setup, x), W(setup, w), DY(setup, dy), B(setup, bias), narrow(setup, batch * out),
      DX(setup, batch * in);
  const Guarded<float> wide_bias(bias), wide(batch * out), DW(out * in), DB(out);
  Linear linear(setup.libraries, batch, in, out, relu);
  const std::string what = " of linear " + std::to_string(in) + " to " + std::to_string(out) + ", " + setup.name;
  // Without relu the result, the network's scores, is float32, and so is the bias.
  void* y = relu ? narrow.data() : wide.data();
  linear.forward(y, X.data(), W.data(), relu ? B.data() : wide_bias.data());
  CHECK_CLOSE(relu ? narrow.read("y" + what) : wide.read("y" + what), y_want, setup.bound(), "forward" + what);
  linear.backward_weight(DW.data(), DB.data(), DY.data(), X.data());
  linear.backward_data(DX.data(), DY.data(), W.data());
  CHECK_CLOSE(DW.read("dw" + what), dw_want, setup.bound(), "backward weight" + what);
  CHECK_CLOSE(DB.read("db" + what), db_want, setup.bound(), "backward bias" + what);
  CHECK_CLOSE(DX.read("dx" + what), dx_want, setup.bound(), "backward data" + what);
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
  for (const auto precision : {Precision::kFp32, Precision::kTf32, Precision::kBf16}) {
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
  for (const auto precision : {Precision::kFp32, Precision::kTf32, Precision::kBf16}) test_overflow(precision);
  for (const std::int64_t batch : {1, 33, 1000}) test_log_softmax(batch);
  return finish();
}
