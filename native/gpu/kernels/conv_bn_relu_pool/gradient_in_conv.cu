// conv_bn_relu_pool, gradient_in_conv: both gradients of the convolution make dz as they load it; it is never stored.
#include <algorithm>

#include "cuda/check.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/conv_bn_relu_pool/column_conv.cuh"
#include "kernels/conv_bn_relu_pool/conv_bn_relu_pool.h"
#include "kernels/conv_bn_relu_pool/gradient.cuh"
#include "kernels/conv_bn_relu_pool/moments.cuh"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

// blockIdx.x = b, blockIdx.y = which input channels. dx[b,i] = sum over o of dz[b,o] * the turned w[o,i]. With kToTaps
// dx stays in the block: it goes through pool and relu of layer 1 and becomes its sums of routed pixels (moments.cuh).
template <int kEach, int kGroups, bool kToTaps>
__global__ void __launch_bounds__(32 * kGroups, kEach == 8 ? 3 : 2)
    backward_data_kernel(float* __restrict__ dx, const float* __restrict__ da, const float* __restrict__ z,
                         const std::uint8_t* __restrict__ route, const float* __restrict__ w, BatchNormGradient by,
                         int in, int out, Layer1Taps layer1) {
  using Conv = ColumnConv<kEach, kGroups>;
  constexpr int kTapsFloats = Conv::kChannels * kConvArea + kLayer1Plane;
  constexpr int kFloats = kToTaps && kTapsFloats > Conv::kSharedFloats ? kTapsFloats : Conv::kSharedFloats;
  __shared__ __align__(16) float shared[kFloats];
  __shared__ ChannelGradient channels[kMostGradientChannels];
  const std::int64_t b = blockIdx.x;
  const int first = int(blockIdx.y) * Conv::kChannels, t = int(threadIdx.y) * 32 + int(threadIdx.x);
  const float scale = kToTaps ? scale_of_image(b) : 1;
  for (int o = t; o < out; o += Conv::kThreads) channels[o] = channel_gradient(by, o, scale);
  __syncthreads();  // the constants of all channels are there
  float sums[kEach][kConvRows] = {};
  const GradientInput input{z + b * out * kConvArea, da + b * out * kConvWindows, route + b * out * kConvWindows,
                            channels};
  Conv::template run<true>(sums, shared, input, w, out, in, first);

  if constexpr (!kToTaps) {
    Conv::for_each_output([&](int k, int r, int position) {
      const int i = first + int(threadIdx.y) * kEach + k;
      if (i < in) dx[(b * in + i) * kConvArea + position] = sums[k][r];
    });
  } else {
    float *da1 = shared, *plane = shared + Conv::kChannels * kConvArea;
    __syncthreads();  // everyone is done with the last stage
    Conv::for_each_output(
        [&](int k, int r, int position) { da1[(int(threadIdx.y) * kEach + k) * kConvArea + position] = sums[k][r]; });
    load_plane<Conv::kThreads>(plane, ByteImages{layer1.images}, b, kImageSide, t);
    __syncthreads();                                          // da1 and the image are there
    constexpr int kLanes = Conv::kThreads / Conv::kChannels;  // neighbours that share a channel
    const int channel = t / kLanes, c = first + channel;
    float taps[kRoutedTaps] = {};
    if (c < in)
      add_routed_taps(taps, da1 + channel * kConvArea, layer1.route + (b * in + c) * kConvArea, plane, kPool1Side,
                      t % kLanes, kLanes);
    for (float& tap : taps) tap /= scale;  // da1 is times scale
    store_routed_taps<kLanes>(layer1.taps, taps, b * in + c, c < in, t % kLanes);
  }
}

template <int kEach, int kGroups, bool kToTaps>
void launch_data(float* dx, const float* da, const float* z, const std::uint8_t* route, const float* w,
                 const BatchNormGradient& by, std::int64_t batch, int in, int out, const Layer1Taps& layer1,
                 cudaStream_t stream) {
  const dim3 grid(unsigned(batch), unsigned(ceil_div(in, kEach * kGroups))), block(32, kGroups);
  backward_data_kernel<kEach, kGroups, kToTaps><<<grid, block, 0, stream>>>(dx, da, z, route, w, by, in, out, layer1);
  MNIST_CHECK_LAUNCH();
}

