// The ops of the benchmark. Inputs are random. Of products of many images the reference answers for the first ones, or
// it would take longer than everything that is timed; `naive` in float64, which must agree there, answers for all.
#include "bench/op_cases.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <utility>

#include "cpu/reference_ops.h"
#include "kernels/batch_norm/naive_ops.h"
#include "kernels/conv2d/naive_ops.h"
#include "kernels/conv_bn_relu_pool/conv_bn_relu_pool.h"
#include "kernels/linear/naive_ops.h"
#include "kernels/linear/slices.h"
#include "kernels/linear_sparse/linear_sparse.h"
#include "kernels/relu/relu.h"
#include "kernels/row_sums/row_sums.h"
#include "kernels/transpose/transpose.h"
#include "mnist/model.h"

namespace mnist::bench {
namespace {

using Doubles = std::vector<double>;

constexpr std::int64_t kChecked = 32;  // images of a product that the reference answers for
constexpr double kNaiveError = 1e-12;  // of float64 sums in another order, relative L2
constexpr int kArea1 = kImagePixels, kArea2 = kPool1Side * kPool1Side;

std::string shape(const char* before, std::int64_t batch, const char* after) {
  return std::string(before).append(std::to_string(batch)).append(after);
}

// Normal numbers in the GPU's memory, in the op's order and channels last, and in float64.
struct Input {
  const float *data, *last;
  Doubles wide;

