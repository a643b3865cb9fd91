// conv_bn_relu_pool, conv_statistics: the convolution's epilogue sums what it has in registers; z is not read for it.
#include "cuda/check.h"
#include "kernels/conv_bn_relu_pool/column_conv.cuh"
#include "kernels/conv_bn_relu_pool/conv_bn_relu_pool.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

// blockIdx.x = b, blockIdx.y = which channels. of_images: mean[o,b], then sum of the squared distances from it[o,b].
template <int kEach, int kGroups>
__global__ void __launch_bounds__(32 * kGroups, 2)
    conv_statistics_kernel(float* __restrict__ z, float* __restrict__ of_images, const float* __restrict__ x,
                           const float* __restrict__ w, const float* __restrict__ bias, int in, int out) {
  using Conv = ColumnConv<kEach, kGroups>;
  __shared__ __align__(16) float shared[Conv::kSharedFloats];
  const std::int64_t b = blockIdx.x, batch = gridDim.x;
  const int first = int(blockIdx.y) * Conv::kChannels, o0 = first + int(threadIdx.y) * kEach;
  float sums[kEach][kConvRows] = {};
  Conv::template run<false>(sums, shared, PlainInput{x + b * in * kConvArea}, w, in, out, first);

#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const float constant = o0 + k < out ? bias[o0 + k] : 0;
#pragma unroll
    for (int r = 0; r < kConvRows; ++r) sums[k][r] += constant;
  }
  Conv::for_each_output([&](int k, int r, int position) {
    if (o0 + k < out) z[(b * out + o0 + k) * kConvArea + position] = sums[k][r];
  });
  if (!of_images) return;
  // Two passes over registers cost nothing and lose no digits: first the mean of the image, then the squares around it.
  const bool active = int(threadIdx.x) < kConvLanes;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    float sum = 0, squares = 0;
#pragma unroll
    for (int r = 0; r < kConvRows; ++r) sum += active ? sums[k][r] : 0;
    const float mean = warp_total(sum) / kConvArea;
#pragma unroll
    for (int r = 0; r < kConvRows; ++r) squares += active ? (sums[k][r] - mean) * (sums[k][r] - mean) : 0;
    squares = warp_total(squares);
    if (int(threadIdx.x) == k && o0 + k < out) {
      of_images[(o0 + k) * batch + b] = mean;
      of_images[(out + o0 + k) * batch + b] = squares;
    }
  }
}

template <int kEach, int kGroups>
void launch(float* z, float* of_images, const float* x, const float* w, const float* bias, std::int64_t batch, int in,
            int out, cudaStream_t stream) {
  const dim3 grid(unsigned(batch), unsigned(ceil_div(out, kEach * kGroups))), block(32, kGroups);
  conv_statistics_kernel<kEach, kGroups><<<grid, block, 0, stream>>>(z, of_images, x, w, bias, in, out);
  MNIST_CHECK_LAUNCH();
}

}  // namespace

void conv2d_with_statistics(float* z, float* of_images, const float* x, const float* w, const float* bias,
                            std::int64_t batch, int in, int out, int side, cudaStream_t stream) {
  require_conv_side("conv2d_with_statistics", side);
  const auto run = batch <= kSmallBatch ? launch<4, 8> : launch<8, 8>;
  run(z, of_images, x, w, bias, batch, in, out, stream);
}

void conv_bn_relu_pool_forward_conv_statistics(float* a, std::uint8_t* route, float* z, float* statistics,
                                               float* scratch, const float* x, const float* w, const float* bias,
                                               const float* gamma, const float* beta, std::int64_t batch, int in,
                                               int out, int side, cudaStream_t stream) {
  conv2d_with_statistics(z, scratch, x, w, bias, batch, in, out, side, stream);
  merge_apply_pool(a, route, statistics, statistics + out, z, scratch, gamma, beta, batch, out, side, stream);
}

}  // namespace mnist::kernels
