// The tables of conv_bn_relu_pool.
#include "kernels/conv_bn_relu_pool/conv_bn_relu_pool.h"

#include <algorithm>

#include "cuda/architectures.h"
#include "cuda/capability.h"
#include "kernels/batch_norm/naive_ops.h"
#include "kernels/conv2d/conv2d.h"

namespace mnist::kernels {

std::span<const Variant<ConvBnReluPoolForward>> conv_bn_relu_pool_forward_variants() {
  static constexpr Variant<ConvBnReluPoolForward> kTable[] = {
      {"separate", conv_bn_relu_pool_forward_separate,
       "each op's fastest row, five launches: z is written and read twice, y written and read"},
      // y stays in registers: 8 bytes less per value of z, and a launch.
      {"apply_pool", conv_bn_relu_pool_forward_apply_pool,
       "batch norm, relu and pool in one launch of four: y stays in registers"},
      // z is not read for the statistics, which the convolution makes of its registers: 4 bytes less, and two launches.
      {"conv_statistics", conv_bn_relu_pool_forward_conv_statistics,
       "two launches: the convolution sums what it has in registers, so z is read once"},
      // One instruction of a warp makes 1,024 products instead of 32; the sums are still in registers.
      {"tensor_cores", MNIST_IF_SM80(conv_bn_relu_pool_forward_tensor_cores),
       "conv_statistics by mma.sync in tf32, which sums what its accumulators have: 0.59x conv_statistics's time and "
       "1.2x that of cuDNN's graphs at B=256 on an H200",
       1e-3, Unit::kTensorTf32, cuda::kTensorCapability},
  };
  return kTable;
}

std::span<const Variant<ConvBnReluPoolBackward>> conv_bn_relu_pool_backward_variants() {
  static constexpr Variant<ConvBnReluPoolBackward> kTable[] = {
      {"separate", conv_bn_relu_pool_backward_separate,
       "each op's fastest row, six launches: dy and dz are written and read twice"},
      // dy, three quarters of it zeros, is not written, and the sums read a quarter: 15 bytes less per value of z.
      {"pooled_sums", conv_bn_relu_pool_backward_pooled_sums,
       "dgamma and dbeta from the pooled quarter, five launches: dy, mostly zeros, is never written; 1.0x separate's "
       "time at B=256 on an H200"},
      // dz is not written: two multiply-adds make it of what is loaded in its place.
      {"gradient_in_conv", conv_bn_relu_pool_backward_gradient_in_conv,
       "four launches: both gradients of the convolution make dz of z, da and route as they load it"},
      // One instruction of a warp makes 1,024 products instead of 32; dz is rounded to tf32 where it is made.
      {"tensor_cores", MNIST_IF_SM80(conv_bn_relu_pool_backward_tensor_cores),
       "gradient_in_conv by mma.sync in tf32: 0.52x gradient_in_conv's time at B=256 on an H200", 1e-3,
       Unit::kTensorTf32, cuda::kTensorCapability},
  };
  return kTable;
}

std::span<const Variant<ConvBnReluPoolForward>> conv_bn_relu_pool_layer1_forward_variants() {
  static constexpr Variant<ConvBnReluPoolForward> kTable[] = {
      {"separate", conv_bn_relu_pool_forward_separate,
       "each op's fastest row, five launches: z is written and read twice, y written and read"},
      // y stays in registers: 8 bytes less per value of z, and a launch.
      {"apply_pool", conv_bn_relu_pool_forward_apply_pool,
       "batch norm, relu and pool in one launch of four: y stays in registers"},
      // z is neither written nor read: its statistics follow from sums of pixels, and one kernel makes a of the pixels.
      {"moments", conv_bn_relu_pool_forward_moments,
       "the statistics from 54 sums of pixels, then the whole layer in one launch: z does not exist"},
  };
  return kTable;
}

std::span<const Variant<ConvBnReluPoolBackward>> conv_bn_relu_pool_layer1_backward_variants() {
  static constexpr Variant<ConvBnReluPoolBackward> kTable[] = {
      {"separate", conv_bn_relu_pool_backward_separate,
       "each op's fastest row, five launches: dy and dz are written and read twice"},
      // It is not here: dy is not written, 15 bytes less per value of z, but a block per channel makes only 32 blocks.
      {"pooled_sums", conv_bn_relu_pool_backward_pooled_sums,
       "dgamma and dbeta from the pooled quarter, four launches: dy, mostly zeros, is never written; 1.3x separate's "
       "time at B=256 on an H200"},
      // Neither z nor dz exists: ten sums per channel over the windows, then a formula.
      {"moments", conv_bn_relu_pool_backward_moments,
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
  return 2 * aligned_floats(batch * out * side * side) + partial;
}

}  // namespace mnist::kernels