  template <class Function>
  const float* of(const Rung<Function>& rung) const {
    return rung.channels_last ? last : data;
  }
};

const float* add_floats(OpCase& op, cudaStream_t stream, const std::vector<float>& values) {
  auto& buffer = op.floats.emplace_back(std::int64_t(values.size()));
  cuda::upload(buffer.data(), values, stream);
  return buffer.data();
}

// `channels` and `area`: of an array that rows may read channels last.
Input random_input(OpCase& op, cudaStream_t stream, std::int64_t count, double scale = 1, int channels = 1,
                   int area = 1) {
  std::mt19937 rng(unsigned(op.floats.size()) + 1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) value = float(scale) * normal(rng);
  const float* data = add_floats(op, stream, values);
  const float* last = channels > 1 ? add_floats(op, stream, swapped(values, channels, area)) : data;
  return {data, last, Doubles(values.begin(), values.end())};
}

using Wide = cuda::DeviceBuffer<double>;

Wide on_gpu(const Doubles& values, cudaStream_t stream) {
  Wide buffer(std::int64_t(values.size()));
  cuda::upload(buffer.data(), values, stream);
  return buffer;
}

// A case whose output has `size` numbers, and room for as many answers; channels and area as in OpCase.
OpCase op_case(std::string shape, std::int64_t size, const kernels::Cost& cost, double bound = 0, int channels = 1,
               int area = 1) {
  OpCase op{.shape = std::move(shape), .cost = cost, .channels = channels, .area = area, .bound = bound};
  op.output.reserve(size);
  op.want.resize(size);
  return op;
}

// Sets op.want by `naive`; its first `known` numbers, the first images' answer, the reference has set.
template <class Naive>
void answer_all(OpCase& op, std::int64_t known, cudaStream_t stream, Naive naive) {
  const auto count = std::int64_t(op.want.size());
  if (known == count) return;
  const Wide found(count);
  cuda::fill_bytes(found.data(), 0xff, count, stream);  // NaN
  naive(found.data());
  Doubles all(count);
  cuda::download(all, found.data(), stream);
  op.want.resize(known);
  if (!(relative_error(std::span(all).first(known), op.want) <= kNaiveError) ||
      !std::ranges::all_of(all, [](double v) { return std::isfinite(v); }))
    throw std::runtime_error(op.shape + ": naive in float64 is not what the reference says, so no row can be checked");
  op.want = std::move(all);
}

// `row` with its arguments but for the stream, inputs as it takes them.
template <class Function, class... Arguments>
void add_rung(OpCase& op, const Rung<Function>& row, const Arguments&... arguments) {
  const auto taken = [&]<class T>(const T& argument) {
    if constexpr (std::is_same_v<T, Input>)
      return argument.of(row);
    else
      return argument;
  };
  const auto run = [run = row.run, ... bound = taken(arguments)](cudaStream_t stream) { run(bound..., stream); };
  op.ladder.push_back(
      {{row.name, run, row.why, row.own_error, row.unit, row.needs}, row.library, row.channels_last, row.absent});
}

template <class Function, class... Arguments>
void add_rungs(OpCase& op, const Ladder<Function>& ladder, const Arguments&... arguments) {
  for (const auto& row : ladder) add_rung(op, row, arguments...);
}

// fc1's answer for all images.
void answer_linear(OpCase& op, const Doubles& x, const Doubles& w, const Doubles& bias, std::int64_t batch,
                   cudaStream_t stream) {
  const auto checked = std::min(batch, kChecked);
  reference::linear_forward(op.want.data(), x.data(), w.data(), bias.data(), checked, kFeatures, kHidden);
  answer_all(op, checked * kHidden, stream, [&](double* y) {
    const Wide wide_x = on_gpu(x, stream), wide_w = on_gpu(w, stream), wide_bias = on_gpu(bias, stream);
    kernels::naive::linear_forward(y, wide_x.data(), wide_w.data(), wide_bias.data(), batch, kFeatures, kHidden,
                                   stream);
    MNIST_CHECK(cudaStreamSynchronize(stream));
  });
}

OpCase linear_of(const Ladder<kernels::LinearForward>& ladder, bool relu, std::int64_t batch, cudaStream_t stream) {
  OpCase op = op_case(shape("fc1: (", batch, ",3136) to 128"), batch * kHidden,
                      kernels::linear_cost(batch, kFeatures, kHidden), 1e-5);
  const auto x = random_input(op, stream, batch * kFeatures);
  const auto w = random_input(op, stream, kHidden * kFeatures, 0.02);
  const auto bias = random_input(op, stream, kHidden);
  answer_linear(op, x.wide, w.wide, bias.wide, batch, stream);
  if (relu)
    for (double& y : op.want) y = std::max(y, 0.0);
  const auto scratch = std::max(kernels::linear_partial_size(batch, kFeatures, kHidden),
                                kernels::linear_int8_partial_size(batch, kFeatures, kHidden));
  float* partial = op.floats.emplace_back(scratch).data();
  add_rungs(op, ladder, op.output.data(), partial, x, w, bias, batch, kFeatures, kHidden);
  return op;
}

OpCase linear(std::int64_t batch, cudaStream_t stream) {
  return linear_of(linear_forward_ladder(), false, batch, stream);
}
OpCase linear_relu(std::int64_t batch, cudaStream_t stream) {
  return linear_of(linear_relu_forward_ladder(), true, batch, stream);
}

// dx, dw and dbias one after the other in the output; the reference has to see every image.
OpCase linear_backward(std::int64_t batch, cudaStream_t stream) {
  const std::int64_t of_x = batch * kFeatures, of_w = std::int64_t(kHidden) * kFeatures;
  OpCase op = op_case(shape("fc1: (", batch, ",3136) to 128"), of_x + of_w + kHidden,
                      kernels::linear_backward_cost(batch, kFeatures, kHidden), 1e-5);
  const auto dy = random_input(op, stream, batch * kHidden);
  const auto x = random_input(op, stream, of_x);
  const auto w = random_input(op, stream, of_w);
  double* want = op.want.data();
  reference::linear_backward(want, want + of_x, want + of_x + of_w, dy.wide.data(), x.wide.data(), w.wide.data(), batch,
                             kFeatures, kHidden);
  float* partial = op.floats.emplace_back(kernels::linear_backward_partial_size(batch, kFeatures, kHidden)).data();
  float* dx = op.output.data();
  add_rungs(op, linear_backward_ladder(), dx, dx + of_x, dx + of_x + of_w, partial, dy, x, w, batch, kFeatures,
            kHidden);
  return op;
}

// Of each four neighbours in w the two smallest are 0.
OpCase linear_sparse(std::int64_t batch, cudaStream_t stream) {
  OpCase op = op_case(shape("fc1, 2:4: (", batch, ",3136) to 128"), batch * kHidden,
                      kernels::linear_cost(batch, kFeatures, kHidden));
  const auto x = random_input(op, stream, batch * kFeatures);
  std::mt19937 rng(2);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> weights(kHidden * kFeatures);
  for (std::size_t k = 0; k < weights.size(); k += 4) {
    float* four[4];
    for (int n = 0; n < 4; ++n) *(four[n] = &weights[k + n]) = normal(rng);
    std::ranges::sort(four, {}, [](const float* weight) { return std::abs(*weight); });
    *four[0] = *four[1] = 0;
  }
  const float* w = add_floats(op, stream, weights);
  const auto bias = random_input(op, stream, kHidden);
  answer_linear(op, x.wide, Doubles(weights.begin(), weights.end()), bias.wide, batch, stream);
  float* partial = op.floats.emplace_back(kernels::linear_partial_size(batch, kFeatures, kHidden)).data();
  add_rungs(op, own_rungs(kernels::linear_sparse_forward_variants()), op.output.data(), partial, x, w, bias, batch,
            kFeatures, kHidden);
  return op;
}

constexpr std::int64_t kConv2Weights = std::int64_t(kConv1Channels) * kConv2Channels * kTaps;
constexpr std::int64_t kConv2Size = std::int64_t(kConv2Channels) * kArea2;  // y of one image

Input conv2_x(OpCase& op, cudaStream_t stream, std::int64_t batch) {
  return random_input(op, stream, batch * kPool1Size, 1, kConv1Channels, kArea2);
}
Input conv2_w(OpCase& op, cudaStream_t stream) {
  return random_input(op, stream, kConv2Weights, 0.06, kConv1Channels, kTaps);
}
Input conv2_dy(OpCase& op, cudaStream_t stream, std::int64_t batch) {
  return random_input(op, stream, batch * kConv2Size, 1, kConv2Channels, kArea2);
}

// Of any direction: `size`, `channels` and `area` of its result.
OpCase conv2_case(std::int64_t batch, std::int64_t size, int channels, int area, double bound) {
  return op_case(shape("conv2: (", batch, ",32,14,14) to 64"), size,
                 kernels::conv2d_cost(batch, kConv1Channels, kConv2Channels, kPool1Side), bound, channels, area);
}

OpCase conv2d(std::int64_t batch, cudaStream_t stream) {
  OpCase op = conv2_case(batch, batch * kConv2Size, kConv2Channels, kArea2, 5e-6);
  const auto checked = std::min(batch, kChecked);
  const auto x = conv2_x(op, stream, batch), w = conv2_w(op, stream);
  const auto bias = random_input(op, stream, kConv2Channels);
  reference::conv2d_forward(op.want.data(), x.wide.data(), w.wide.data(), bias.wide.data(), checked, kConv1Channels,
                            kConv2Channels, kPool1Side);
  answer_all(op, checked * kConv2Size, stream, [&](double* y) {
    const Wide wide_x = on_gpu(x.wide, stream), wide_w = on_gpu(w.wide, stream), b = on_gpu(bias.wide, stream);
    kernels::naive::conv2d_forward(y, wide_x.data(), wide_w.data(), b.data(), batch, kConv1Channels, kConv2Channels,
                                   kPool1Side, stream);
    MNIST_CHECK(cudaStreamSynchronize(stream));
  });
  add_rungs(op, conv2d_forward_ladder(), op.output.data(), x, w, bias, batch, kConv1Channels, kConv2Channels,
            kPool1Side);
  return op;
}

OpCase conv2d_backward_data(std::int64_t batch, cudaStream_t stream) {
  OpCase op = conv2_case(batch, batch * kPool1Size, kConv1Channels, kArea2, 5e-6);
  const auto checked = std::min(batch, kChecked);
  const auto dy = conv2_dy(op, stream, batch), w = conv2_w(op, stream);
  reference::conv2d_backward_data(op.want.data(), dy.wide.data(), w.wide.data(), checked, kConv1Channels,
                                  kConv2Channels, kPool1Side);
  answer_all(op, checked * kPool1Size, stream, [&](double* dx) {
    const Wide wide_dy = on_gpu(dy.wide, stream), wide_w = on_gpu(w.wide, stream);
    kernels::naive::conv2d_backward_data(dx, wide_dy.data(), wide_w.data(), batch, kConv1Channels, kConv2Channels,
                                         kPool1Side, stream);
    MNIST_CHECK(cudaStreamSynchronize(stream));
  });
  add_rungs(op, conv2d_backward_data_ladder(), op.output.data(), dy, w, batch, kConv1Channels, kConv2Channels,
            kPool1Side);
  return op;
}

// The reference has to see every image.
OpCase conv2d_backward_weight(std::int64_t batch, cudaStream_t stream) {
  OpCase op = conv2_case(batch, kConv2Weights, kConv1Channels, kTaps, 1e-5);
  const auto dy = conv2_dy(op, stream, batch), x = conv2_x(op, stream, batch);
  reference::conv2d_backward_weight(op.want.data(), dy.wide.data(), x.wide.data(), batch, kConv1Channels,
                                    kConv2Channels, kPool1Side);
  const auto scratch = kernels::conv2d_backward_weight_partial_size(batch, kConv1Channels, kConv2Channels);
  float* partial = op.floats.emplace_back(scratch).data();
  add_rungs(op, conv2d_backward_weight_ladder(), op.output.data(), partial, dy, x, batch, kConv1Channels,
            kConv2Channels, kPool1Side);
  return op;
}

OpCase relu(std::int64_t batch, cudaStream_t stream) {
  const std::int64_t count = batch * kConv2Size;
  OpCase op = op_case(shape("(", batch, ",64,14,14)"), count, kernels::relu_cost(count));
  const auto x = random_input(op, stream, count);
  op.decisions.reserve(count);
  std::vector<std::uint8_t> pass(count);
  reference::relu_forward(op.want.data(), pass.data(), x.wide.data(), count, true);
  add_rungs(op, own_rungs(kernels::relu_forward_variants()), op.output.data(), op.decisions.data(), x, count);
  return op;
}

OpCase transpose(std::int64_t batch, cudaStream_t stream) {
  OpCase op = op_case(shape("(", batch, ",3136)"), batch * kFeatures, kernels::transpose_cost(batch * kFeatures));
  const auto x = random_input(op, stream, batch * kFeatures);
  for (std::int64_t c = 0; c < kFeatures; ++c)
    for (std::int64_t b = 0; b < batch; ++b) op.want[c * batch + b] = x.wide[b * kFeatures + c];
  add_rungs(op, own_rungs(kernels::transpose_variants()), op.output.data(), x, batch, kFeatures);
  return op;
}

// A row is as long as chance has it.
OpCase row_sums(std::int64_t batch, cudaStream_t stream) {
  const std::int64_t rows = batch * kConv2Channels;
  std::mt19937 rng(1);
  std::vector<int> length(rows), order(rows);
  for (auto& each : length) each = int(rng() % (kArea2 + 1));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](int row) { return length[row]; });
  const auto summed = std::accumulate(length.begin(), length.end(), std::int64_t(0));
  OpCase op = op_case(shape("(", batch, "x64) rows of up to 196"), rows, kernels::row_sums_cost(summed, rows), 2e-6);
  const auto x = random_input(op, stream, rows * kArea2);
  for (const auto& list : {length, order}) cuda::upload(op.ints.emplace_back(rows).data(), list, stream);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto row = x.wide.begin() + r * kArea2;
    op.want[r] = std::accumulate(row, row + length[r], 0.0);
  }
  add_rungs(op, own_rungs(kernels::row_sums_variants()), op.output.data(), x, op.ints[0].data(), op.ints[1].data(),
            rows, kArea2);
  return op;
}

