// Engine `naive`: the reference's ops as CUDA kernels, one launch an op and one thread an output, in float or double.
//
// The step stands in unfused_engine.h. What it costs and why is in the comments above the launchers, in the naive_ops.h
// of each op. In double, and able to follow a routing as the reference is, it is the oracle of the other engines where
// the reference would take minutes.
#include <algorithm>
#include <array>

#include "engines/unfused_engine.h"
#include "kernels/batch_norm/naive_ops.h"
#include "kernels/chunks.h"
#include "kernels/conv2d/naive_ops.h"
#include "kernels/linear/naive_ops.h"
#include "kernels/log_softmax/naive_ops.h"
#include "kernels/normalize.h"
#include "kernels/relu/naive_ops.h"
#include "kernels/relu_max_pool2d/naive_ops.h"
#include "mnist/thresholds.h"

namespace mnist {
namespace {

template <class Type>
struct Ops {
  using T = Type;
  explicit Ops(const EngineOptions&) {}

  static constexpr auto normalize_forward = kernels::naive::normalize_forward<T>;
  static constexpr auto conv2d_forward = kernels::naive::conv2d_forward<T>;
  static constexpr auto conv2d_backward_data = kernels::naive::conv2d_backward_data<T>;
  static constexpr auto conv2d_backward_weight = kernels::naive::conv2d_backward_weight<T>;
  static constexpr auto batch_norm_statistics = kernels::naive::batch_norm_statistics<T>;
  static constexpr auto batch_norm_forward = kernels::naive::batch_norm_forward<T>;
  static constexpr auto batch_norm_backward = kernels::naive::batch_norm_backward<T>;
  static constexpr auto relu_max_pool2d_forward = kernels::naive::relu_max_pool2d_forward<T>;
  static constexpr auto relu_max_pool2d_forward_routed = kernels::naive::relu_max_pool2d_forward_routed<T>;
  static constexpr auto relu_max_pool2d_backward = kernels::naive::relu_max_pool2d_backward<T>;
  static constexpr auto relu_forward = kernels::naive::relu_forward<T>;
  static constexpr auto relu_backward = kernels::naive::relu_backward<T>;
  static constexpr auto log_softmax_forward = kernels::naive::log_softmax_forward<T>;
  static constexpr auto log_softmax_nll_backward = kernels::naive::log_softmax_nll_backward<T>;
  static constexpr auto linear_forward = kernels::naive::linear_forward_row<T>;
  static constexpr auto linear_backward = kernels::naive::linear_backward_row<T>;

  static std::int64_t partial_size(std::int64_t batch) {
    return std::max(kernels::naive::conv2d_partial_size(batch, kConv1Channels, kConv2Channels),
                    kernels::naive::batch_norm_partial_size(batch, kConv2Channels));
  }

  static std::vector<std::int64_t> batch_thresholds() {
    using namespace kernels::naive;
    return thresholds_of(2 * kMaxChunks * kLeastImagesPerChunk, [](std::int64_t batch) {
      const auto chunks = chunk_count(batch);
      return std::array<std::int64_t, 3>{rounds(chunks, 1), chunks == kMaxChunks,
                                         batch > chunks * kLeastImagesPerChunk};
    });
  }
};

}  // namespace

std::unique_ptr<Engine> create_naive(const EngineInfo& info, const EngineOptions& options) {
  if (options.precision == Precision::kFp64) return create_on_device<UnfusedEngine<Ops<double>>>(info, options);
  return create_on_device<UnfusedEngine<Ops<float>>>(info, options);
}

}  // namespace mnist