// ---- by weight: conv2d's register_tiled with dz made as it is loaded, and two warps for each 8 output channels ----
constexpr int kOutputs = 8;              // of a thread
constexpr int kGroups = 4, kHalves = 2;  // warps of a block: which 8 outputs, and which half of the columns
constexpr int kThreads = 32 * kGroups * kHalves;
constexpr int kBlockOutputs = kGroups * kOutputs, kInputs = 32;  // of a block; a lane has one input channel
constexpr int kStrip = kConvRows * kConvSide;                    // positions of dz in shared memory at a time
constexpr int kStripPitch = kBlockOutputs + 4;                   // output channels side by side
constexpr int kPlane = (kConvRows + 2) * kConvPitch, kPlanePitch = kPlane | 1;  // of x; planes an odd distance apart
constexpr int kSums = kTaps * kOutputs;                                         // of a thread
constexpr std::int64_t kMostChunks = 128;  // of images: 9 MiB of partial sums for conv2
static_assert(kGroups * kSums * 32 >= kStrip * kStripPitch + kInputs * kPlanePitch);

// partial[chunk,tap,o,i] = sum over the chunk's images and over p,q of dz[b,o,p,q] * x[b,i,p+u-1,q+v-1].
// blockIdx.x = chunk, blockIdx.y = which 32 outputs, blockIdx.z = which 32 inputs.
__global__ void __launch_bounds__(kThreads, 2)
    backward_weight_kernel(float* __restrict__ partial, const float* __restrict__ da, const float* __restrict__ z,
                           const std::uint8_t* __restrict__ route, const float* __restrict__ x, BatchNormGradient by,
                           std::int64_t batch, int in, int out) {
  __shared__ __align__(16) float shared[kGroups * kSums * 32];
  __shared__ ChannelGradient channels[kBlockOutputs];
  float *dz = shared, *planes = shared + kStrip * kStripPitch;  // [position][output], [input][row][column]
  const int t = int(threadIdx.x), lane = t % 32, group = t / 32 % kGroups, half = t / 32 / kGroups;
  const int o0 = int(blockIdx.y) * kBlockOutputs, i0 = int(blockIdx.z) * kInputs;
  const std::int64_t begin = blockIdx.x * batch / gridDim.x, end = (blockIdx.x + 1) * batch / gridDim.x;
  if (t < kBlockOutputs && o0 + t < out) channels[t] = channel_gradient(by, o0 + t);
  __syncthreads();  // the constants of the block's channels are there
  float sums[kTaps][kOutputs] = {};

  for (std::int64_t b = begin; b < end; ++b) {
    const float *image = x + (b * in + i0) * kConvArea, *z_image = z + (b * out + o0) * kConvArea;
    const float* da_image = da + (b * out + o0) * kConvWindows;
    const std::uint8_t* route_image = route + (b * out + o0) * kConvWindows;
#pragma unroll 1
    for (int first_row = 0; first_row < kConvSide; first_row += kConvRows) {
#pragma unroll 6
      for (int n = t; n < kInputs * kPlane; n += kThreads) {
        const int i = n / kPlane, r = first_row + n % kPlane / kConvPitch - 1, s = n % kConvPitch - 1;
        const bool inside = i0 + i < in && r >= 0 && r < kConvSide && s >= 0 && s < kConvSide;
        planes[i * kPlanePitch + n % kPlane] = inside ? image[i * kConvArea + r * kConvSide + s] : 0;
      }
#pragma unroll 1
      for (int n = t; n < kStrip * kBlockOutputs / 4; n += kThreads) {
        const int at = n % kStrip, o = n / kStrip * 4, position = first_row * kConvSide + at;
        const int window = window_of(position, kConvSide), place = place_of(position, kConvSide);
        float values[4], gradients[4];
        int routes[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const bool exists = o0 + o + k < out;
          values[k] = exists ? z_image[(o + k) * kConvArea + position] : 0;
          gradients[k] = exists ? da_image[(o + k) * kConvWindows + window] : 0;
          routes[k] = exists ? route_image[(o + k) * kConvWindows + window] : place;
        }
#pragma unroll
        for (int k = 0; k < 4; ++k)
          values[k] = o0 + o + k < out ? channels[o + k].of(routes[k] == place ? gradients[k] : 0, values[k]) : 0;
        *reinterpret_cast<float4*>(&dz[at * kStripPitch + o]) = make_float4(values[0], values[1], values[2], values[3]);
      }
      __syncthreads();  // dz and x are complete
#pragma unroll 1
      for (int q = half * (kConvSide / kHalves); q < (half + 1) * (kConvSide / kHalves); ++q) {
        const float *column = planes + lane * kPlanePitch + q, *from = dz + q * kStripPitch + group * kOutputs;
        float window[3][3];
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int v = 0; v < 3; ++v) window[r][v] = column[r * kConvPitch + v];
#pragma unroll
        for (int p = 0; p < kConvRows; ++p) {
          const float4 low = *reinterpret_cast<const float4*>(from + p * kConvSide * kStripPitch);
          const float4 high = *reinterpret_cast<const float4*>(from + p * kConvSide * kStripPitch + 4);
          const float d[kOutputs] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
          for (int v = 0; v < 3; ++v) window[(p + 2) % 3][v] = column[(p + 2) * kConvPitch + v];
#pragma unroll
          for (int tap = 0; tap < kTaps; ++tap)
#pragma unroll
            for (int k = 0; k < kOutputs; ++k) sums[tap][k] += d[k] * window[(p + tap / 3) % 3][tap % 3];
        }
      }
      __syncthreads();  // everyone is done with them
    }
  }

  // The second half of the columns goes to the first through shared memory.
  if (half == 1)