// Pixels as in digits: strokes of a few neighbours, 0 elsewhere.
OpCase histogram(std::int64_t batch, cudaStream_t stream) {
  OpCase op =
      op_case(shape("(", batch, ",28,28)"), kernels::kHistogramBins, kernels::histogram_cost(batch * kImagePixels));
  std::mt19937 rng(1);
  std::vector<std::uint8_t> pixels(batch * kImagePixels);
  for (std::size_t k = 0; k < pixels.size(); ++k)
    if (k % 4 ? pixels[k - 1] : rng() % 5 == 0) pixels[k] = std::uint8_t(1 + rng() % 255);
  op.decisions.reserve(std::int64_t(pixels.size()));
  cuda::upload(op.decisions.data(), pixels, stream);
  op.counts = true;
  for (const auto pixel : pixels) ++op.want[pixel];
  int* const count = reinterpret_cast<int*>(op.output.data());
  add_rungs(op, histogram_ladder(), count, op.decisions.data(), batch * kImagePixels);
  return op;
}

// Of layer 1, by channel: an op whose result has `area` numbers per channel and image.
OpCase layer1_case(std::int64_t batch, int area, const kernels::Cost& cost, double bound = 0) {
  return op_case(shape("layer 1: (", batch, ",32,28,28)"), batch * kConv1Channels * area, cost, bound, kConv1Channels,
                 area);
}

