// The ops of the benchmark. Inputs are random; the reference answers for the first images only, or it would take
// longer than everything that is timed.
#include "bench/op_cases.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "cpu/reference_ops.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/linear/linear.h"
#include "kernels/log_softmax/log_softmax.h"
#include "kernels/naive/batch_norm.h"
#include "kernels/relu/relu.h"
#include "kernels/relu_max_pool2d/relu_max_pool2d.h"
#include "mnist/model.h"

namespace mnist::bench {
namespace {

using Doubles = std::vector<double>;

constexpr std::int64_t kChecked = 32;  // images that the reference answers for
constexpr int kArea1 = kImagePixels, kArea2 = kPool1Side * kPool1Side;

std::string shape(const char* before, std::int64_t batch, const char* after) {
  std::string text = before;
  text += std::to_string(batch);
  text += after;
  return text;
}

// Normal numbers in the GPU's memory, and their first `checked` in float64.
struct Input {
  const float* data;
  Doubles checked;
};

Input random_input(OpCase& op, cudaStream_t stream, std::int64_t count, std::int64_t checked, double scale = 1) {
  std::mt19937 rng(unsigned(op.floats.size()) + 1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) value = float(scale) * normal(rng);
  auto& buffer = op.floats.emplace_back(count);
  cuda::upload(buffer.data(), values, stream);
  return {buffer.data(), Doubles(values.begin(), values.begin() + checked)};
}

// Each row of `table` with its arguments bound by `bind`.
template <class Table, class Bind>
void add_variants(OpCase& op, const Table& table, Bind bind) {
  for (const auto& row : table) op.variants.push_back({row.name, row.why, row.own_error, row.unit, bind(row.run)});
}

OpCase linear(std::int64_t batch, cudaStream_t stream) {
  OpCase op{shape("fc1: (", batch, ",3136) to 128")};
  const auto checked = std::min(batch, kChecked);
  const auto x = random_input(op, stream, batch * kFeatures, checked * kFeatures);
  const auto w = random_input(op, stream, kHidden * kFeatures, kHidden * kFeatures, 0.02);
  const auto bias = random_input(op, stream, kHidden, kHidden);
  op.output.reserve(batch * kHidden);
  op.want.resize(checked * kHidden);
  op.bound = 1e-5;
  op.cost = kernels::linear_cost(batch, kFeatures, kHidden);
  reference::linear_forward(op.want.data(), x.checked.data(), w.checked.data(), bias.checked.data(), checked, kFeatures,
                            kHidden);
  add_variants(op, kernels::linear_forward_variants(), [&](auto run) {
    return [=, y = op.output.data(), x = x.data, w = w.data, bias = bias.data](cudaStream_t stream) {
      run(y, x, w, bias, batch, kFeatures, kHidden, stream);
    };
  });
  return op;
}

OpCase conv2d(std::int64_t batch, cudaStream_t stream) {
  OpCase op{shape("conv2: (", batch, ",32,14,14) to 64")};
  const auto checked = std::min(batch, kChecked);
  const auto x = random_input(op, stream, batch * kPool1Size, checked * kPool1Size);
  const std::int64_t weights = std::int64_t(kConv1Channels) * kConv2Channels * kTaps;
  const auto w = random_input(op, stream, weights, weights, 0.06);
  const auto bias = random_input(op, stream, kConv2Channels, kConv2Channels);
  op.output.reserve(batch * kConv2Channels * kArea2);
  op.want.resize(checked * kConv2Channels * kArea2);
  op.bound = 5e-6;
  op.cost = kernels::conv2d_cost(batch, kConv1Channels, kConv2Channels, kPool1Side);
  reference::conv2d_forward(op.want.data(), x.checked.data(), w.checked.data(), bias.checked.data(), checked,
                            kConv1Channels, kConv2Channels, kPool1Side);
  add_variants(op, kernels::conv2d_forward_variants(), [&](auto run) {
    return [=, y = op.output.data(), x = x.data, w = w.data, bias = bias.data](cudaStream_t stream) {
      run(y, x, w, bias, batch, kConv1Channels, kConv2Channels, kPool1Side, stream);
    };
  });
  return op;
}

OpCase relu(std::int64_t batch, cudaStream_t stream) {
  OpCase op{shape("(", batch, ",64,14,14)")};
  const std::int64_t of_image = std::int64_t(kConv2Channels) * kArea2, count = batch * of_image;
  const auto x = random_input(op, stream, count, std::min(batch, kChecked) * of_image);
  op.output.reserve(count);
  op.decisions.reserve(count);
  op.want.resize(x.checked.size());
  op.cost = kernels::relu_cost(count);
  std::vector<std::uint8_t> pass(op.want.size());
  reference::relu_forward(op.want.data(), pass.data(), x.checked.data(), std::int64_t(op.want.size()), true);
  add_variants(op, kernels::relu_forward_variants(), [&](auto run) {
    return [=, y = op.output.data(), pass = op.decisions.data(), x = x.data](cudaStream_t stream) {
      run(y, pass, x, count, stream);
    };
  });
  return op;
}

OpCase relu_max_pool2d(std::int64_t batch, cudaStream_t stream) {
  OpCase op{shape("layer 1: (", batch, ",32,28,28)")};
  const std::int64_t planes = batch * kConv1Channels, checked = std::min(batch, kChecked);
  const auto x = random_input(op, stream, planes * kArea1, checked * kConv1Channels * kArea1);
  op.output.reserve(batch * kPool1Size);
  op.decisions.reserve(batch * kPool1Size);
  op.want.resize(checked * kPool1Size);
  op.cost = kernels::relu_max_pool2d_forward_cost(batch * kPool1Size);
  std::vector<std::uint8_t> route(op.want.size());
  reference::relu_max_pool2d_forward(op.want.data(), route.data(), x.checked.data(), checked * kConv1Channels,
                                     kPool1Side);
  add_variants(op, kernels::relu_max_pool2d_forward_variants(), [&](auto run) {
    return [=, y = op.output.data(), route = op.decisions.data(), x = x.data](cudaStream_t stream) {
      run(y, route, x, planes, kPool1Side, stream);
    };
  });
  return op;
}

// Mean and variance side by side in the output; the reference has to see every image.
OpCase batch_norm_statistics(std::int64_t batch, cudaStream_t stream) {
  OpCase op{shape("layer 1: (", batch, ",32,28,28)")};
  const std::int64_t count = batch * kConv1Channels * kArea1;
  const auto x = random_input(op, stream, count, count);
  op.output.reserve(2 * kConv1Channels);
  op.want.resize(2 * kConv1Channels);
  op.bound = 1e-6;
  op.cost = kernels::batch_norm_statistics_cost(count);
  reference::batch_norm_statistics(op.want.data(), op.want.data() + kConv1Channels, x.checked.data(), batch,
                                   kConv1Channels, kArea1);
  float* partial = op.floats.emplace_back(kernels::naive::batch_norm_partial_size(batch, kConv1Channels)).data();
  add_variants(op, kernels::batch_norm_statistics_variants(), [&](auto run) {
    return [=, mean = op.output.data(), x = x.data](cudaStream_t stream) {
      run(mean, mean + kConv1Channels, partial, x, batch, kConv1Channels, kArea1, stream);
    };
  });
  return op;
}

OpCase log_softmax(std::int64_t batch, cudaStream_t stream) {
  OpCase op{shape("(", batch, ",10)")};
  const auto x = random_input(op, stream, batch * kClasses, batch * kClasses);
  op.output.reserve(batch * kClasses);
  op.want.resize(batch * kClasses);
  op.bound = 1e-6;
  op.cost = kernels::log_softmax_forward_cost(batch * kClasses);
  reference::log_softmax_forward(op.want.data(), x.checked.data(), batch, kClasses);
  add_variants(op, kernels::log_softmax_forward_variants(), [&](auto run) {
    return [=, log_p = op.output.data(), x = x.data](cudaStream_t stream) { run(log_p, x, batch, kClasses, stream); };
  });
  return op;
}

}  // namespace

std::span<const OpEntry> op_entries() {
  static constexpr OpEntry kEntries[] = {
      {"linear", linear},
      {"conv2d", conv2d},
      {"relu", relu},
      {"relu_max_pool2d", relu_max_pool2d},
      {"batch_norm_statistics", batch_norm_statistics},
      {"log_softmax", log_softmax},
  };
  return kEntries;
}

}  // namespace mnist::bench
