// Engine `tiled`: kernels of our own, no library and nothing fused; of each op the fastest row of its ladder, in float.
//
// The step is naive's (unfused_engine.h), so the difference between the two is what tiles in shared memory, outputs in
// registers and wide loads bring. What has no better row than naive's is naive's.
#include <algorithm>
#include <array>
#include <functional>
#include <type_traits>

#include "engines/own_ops.h"
#include "engines/unfused_engine.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/batch_norm/naive_ops.h"
#include "kernels/chunks.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/cudnn_helpers.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/slices.h"
#include "kernels/log_softmax/log_softmax.h"
#include "kernels/relu/naive_ops.h"
#include "kernels/relu/relu.h"
#include "kernels/relu_max_pool2d/naive_ops.h"
#include "kernels/relu_max_pool2d/relu_max_pool2d.h"
#include "mnist/thresholds.h"

namespace mnist {
namespace {

constexpr std::int64_t kMostImages = 2048;  // beyond it nothing new happens

// A row of a ladder, unless the user has a launcher of that name.
template <auto kRow>
class Op {
 public:
  Op(const EngineOptions& options, const char* name) { take_own(run_, options, name); }
  template <class... Args>
  void operator()(Args... args) const {
    run_(args...);
  }

 private:
  std::function<std::remove_pointer_t<decltype(kRow)>> run_ = kRow;
};

// fc2 has few outputs of few terms: one launch is faster than a product in slices.
void linear_forward_by_size(float* y, float* partial, const float* x, const float* w, const float* bias,
                            std::int64_t batch, int in, int out, cudaStream_t stream) {
  const auto run = in == kFeatures ? kernels::linear_forward_prefetched : kernels::linear_forward_coalesced;
  run(y, partial, x, w, bias, batch, in, out, stream);
}

struct Ops {
  using T = float;
  const EngineOptions& options;
  // The registry's row has these names, too.
  Op<kernels::conv2d_forward_register_tiled> conv2d_forward{options, "conv2d_forward"};
  Op<kernels::conv2d_backward_data_register_tiled> conv2d_backward_data{options, "conv2d_backward_data"};
  Op<kernels::conv2d_backward_weight_register_tiled> conv2d_backward_weight{options, "conv2d_backward_weight"};
  Op<kernels::batch_norm_statistics_groups> batch_norm_statistics{options, "batch_norm_statistics"};
  Op<kernels::batch_norm_backward_float4> batch_norm_backward{options, "batch_norm_backward"};
  Op<kernels::relu_max_pool2d_forward_float2> relu_max_pool2d_forward{options, "relu_max_pool2d_forward"};
  Op<kernels::relu_max_pool2d_backward_float2> relu_max_pool2d_backward{options, "relu_max_pool2d_backward"};
  Op<kernels::relu_forward_float4> relu_forward{options, "relu_forward"};
  Op<kernels::log_softmax_forward_warp> log_softmax_forward{options, "log_softmax_forward"};
  Op<kernels::log_softmax_nll_backward_float4> log_softmax_nll_backward{options, "log_softmax_nll_backward"};
  Op<kernels::linear_backward_prefetched> linear_backward{options, "linear_backward"};
  Op<linear_forward_by_size> linear_forward{options, "linear_forward"};

  static constexpr auto batch_norm_forward = kernels::batch_norm_normalize_float4;
  static constexpr auto relu_max_pool2d_forward_routed = kernels::naive::relu_max_pool2d_forward_routed<float>;
  static constexpr auto relu_backward = kernels::naive::relu_backward<float>;

  static void normalize_forward(float* x, const std::uint8_t* images, std::int64_t count, cudaStream_t stream) {
    kernels::normalize_forward(x, images, count, stream);
  }

  static std::int64_t partial_size(std::int64_t batch) {
    return kernels::most_of_batches(batch, [](std::int64_t b) {
      return std::max({kernels::conv2d_backward_weight_partial_size(b, kConv1Channels, kConv2Channels),
                       kernels::naive::batch_norm_partial_size(b, kConv2Channels),
                       kernels::linear_partial_size(b, kFeatures, kHidden),
                       kernels::linear_partial_size(b, kHidden, kClasses),
                       kernels::linear_backward_partial_size(b, kFeatures, kHidden),
                       kernels::linear_backward_partial_size(b, kHidden, kClasses)});
    });
  }

  static std::vector<std::int64_t> batch_thresholds() {
    return thresholds_of(kMostImages, [](std::int64_t batch) {
      const auto chunks = kernels::naive::chunk_count(batch);
      const auto slices = [&](int in, int out) {
        const auto [count, depth] = kernels::linear_slices(kernels::kLinearProductTile, out, in, batch);
        return rounds(count, 1) + rounds(depth, kernels::kLinearSliceUnit);
      };
      const auto images_a_chunk = [&](int in, int out, int side) {
        return rounds(batch, kernels::conv2d_backward_weight_chunks(batch, in, out, side));
      };
      return std::array<std::int64_t, 8>{rounds(chunks, 1),
                                         chunks == kernels::naive::kMaxChunks,
                                         batch > chunks * kernels::naive::kLeastImagesPerChunk,
                                         rounds(batch, kernels::kLinearProductTile.rows),
                                         slices(kFeatures, kHidden),
                                         slices(kHidden, kClasses),
                                         images_a_chunk(1, kConv1Channels, kImageSide),
                                         images_a_chunk(kConv1Channels, kConv2Channels, kPool1Side)};
    });
  }
};

}  // namespace

std::unique_ptr<Engine> create_tiled(const EngineInfo& info, const EngineOptions& options) {
  return create_on_device<UnfusedEngine<Ops>>(info, options);
}

}  // namespace mnist