OpCase relu_max_pool2d(std::int64_t batch, cudaStream_t stream) {
  const std::int64_t planes = batch * kConv1Channels, pooled = batch * kPool1Size;
  OpCase op = layer1_case(batch, kArea2, kernels::relu_max_pool2d_forward_cost(pooled));
  const auto x = random_input(op, stream, planes * kArea1, 1, kConv1Channels, kArea1);
  op.decisions.reserve(pooled);
  std::vector<std::uint8_t> route(pooled);
  reference::relu_max_pool2d_forward(op.want.data(), route.data(), x.wide.data(), planes, kPool1Side);
  add_rungs(op, relu_max_pool2d_forward_ladder(kConv1Channels), op.output.data(), op.decisions.data(), x, planes,
            kPool1Side);
  return op;
}

// Random gradients and decisions; cuDNN takes its own from x, which leaves the same maxima alive.
OpCase relu_max_pool2d_backward(std::int64_t batch, cudaStream_t stream) {
  const std::int64_t planes = batch * kConv1Channels, pooled = batch * kPool1Size;
  OpCase op = layer1_case(batch, kArea1, kernels::relu_max_pool2d_backward_cost(pooled));
  const auto x = random_input(op, stream, 4 * pooled, 1, kConv1Channels, kArea1);
  const auto dy = random_input(op, stream, pooled, 1, kConv1Channels, kArea2);
  Doubles y(pooled);
  std::vector<std::uint8_t> route(pooled);
  reference::relu_max_pool2d_forward(y.data(), route.data(), x.wide.data(), planes, kPool1Side);
  reference::relu_max_pool2d_backward(op.want.data(), dy.wide.data(), route.data(), planes, kPool1Side);
  op.decisions.reserve(pooled);
  cuda::upload(op.decisions.data(), route, stream);
  add_rungs(op, relu_max_pool2d_backward_ladder(kConv1Channels, x.last), op.output.data(), dy, op.decisions.data(),
            planes, kPool1Side);
  return op;
}

