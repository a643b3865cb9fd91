// The ladders without a GPU: our own rows.
#include "bench/ladders.h"

#include "cuda/buffer.h"
#include "kernels/relu/relu.h"

namespace mnist::bench {

std::string absent_below(int) { return ""; }

Ladder<kernels::LinearForward> linear_forward_ladder() { return own_rungs(kernels::linear_forward_variants()); }
Ladder<kernels::LinearForward> linear_relu_forward_ladder() {
  Ladder<kernels::LinearForward> ladder;
  ladder.push_back({{"two_launches",
                     [](float* y, float* partial, const float* x, const float* w, const float* bias, std::int64_t batch,
                        int in, int out, cudaStream_t stream) {
                       const cuda::DeviceBuffer<float> scores(batch * out);
                       const cuda::DeviceBuffer<std::uint8_t> pass(batch * out);
                       kernels::linear_forward_prefetched(scores.data(), partial, x, w, bias, batch, in, out, stream);
                       kernels::relu_forward_float4(y, pass.data(), scores.data(), batch * out, stream);
                     },
                     "linear's prefetched, then relu's float4"}});
  return ladder;
}
Ladder<kernels::LinearBackward> linear_backward_ladder() { return own_rungs(kernels::linear_backward_variants()); }
Ladder<kernels::Conv2dForward> conv2d_forward_ladder() { return own_rungs(kernels::conv2d_forward_variants()); }
Ladder<kernels::Conv2dBackwardData> conv2d_backward_data_ladder() {
  return own_rungs(kernels::conv2d_backward_data_variants());
}
Ladder<kernels::Conv2dBackwardWeight> conv2d_backward_weight_ladder() {
  return own_rungs(kernels::conv2d_backward_weight_variants());
}
Ladder<kernels::ReluMaxPool2dForward> relu_max_pool2d_forward_ladder(int) {
  return own_rungs(kernels::relu_max_pool2d_forward_variants());
}
Ladder<kernels::ReluMaxPool2dBackward> relu_max_pool2d_backward_ladder(int, const float*) {
  return own_rungs(kernels::relu_max_pool2d_backward_variants());
}
Ladder<kernels::BatchNormForward> batch_norm_forward_ladder() {
  return own_rungs(kernels::batch_norm_forward_variants());
}
Ladder<kernels::BatchNormBackward> batch_norm_backward_ladder() {
  return own_rungs(kernels::batch_norm_backward_variants());
}
Ladder<kernels::ConvBnReluPoolForward> conv_bn_relu_pool_forward_ladder() {
  return own_rungs(kernels::conv_bn_relu_pool_forward_variants());
}
Ladder<kernels::ConvBnReluPoolForward> conv_bn_relu_pool_layer1_forward_ladder() {
  return own_rungs(kernels::conv_bn_relu_pool_layer1_forward_variants());
}
Ladder<kernels::LogSoftmaxForward> log_softmax_forward_ladder() {
  return own_rungs(kernels::log_softmax_forward_variants());
}
Ladder<kernels::LogSoftmaxNllBackward> log_softmax_nll_backward_ladder() {
  return own_rungs(kernels::log_softmax_nll_backward_variants());
}
Ladder<kernels::Histogram> histogram_ladder() { return own_rungs(kernels::histogram_variants()); }

}  // namespace mnist::bench
