// The layers of engine `cudnn`, each call of a library against the reference: what test_cudnn_layers.cpp runs with all
// that the libraries offer and test_cudnn_refusals.cpp with less. Each case returns what its layer says of its choices.
#pragma once

#include "cpu/reference_ops.h"
#include "cuda/architectures.h"
#include "cuda/capability.h"
#include "cuda/stream.h"
#include "gpu_testing.h"
#include "kernels/cudnn_helpers.h"
#include "libraries/cudnn_layers.h"

namespace testing {

using namespace mnist;
using namespace mnist::cudnn_layers;
using bench::swapped;
using Lines = std::vector<std::string>;

inline constexpr int kChannels = 64, kSide = 14, kArea = kSide * kSide;  // of the second block

// Those that the GPU has, after a line for each that it has not.
inline std::vector<Precision> cudnn_precisions() {
  std::vector<Precision> list{Precision::kFp32};
  const std::string reason = cuda::gpu_lacks(cuda::kTensorCapability, 0);
  for (const auto precision : {Precision::kTf32, Precision::kBf16}) {
    if (reason.empty())
      list.push_back(precision);
    else
      std::printf("not tested: %s, %s\n", to_string(precision), reason.c_str());
  }
  return list;
}

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
  // Relative L2 error of one op, of which mnist_cuda/engine/tolerances.py has none: in fp32 that of sums of up to
  // 50,000 products, in tf32 twice a factor's largest rounding, 2^-11, in bf16 one and a half times the result's, 2^-8.
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
inline std::vector<float> random_values(const Setup& setup, std::int64_t count, unsigned seed) {
  auto values = random_normal<float>(count, seed);
  if (setup.bf16())
    for (auto& v : values) v = float(__nv_bfloat16(v));
  return values;
}

template <class Layer>
Lines described(const Layer& layer) {
  Lines lines;
  layer.describe(lines);
  return lines;
}

inline Lines test_conv2d(const Setup& setup, std::int64_t batch, const char* layer, int in, int out, int side) {
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
  if (in > 1) {  // the network never asks for the image's gradient
    conv2d.backward_data(DX.data(), DY.data(), W.data());
    CHECK_CLOSE(swapped(DX.read("data" + what), area, in), dx_want, setup.bound(), "backward data" + what);
  }
  return described(conv2d);
}

inline Lines test_batch_norm(const Setup& setup, std::int64_t batch) {
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
  const double bound = setup.bf16() ? 4e-3 : 1e-5;  // rounding of the result, 2^-8, and in fp32 of sums as above
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
  return described(batch_norm);
}

inline Lines test_max_pool2d_relu(const Setup& setup, std::int64_t batch, const Input& kind) {
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
  return described(pool);
}

inline Lines test_linear(const Setup& setup, std::int64_t batch, int in, int out, bool relu) {
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
  Linear linear(setup.libraries, "linear", batch, in, out, relu);
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
  return described(linear);
}

}  // namespace testing