// Mean and variance side by side in the output; the reference has to see every image.
OpCase batch_norm_statistics(std::int64_t batch, cudaStream_t stream) {
  const std::int64_t count = batch * kConv1Channels * kArea1;
  OpCase op = op_case(shape("layer 1: (", batch, ",32,28,28)"), 2 * kConv1Channels,
                      kernels::batch_norm_statistics_cost(count), 1e-6);
  const auto x = random_input(op, stream, count);
  reference::batch_norm_statistics(op.want.data(), op.want.data() + kConv1Channels, x.wide.data(), batch,
                                   kConv1Channels, kArea1);
  float* partial = op.floats.emplace_back(kernels::naive::batch_norm_partial_size(batch, kConv1Channels)).data();
  float* mean = op.output.data();
  add_rungs(op, own_rungs(kernels::batch_norm_statistics_variants()), mean, mean + kConv1Channels, partial, x, batch,
            kConv1Channels, kArea1);
  return op;
}

OpCase batch_norm_forward(std::int64_t batch, cudaStream_t stream) {
  const std::int64_t count = batch * kConv1Channels * kArea1;
  OpCase op = layer1_case(batch, kArea1,
                          kernels::batch_norm_statistics_cost(count) + kernels::batch_norm_forward_cost(count), 2e-6);
  const auto x = random_input(op, stream, count, 1, kConv1Channels, kArea1);
  const auto gamma = random_input(op, stream, kConv1Channels);
  const auto beta = random_input(op, stream, kConv1Channels);
  Doubles mean(kConv1Channels), var(kConv1Channels);
  reference::batch_norm_statistics(mean.data(), var.data(), x.wide.data(), batch, kConv1Channels, kArea1);
  reference::batch_norm_forward(op.want.data(), x.wide.data(), gamma.wide.data(), beta.wide.data(), mean.data(),
                                var.data(), batch, kConv1Channels, kArea1);
  float* statistics = op.floats.emplace_back(2 * kConv1Channels).data();
  float* partial = op.floats.emplace_back(kernels::naive::batch_norm_partial_size(batch, kConv1Channels)).data();
  add_rungs(op, batch_norm_forward_ladder(), op.output.data(), statistics, partial, x, gamma, beta, batch,
            kConv1Channels, kArea1);
  return op;
}

