// The tables of conv_bn_relu_pool, and the rows that are launches one after the other.
#include "kernels/conv_bn_relu_pool/conv_bn_relu_pool.h"

#include <algorithm>

#include "cuda/buffer.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/batch_norm/naive_ops.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/relu_max_pool2d/relu_max_pool2d.h"

namespace mnist::kernels {
namespace {

// What follows so many floats is aligned as they are, for loads of four.
constexpr std::int64_t aligned(std::int64_t count) { return (count + 3) / 4 * 4; }

void forward_separate(float* a, std::uint8_t* route, float* z, float* statistics, float* scratch, const float* x,
                      const float* w, const float* bias, const float* gamma, const float* beta, std::int64_t batch,
                      int in, int out, int side, cudaStream_t stream) {
  const int area = side * side;
  float *mean = statistics, *var = statistics + out, *y = scratch, *partial = y + aligned(batch * out * area);
  conv2d_forward_register_tiled(z, x, w, bias, batch, in, out, side, stream);
  batch_norm_statistics_groups(mean, var, partial, z, batch, out, area, stream);
  batch_norm_normalize_float4(y, z, gamma, beta, mean, var, batch, out, area, stream);
  relu_max_pool2d_forward_float2(a, route, y, batch * out, side / 2, stream);
}

void forward_apply_pool(float* a, std::uint8_t* route, float* z, float* statistics, float* scratch, const float* x,
                        const float* w, const float* bias, const float* gamma, const float* beta, std::int64_t batch,
                        int in, int out, int side, cudaStream_t stream) {
  float *mean = statistics, *var = statistics + out;
  conv2d_forward_register_tiled(z, x, w, bias, batch, in, out, side, stream);
  batch_norm_statistics_groups(mean, var, scratch, z, batch, out, side * side, stream);
  apply_pool(a, route, z, gamma, beta, mean, var, batch, out, side, stream);
}

void forward_conv_statistics(float* a, std::uint8_t* route, float* z, float* statistics, float* scratch, const float* x,
                             const float* w, const float* bias, const float* gamma, const float* beta,
                             std::int64_t batch, int in, int out, int side, cudaStream_t stream) {
  conv2d_with_statistics(z, scratch, x, w, bias, batch, in, out, side, stream);
  merge_apply_pool(a, route, statistics, statistics + out, z, scratch, gamma, beta, batch, out, side, stream);
}

void forward_moments(float* a, std::uint8_t* route, float* kept, float* statistics, float* scratch, const float* x,
                     const float* w, const float* bias, const float* gamma, const float* beta, std::int64_t batch,
                     int in, int out, int side, cudaStream_t stream) {
  MNIST_REQUIRE(in == 1, "conv_bn_relu_pool moments: " << in << " input channels, expected 1");
  auto* moments = reinterpret_cast<double*>(kept);
  auto* partial = reinterpret_cast<double*>(scratch);
  auto* finished = reinterpret_cast<unsigned*>(partial + pixel_moments_partial_size(batch));
  cuda::fill_bytes(finished, 0, 1, stream);
  pixel_moments(moments, partial, finished, x, batch, side, {statistics, statistics + out, w, bias, out}, stream);
  layer_of_one_channel(a, route, x, w, bias, gamma, beta, statistics, statistics + out, batch, out, side, stream);
}

void backward_separate(float* dx, float* dw, float* dgamma, float* dbeta, float* scratch, const float* da,
                       const float* x, const float* z, const float* statistics, const std::uint8_t* route,
                       const float* w, const float* gamma, std::int64_t batch, int in, int out, int side,
                       cudaStream_t stream) {
  const std::int64_t values = aligned(batch * out * side * side);
  float *dy = scratch, *dz = dy + values, *partial = dz + values;
  relu_max_pool2d_backward_float2(dy, da, route, batch * out, side / 2, stream);
  batch_norm_backward_float4(dz, dgamma, dbeta, partial, dy, z, gamma, statistics, statistics + out, batch, out,
                             side * side, stream);
  conv2d_backward_weight_register_tiled(dw, partial, dz, x, batch, in, out, side, stream);
  if (dx) conv2d_backward_data_register_tiled(dx, dz, w, batch, in, out, side, stream);
}

void backward_pooled_sums(float* dx, float* dw, float* dgamma, float* dbeta, float* scratch, const float* da,
                          const float* x, const float* z, const float* statistics, const std::uint8_t* route,
                          const float* w, const float* gamma, std::int64_t batch, int in, int out, int side,
                          cudaStream_t stream) {
  const float *mean = statistics, *var = statistics + out;
  float *dz = scratch, *partial = dz + aligned(batch * out * side * side);
  pooled_sums(dgamma, dbeta, da, z, route, mean, var, batch, out, side, stream);
  dz_of_pooled(dz, da, z, route, gamma, mean, var, dgamma, dbeta, batch, out, side, stream);
  conv2d_backward_weight_register_tiled(dw, partial, dz, x, batch, in, out, side, stream);
  if (dx) conv2d_backward_data_register_tiled(dx, dz, w, batch, in, out, side, stream);
}

void backward_gradient_in_conv(float* dx, float* dw, float* dgamma, float* dbeta, float* scratch, const float* da,
                               const float* x, const float* z, const float* statistics, const std::uint8_t* route,
                               const float* w, const float* gamma, std::int64_t batch, int in, int out, int side,
                               cudaStream_t stream) {
  const float *mean = statistics, *var = statistics + out;
  const PooledGradient of{da, z, route, gamma, mean, var, dgamma, dbeta};
  pooled_sums(dgamma, dbeta, da, z, route, mean, var, batch, out, side, stream);
  gradient_in_conv_weight(scratch, of, x, batch, in, out, side, stream);
  conv2d_add_chunks(dw, scratch, in, out, int(gradient_in_conv_chunks(batch)), stream);
  if (dx) gradient_in_conv_data(dx, of, w, batch, in, out, side, stream);
}

void backward_moments(float* dx, float* dw, float* dgamma, float* dbeta, float* scratch, const float* da,
                      const float* x, const float* kept, const float* statistics, const std::uint8_t* route,
                      const float* w, const float* gamma, std::int64_t batch, int in, int out, int side,
                      cudaStream_t stream) {
  MNIST_REQUIRE(in == 1 && !dx, "conv_bn_relu_pool moments: expected one input channel, and no gradient of it");
  layer_gradient_from_moments(dw, dgamma, dbeta, scratch, da, x, route, reinterpret_cast<const double*>(kept), w, gamma,
                              statistics + out, batch, out, side, stream);
}

constexpr Variant<ConvBnReluPoolForward> kForwardSeparate{
    "separate", forward_separate, "each op's fastest row, five launches: z is read twice, y written and read"};
constexpr Variant<ConvBnReluPoolForward> kForwardApplyPool{
    "apply_pool", forward_apply_pool, "batch norm, relu and pool in one launch of four: y stays in registers"};
constexpr Variant<ConvBnReluPoolBackward> kBackwardSeparate{
    "separate", backward_separate, "each op's fastest row, six launches: dy and dz are written and read twice"};
constexpr Variant<ConvBnReluPoolBackward> kBackwardPooledSums{
    "pooled_sums", backward_pooled_sums,
    "dgamma and dbeta from the pooled quarter, five launches: dy, mostly zeros, is never written"};

}  // namespace

std::span<const Variant<ConvBnReluPoolForward>> conv_bn_relu_pool_forward_variants() {
  static constexpr Variant<ConvBnReluPoolForward> kTable[] = {
      kForwardSeparate,
      kForwardApplyPool,
      {"conv_statistics", forward_conv_statistics,
       "two launches: the convolution sums what it has in registers, so z is read once"},
  };
  return kTable;
}

std::span<const Variant<ConvBnReluPoolBackward>> conv_bn_relu_pool_backward_variants() {
  static constexpr Variant<ConvBnReluPoolBackward> kTable[] = {
      kBackwardSeparate,
      kBackwardPooledSums,
      {"gradient_in_conv", backward_gradient_in_conv,
       "four launches: both gradients of the convolution make dz of z, da and route as they load it"},
  };
  return kTable;
}

std::span<const Variant<ConvBnReluPoolForward>> conv_bn_relu_pool_layer1_forward_variants() {
  static constexpr Variant<ConvBnReluPoolForward> kTable[] = {
      kForwardSeparate,
      kForwardApplyPool,
      {"moments", forward_moments,
       "the statistics from 54 sums of pixels, then the whole layer in one launch: z does not exist"},
  };
  return kTable;
}

std::span<const Variant<ConvBnReluPoolBackward>> conv_bn_relu_pool_layer1_backward_variants() {
  static constexpr Variant<ConvBnReluPoolBackward> kTable[] = {
      kBackwardSeparate,
      kBackwardPooledSums,
      {"moments", backward_moments,
       "sums of pixels under the routed positions, then a formula: neither z nor dz exists"},
  };
  return kTable;
}

std::int64_t conv_bn_relu_pool_kept_size(std::int64_t batch, int out, int side) {
  return std::max(batch * out * side * side, std::int64_t(kMoments) * 2);
}

std::int64_t conv_bn_relu_pool_scratch_size(std::int64_t batch, int in, int out, int side) {
  const std::int64_t chunks = gradient_in_conv_chunks(batch) * in * out * kTaps;
  const std::int64_t partial =
      std::max({naive::batch_norm_partial_size(batch, out), conv2d_backward_weight_partial_size(batch, in, out), chunks,
                2 * batch * out, batch * out * (kTaps + 1), 2 * pixel_moments_partial_size(batch) + 1});
  return 2 * aligned(batch * out * side * side) + partial;
}

}  // namespace mnist::kernels
