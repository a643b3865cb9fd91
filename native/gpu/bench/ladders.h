// The ladders: the rows of an op's table in kernels/, and the same function from NVIDIA's libraries behind them.
//
// The benchmark of the ops and the tests iterate these. A library's row that cannot run here stays and says why.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/batch_norm/batch_norm.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/conv_bn_relu_pool/conv_bn_relu_pool.h"
#include "kernels/histogram/histogram.h"
#include "kernels/linear/linear.h"
#include "kernels/log_softmax/log_softmax.h"
#include "kernels/relu_max_pool2d/relu_max_pool2d.h"
#include "kernels/variant.h"

namespace mnist::bench {

// `Function`: the pointer type of the op's table. A row with memory of its own keeps it for the sizes of its last call,
// and is not for two threads at a time; its first call with other sizes allocates.
template <class Function>
struct Rung : kernels::Variant<std::function<std::remove_pointer_t<Function>>> {
  bool library = false;        // nothing in it is ours
  bool channels_last = false;  // takes and gives (.., position, channel) where the op has (.., channel, position)
  std::string absent = {};     // why it cannot run here; empty if it can
  bool optional = false;       // a build may do without it, and then no test misses it
};
template <class Function>
using Ladder = std::vector<Rung<Function>>;

// Why the selected GPU runs no code of ours that needs `capability`; empty if it does.
std::string absent_below(int capability);

// A table as it is, for an op that no library has.
template <class Function>
Ladder<Function> own_rungs(std::span<const kernels::Variant<Function>> table) {
  Ladder<Function> ladder;
  for (const auto& row : table) {
    Rung<Function> rung{{row.name, row.run, row.why, row.own_error, row.unit, row.needs}};
    rung.absent = absent_below(row.needs);
    ladder.push_back(std::move(rung));
  }
  return ladder;
}

Ladder<kernels::LinearForward> linear_forward_ladder();
// linear forward and relu of what it gives: by two launches, or where the product is stored.
Ladder<kernels::LinearForward> linear_relu_forward_ladder();
Ladder<kernels::LinearBackward> linear_backward_ladder();
Ladder<kernels::Conv2dForward> conv2d_forward_ladder();
Ladder<kernels::Conv2dBackwardData> conv2d_backward_data_ladder();
Ladder<kernels::Conv2dBackwardWeight> conv2d_backward_weight_ladder();
// Planes of `channels` channels, which cuDNN has to know. Its decisions are its own: only y is comparable.
Ladder<kernels::ReluMaxPool2dForward> relu_max_pool2d_forward_ladder(int channels);
// `x` is what `route` was made of, channels last: cuDNN's own decisions are made of it again, once for a size.
Ladder<kernels::ReluMaxPool2dBackward> relu_max_pool2d_backward_ladder(int channels, const float* x);
Ladder<kernels::BatchNormForward> batch_norm_forward_ladder();
Ladder<kernels::BatchNormBackward> batch_norm_backward_ladder();
// cuDNN's decisions are its own: only a is comparable. Its statistics are what its backward reads: the mean of z
// without bias, and 1 / sigma.
Ladder<kernels::ConvBnReluPoolForward> conv_bn_relu_pool_forward_ladder();
Ladder<kernels::ConvBnReluPoolForward> conv_bn_relu_pool_layer1_forward_ladder();
Ladder<kernels::LogSoftmaxForward> log_softmax_forward_ladder();
Ladder<kernels::LogSoftmaxNllBackward> log_softmax_nll_backward_ladder();
Ladder<kernels::Histogram> histogram_ladder();

// (outer, rows, columns) -> (outer, columns, rows): an array of the op for a row with channels last with rows =
// channels, and back with rows = positions.
template <class T>
std::vector<T> swapped(const std::vector<T>& values, std::int64_t rows, std::int64_t columns) {
  std::vector<T> result(values.size());
  const std::int64_t outer = std::int64_t(values.size()) / (rows * columns);
  for (std::int64_t k = 0; k < outer; ++k)
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        result[(k * columns + c) * rows + r] = values[(k * rows + r) * columns + c];
  return result;
}

}  // namespace mnist::bench