// dx is what is compared: dgamma and dbeta, which the sums of all images make, are in it.
OpCase batch_norm_backward(std::int64_t batch, cudaStream_t stream) {
  const std::int64_t count = batch * kConv1Channels * kArea1;
  OpCase op = layer1_case(batch, kArea1, kernels::batch_norm_backward_cost(count), 2e-6);
  const auto dy = random_input(op, stream, count, 1, kConv1Channels, kArea1);
  const auto x = random_input(op, stream, count, 1, kConv1Channels, kArea1);
  const auto gamma = random_input(op, stream, kConv1Channels);
  Doubles mean(kConv1Channels), var(kConv1Channels), dgamma(kConv1Channels), dbeta(kConv1Channels);
  reference::batch_norm_statistics(mean.data(), var.data(), x.wide.data(), batch, kConv1Channels, kArea1);
  reference::batch_norm_backward(op.want.data(), dgamma.data(), dbeta.data(), dy.wide.data(), x.wide.data(),
                                 gamma.wide.data(), mean.data(), var.data(), batch, kConv1Channels, kArea1);
  Doubles inverse = var;
  for (auto& value : inverse) value = 1 / std::sqrt(value + kBatchNormEpsilon);
  const auto upload = [&](const Doubles& values) {
    return add_floats(op, stream, std::vector<float>(values.begin(), values.end()));
  };
  const float *means = upload(mean), *vars = upload(var), *inverses = upload(inverse);
  float* gradients = op.floats.emplace_back(2 * kConv1Channels).data();
  float* partial = op.floats.emplace_back(kernels::naive::batch_norm_partial_size(batch, kConv1Channels)).data();
  add_rungs(op, batch_norm_backward_ladder(), op.output.data(), gradients, gradients + kConv1Channels, partial, dy, x,
            gamma, means, vars, inverses, batch, kConv1Channels, kArea1);
  return op;
}

// A layer of the network, its inputs, and what the reference has of it; every image counts in the statistics.
struct LayerCase {
  int in, out, side;
  std::string shape;
  Input x, w, bias, gamma, beta;
  Doubles z, mean, var, a;
  std::vector<std::uint8_t> route;

  std::int64_t values(std::int64_t batch) const { return batch * out * side * side; }
};

LayerCase layer_case(OpCase& op, std::int64_t batch, bool first, cudaStream_t stream) {
  LayerCase layer{first ? 1 : kConv1Channels, first ? kConv1Channels : kConv2Channels, first ? kImageSide : kPool1Side};
  op.shape = first ? shape("layer 1: (", batch, ",1,28,28) to 32") : shape("layer 2: (", batch, ",32,14,14) to 64");
  const int area = layer.side * layer.side, weights = layer.in * layer.out * kTaps;
  const auto pixels = batch * layer.in * area;
  layer.x = random_input(op, stream, pixels, 1, layer.in, area);
  layer.w = random_input(op, stream, weights, first ? 0.3 : 0.06, layer.in, kTaps);
  for (auto* input : {&layer.bias, &layer.gamma, &layer.beta}) *input = random_input(op, stream, layer.out);
  for (auto* values : {&layer.mean, &layer.var}) values->resize(layer.out);
  layer.z.resize(layer.values(batch));
  layer.a.resize(layer.values(batch) / 4);
  layer.route.resize(layer.a.size());
  reference::conv2d_forward(layer.z.data(), layer.x.wide.data(), layer.w.wide.data(), layer.bias.wide.data(), batch,
                            layer.in, layer.out, layer.side);
  reference::batch_norm_statistics(layer.mean.data(), layer.var.data(), layer.z.data(), batch, layer.out, area);
  Doubles y(layer.z.size());
  reference::batch_norm_forward(y.data(), layer.z.data(), layer.gamma.wide.data(), layer.beta.wide.data(),
                                layer.mean.data(), layer.var.data(), batch, layer.out, area);
  reference::relu_max_pool2d_forward(layer.a.data(), layer.route.data(), y.data(), batch * layer.out, layer.side / 2);
  return layer;
}

using LayerForwards = std::span<const kernels::Variant<kernels::ConvBnReluPoolForward>>;
using LayerBackwards = std::span<const kernels::Variant<kernels::ConvBnReluPoolBackward>>;