#pragma unroll
    for (int n = 0; n < kSums; ++n) shared[(group * kSums + n) * 32 + lane] = sums[n / kOutputs][n % kOutputs];
  __syncthreads();  // the second half's sums are there
  if (half == 1 || i0 + lane >= in) return;
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap)
#pragma unroll
    for (int k = 0; k < kOutputs; ++k) {
      const int o = o0 + group * kOutputs + k;
      if (o < out)
        partial[((std::int64_t(blockIdx.x) * kTaps + tap) * out + o) * in + i0 + lane] =
            sums[tap][k] + shared[(group * kSums + tap * kOutputs + k) * 32 + lane];
    }
}

}  // namespace

void gradient_in_conv_data(float* dx, const PooledGradient& of, const float* w, std::int64_t batch, int in, int out,
                           int side, cudaStream_t stream) {
  require_conv_side("gradient_in_conv_data", side);
  require_gradient_channels("gradient_in_conv_data", out);
  const auto run = batch <= kSmallBatch ? launch_data<4, 4, false> : launch_data<8, 4, false>;
  run(dx, of.da, of.z, of.route, w, gradient_of(of, batch, kConvSide), batch, in, out, {}, stream);
}

void gradient_in_conv_taps(const Layer1Taps& layer1, const PooledGradient& of, const float* w, std::int64_t batch,
                           cudaStream_t stream) {
  const auto run = batch <= kSmallBatch ? launch_data<4, 4, true> : launch_data<8, 4, true>;
  run(nullptr, of.da, of.z, of.route, w, gradient_of(of, batch, kConvSide), batch, kConv1Channels, kConv2Channels,
      layer1, stream);
}

std::int64_t gradient_in_conv_chunks(std::int64_t batch) { return std::min(batch, kMostChunks); }

void gradient_in_conv_weight(float* partial, const PooledGradient& of, const float* x, std::int64_t batch, int in,
                             int out, int side, cudaStream_t stream) {
  require_conv_side("gradient_in_conv_weight", side);
  const dim3 grid(unsigned(gradient_in_conv_chunks(batch)), unsigned(ceil_div(out, kBlockOutputs)),
                  unsigned(ceil_div(in, kInputs)));
  backward_weight_kernel<<<grid, kThreads, 0, stream>>>(partial, of.da, of.z, of.route, x,
                                                        gradient_of(of, batch, kConvSide), batch, in, out);
  MNIST_CHECK_LAUNCH();
}

void conv_bn_relu_pool_backward_gradient_in_conv(float* dx, float* dw, float* dgamma, float* dbeta, float* scratch,
                                                 const float* da, const float* x, const float* z,
                                                 const float* statistics, const std::uint8_t* route, const float* w,
                                                 const float* gamma, std::int64_t batch, int in, int out, int side,
                                                 cudaStream_t stream) {
  const float *mean = statistics, *var = statistics + out;
  const PooledGradient of{da, z, route, gamma, mean, var, dgamma, dbeta};
  pooled_sums(dgamma, dbeta, da, z, route, mean, var, batch, out, side, stream);
  gradient_in_conv_weight(scratch, of, x, batch, in, out, side, stream);
  conv2d_add_chunks(dw, scratch, in, out, int(gradient_in_conv_chunks(batch)), stream);
  if (dx) gradient_in_conv_data(dx, of, w, batch, in, out, side, stream);
}

}  // namespace mnist::kernels