OpCase layer_forward(const Ladder<kernels::ConvBnReluPoolForward>& ladder, bool first, std::int64_t batch,
                     cudaStream_t stream) {
  OpCase op;
  auto layer = layer_case(op, batch, first, stream);
  const auto [in, out, side] = std::array{layer.in, layer.out, layer.side};
  op.output.reserve(std::int64_t(layer.a.size()));
  op.decisions.reserve(std::int64_t(layer.a.size()));
  op.channels = out;
  op.area = side * side / 4;
  op.want = std::move(layer.a);
  op.bound = 5e-6;
  op.cost = kernels::conv_bn_relu_pool_cost(batch, in, out, side);
  float* kept = op.floats.emplace_back(kernels::conv_bn_relu_pool_kept_size(batch, out, side)).data();
  float* statistics = op.floats.emplace_back(2 * out).data();
  float* scratch = op.floats.emplace_back(kernels::conv_bn_relu_pool_scratch_size(batch, in, out, side)).data();
  add_rungs(op, ladder, op.output.data(), op.decisions.data(), kept, statistics, scratch, layer.x, layer.w, layer.bias,
            layer.gamma, layer.beta, batch, in, out, side);
  return op;
}

// dw, dgamma, dbeta and dx, if any, one after the other in the output. What a row needs of its forward is made here, by
// the forward row of the same place in the table; the decisions are the reference's.
OpCase layer_backward(LayerBackwards rows, LayerForwards forwards, bool first, std::int64_t batch,
                      cudaStream_t stream) {
  OpCase op;
  const auto layer = layer_case(op, batch, first, stream);
  const auto [in, out, side] = std::array{layer.in, layer.out, layer.side};
  const std::int64_t weights = layer.w.wide.size(), pixels = first ? 0 : std::int64_t(layer.x.wide.size());
  const auto pooled = std::int64_t(layer.a.size());
  const auto da = random_input(op, stream, pooled);
  op.output.reserve(weights + 2 * out + pixels);
  op.want.resize(weights + 2 * out + pixels);
  op.bound = 1e-5;
  op.cost = kernels::conv_bn_relu_pool_backward_cost(batch, in, out, side, !first);
  Doubles dy(layer.z.size()), dz(layer.z.size());
  double *dw = op.want.data(), *dgamma = dw + weights, *dbeta = dgamma + out, *dx = dbeta + out;
  reference::relu_max_pool2d_backward(dy.data(), da.wide.data(), layer.route.data(), batch * out, side / 2);
  reference::batch_norm_backward(dz.data(), dgamma, dbeta, dy.data(), layer.z.data(), layer.gamma.wide.data(),
                                 layer.mean.data(), layer.var.data(), batch, out, side * side);
  reference::conv2d_backward_weight(dw, dz.data(), layer.x.wide.data(), batch, in, out, side);
  if (!first) reference::conv2d_backward_data(dx, dz.data(), layer.w.wide.data(), batch, in, out, side);
  op.decisions.reserve(2 * pooled);  // and those of the forwards, which nobody reads
  cuda::upload(op.decisions.data(), layer.route, stream);
  float* a = op.floats.emplace_back(pooled).data();
  float* scratch = op.floats.emplace_back(kernels::conv_bn_relu_pool_scratch_size(batch, in, out, side)).data();
  float *got_dw = op.output.data(), *got_dgamma = got_dw + weights, *got_dbeta = got_dgamma + out;
  float* got_dx = first ? nullptr : got_dbeta + out;
  std::size_t place = 0;
  for (const auto& row : own_rungs(rows)) {
    float* kept = op.floats.emplace_back(kernels::conv_bn_relu_pool_kept_size(batch, out, side)).data();
    float* statistics = op.floats.emplace_back(2 * out).data();
    if (const auto forward = forwards[place++].run; row.absent.empty())
      forward(a, op.decisions.data() + pooled, kept, statistics, scratch, layer.x.data, layer.w.data, layer.bias.data,
              layer.gamma.data, layer.beta.data, batch, in, out, side, stream);
    add_rung(op, row, got_dx, got_dw, got_dgamma, got_dbeta, scratch, da, layer.x, kept, statistics,
             op.decisions.data(), layer.w, layer.gamma, batch, in, out, side);
  }
  return op;
}

OpCase conv_bn_relu_pool(std::int64_t batch, cudaStream_t stream) {
  return layer_forward(conv_bn_relu_pool_forward_ladder(), false, batch, stream);
}
OpCase conv_bn_relu_pool_backward(std::int64_t batch, cudaStream_t stream) {
  return layer_backward(kernels::conv_bn_relu_pool_backward_variants(), kernels::conv_bn_relu_pool_forward_variants(),
                        false, batch, stream);
}
OpCase conv_bn_relu_pool_layer1(std::int64_t batch, cudaStream_t stream) {
  return layer_forward(conv_bn_relu_pool_layer1_forward_ladder(), true, batch, stream);
}
OpCase conv_bn_relu_pool_layer1_backward(std::int64_t batch, cudaStream_t stream) {
  return layer_backward(kernels::conv_bn_relu_pool_layer1_backward_variants(),
                        kernels::conv_bn_relu_pool_layer1_forward_variants(), true, batch, stream);
}

OpCase log_softmax(std::int64_t batch, cudaStream_t stream) {
  const std::int64_t count = batch * kClasses;
  OpCase op = op_case(shape("(", batch, ",10)"), count, kernels::log_softmax_forward_cost(count), 1e-6);
  const auto x = random_input(op, stream, count);
  reference::log_softmax_forward(op.want.data(), x.wide.data(), batch, kClasses);
  add_rungs(op, log_softmax_forward_ladder(), op.output.data(), x, batch, kClasses);
  return op;
}

OpCase log_softmax_nll_backward(std::int64_t batch, cudaStream_t stream) {
  const std::int64_t count = batch * kClasses;
  OpCase op = op_case(shape("(", batch, ",10)"), count, kernels::log_softmax_nll_backward_cost(count), 1e-6);
  const auto log_p = random_input(op, stream, count);
  std::vector<std::uint8_t> labels(batch);
  for (std::int64_t b = 0; b < batch; ++b) labels[b] = std::uint8_t(b * 7 % kClasses);
  op.decisions.reserve(batch);
  cuda::upload(op.decisions.data(), labels, stream);
  reference::log_softmax_nll_backward(op.want.data(), log_p.wide.data(), labels.data(), 1, batch, kClasses);
  add_rungs(op, log_softmax_nll_backward_ladder(), op.output.data(), log_p, op.decisions.data(), 1, batch, kClasses);
  return op;
}

}  // namespace

double relative_error(std::span<const double> got, std::span<const double> want) {
  double squares = 0, norm = 0;
  for (std::size_t k = 0; k < want.size(); ++k) {
    squares += (got[k] - want[k]) * (got[k] - want[k]);
    norm += want[k] * want[k];
  }
  return squares == 0 ? 0 : std::sqrt(squares / norm);
}

std::vector<double> output_of(const OpCase& op, cudaStream_t stream) {
  const auto download = [&]<class T>(const T* from) {
    std::vector<T> values(op.output.size());
    cuda::download(values, from, stream);
    return std::vector<double>(values.begin(), values.end());
  };
  return op.counts ? download(reinterpret_cast<const int*>(op.output.data())) : download(op.output.data());
}

std::span<const OpEntry> op_entries() {
  static constexpr OpEntry kEntries[] = {
      {"linear", linear},
      {"linear_relu", linear_relu},
      {"linear_backward", linear_backward},
      {"linear_sparse", linear_sparse},
      {"conv2d", conv2d},
      {"conv2d_backward_data", conv2d_backward_data},
      {"conv2d_backward_weight", conv2d_backward_weight},
      {"relu", relu},
      {"relu_max_pool2d", relu_max_pool2d},
      {"relu_max_pool2d_backward", relu_max_pool2d_backward},
      {"batch_norm_statistics", batch_norm_statistics},
      {"batch_norm_forward", batch_norm_forward},
      {"batch_norm_backward", batch_norm_backward},
      {"conv_bn_relu_pool", conv_bn_relu_pool},
      {"conv_bn_relu_pool_backward", conv_bn_relu_pool_backward},
      {"conv_bn_relu_pool_layer1", conv_bn_relu_pool_layer1},
      {"conv_bn_relu_pool_layer1_backward", conv_bn_relu_pool_layer1_backward},
      {"log_softmax", log_softmax},
      {"log_softmax_nll_backward", log_softmax_nll_backward},
      {"transpose", transpose},
      {"row_sums", row_sums},
      {"histogram", histogram},
  };
  return kEntries;
}

}  // namespace mnist::bench
