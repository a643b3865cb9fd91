// conv_bn_relu_pool, moments: layer 1 in one launch behind one that sums pixels; z and dz do not exist.
#include <algorithm>

#include "cuda/buffer.h"
#include "cuda/check.h"
#include "kernels/conv_bn_relu_pool/last_block.cuh"
#include "kernels/conv_bn_relu_pool/moments.cuh"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kMostSide = 46;  // whose plane with its border has 9 KiB
constexpr int kMostPlane = (kMostSide + 2) * (kMostSide + 2);
constexpr int kMomentBlock = 128, kMomentWarps = kMomentBlock / 32;
constexpr std::int64_t kMostChunks = 256;  // of images; the last block adds as many
constexpr int kLayerBlock = 224;           // 196 windows of an image, whole warps
constexpr int kLayerChannels = 16;         // of a block
constexpr int kTapsBlock = 256, kTapsLanes = 8, kTapsChannels = kTapsBlock / kTapsLanes;
constexpr int kGradientBlock = 256;

// A block sums the pixels, and the products of two, under the taps of a 3x3 filter over a chunk of images: 54 sums a
// thread over its positions. The last block of the grid adds the chunks, and sets `moments` and with them the
// statistics of z = conv2d of the images, if w is given.
template <class Images>
__global__ void __launch_bounds__(kMomentBlock)
    moments_kernel(double* __restrict__ moments, double* partial, unsigned* finished, Images images, std::int64_t batch,
                   int side, float* __restrict__ mean, float* __restrict__ var, const float* __restrict__ w,
                   const float* __restrict__ bias, int out) {
  __shared__ float plane[kMostPlane];
  __shared__ float of_warp[kMomentWarps][kMoments];
  __shared__ double halves[2][kMoments];
  const int t = int(threadIdx.x), area = side * side, pitch = side + 2;
  const std::int64_t begin = blockIdx.x * batch / gridDim.x, end = (blockIdx.x + 1) * batch / gridDim.x;
  double total = 0;  // of moment t
  for (std::int64_t b = begin; b < end; ++b) {
    load_plane<kMomentBlock>(plane, images, b, side, t);
    __syncthreads();  // the image is there, and everyone is done with of_warp
    float sums[kMoments] = {};
    for (int n = t; n < area; n += kMomentBlock) {
      const float* corner = plane + n / side * pitch + n % side;
      float p[kTaps];
#pragma unroll
      for (int j = 0; j < kTaps; ++j) p[j] = corner[j / 3 * pitch + j % 3];
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        sums[j] += p[j];
#pragma unroll
        for (int k = j; k < kTaps; ++k) sums[moment_of(j, k)] += p[j] * p[k];
      }
    }
#pragma unroll
    for (int m = 0; m < kMoments; ++m) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sums[m] += __shfl_xor_sync(0xffffffff, sums[m], step);
      if (t % 32 == m % 32) of_warp[t / 32][m] = sums[m];
    }
    __syncthreads();  // the sums of all warps are there, and everyone is done with the image
    if (t < kMoments)
      for (int warp = 0; warp < kMomentWarps; ++warp) total += of_warp[warp][t];
  }
  if (t < kMoments) partial[std::int64_t(blockIdx.x) * kMoments + t] = total;
  if (!is_last_block(finished)) return;

  if (t < 2 * kMoments) {
    const int half = t / kMoments, m = t % kMoments, chunks = int(gridDim.x);
    double sum = 0;
#pragma unroll 16
    for (int chunk = half * chunks / 2; chunk < (half + 1) * chunks / 2; ++chunk) sum += partial[chunk * kMoments + m];
    halves[half][m] = sum;
  }
  __syncthreads();  // both halves are there
  const double per_value = 1 / (double(batch) * area);
  if (t < kMoments) halves[0][t] = (halves[0][t] + halves[1][t]) * per_value;
  __syncthreads();  // halves[0] are means now
  if (t < kTaps)
    for (int k = t; k < kTaps; ++k)
      halves[1][moment_of(t, k)] = halves[0][moment_of(t, k)] - halves[0][t] * halves[0][k];
  __syncthreads();  // halves[1] has the covariances
  if (t < kMoments) moments[t] = (t < kTaps ? halves[0] : halves[1])[t];
  if (!w) return;
  constexpr double kScale = Images::kScale;
  for (int c = t; c < out; c += kMomentBlock) {
    float filter[kTaps];
#pragma unroll
    for (int j = 0; j < kTaps; ++j) filter[j] = w[c * kTaps + j];
    double centre = 0, square = 0;
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      centre += filter[j] * (halves[0][j] - double(Images::kBorder));
#pragma unroll
      for (int k = 0; k < kTaps; ++k) square += double(filter[j]) * filter[k] * halves[1][moment_of(j, k)];
    }
    square *= kScale * kScale;
    mean[c] = float(kScale * centre + bias[c]);
    var[c] = float(square < 0 ? 0 : square);
  }
}

// blockIdx.x = b, blockIdx.y = which 16 channels; one thread per window: of each channel 4 outputs, from 16 pixels.
// Pooling comes first: y = gamma (z - mean) / sigma + beta is largest where z is, or, if gamma < 0, where -z is. So the
// sign of gamma goes into the filter. Where gamma is 0 every z becomes 0 and the first position wins.
template <class Images>
__global__ void __launch_bounds__(kLayerBlock)
    layer_kernel(float* __restrict__ a, std::uint8_t* __restrict__ route, Images images, const float* __restrict__ w,
                 const float* __restrict__ bias, const float* __restrict__ gamma, const float* __restrict__ beta,
                 const float* __restrict__ mean, const float* __restrict__ var, int out, int side) {
  __shared__ float plane[kMostPlane];
  __shared__ __align__(16) float filters[kLayerChannels][12];  // 9 weights, what is added, what multiplies, beta
  const int t = int(threadIdx.x), pooled = side / 2, windows = pooled * pooled, pitch = side + 2;
  const std::int64_t b = blockIdx.x;
  const int first = int(blockIdx.y) * kLayerChannels, channels = min(kLayerChannels, out - first);
  const auto image = images.of(b);
  for (int n = t; n < pitch * pitch; n += kLayerBlock) {
    const int r = n / pitch - 1, s = n % pitch - 1;
    const bool inside = r >= 0 && r < side && s >= 0 && s < side;
    plane[n] = inside ? Images::normalized(image(r * side + s)) : 0;
  }
  for (int n = t; n < channels * 12; n += kLayerBlock) {
    const int c = first + n / 12, k = n % 12;
    const float sign = gamma[c] > 0 ? 1.0f : gamma[c] < 0 ? -1.0f : 0.0f;
    filters[n / 12][k] = k < kTaps        ? sign * w[c * kTaps + k]
                         : k == kTaps     ? sign * (bias[c] - mean[c])
                         : k == kTaps + 1 ? fabsf(gamma[c]) / sqrtf(var[c] + float(kBatchNormEpsilon))
                                          : beta[c];
  }
  __syncthreads();  // the image and the filters are there
  for (int window = t; window < windows; window += kLayerBlock) {
    const float* corner = plane + window / pooled * 2 * pitch + window % pooled * 2;
    float x[4][4];
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int s = 0; s < 4; ++s) x[r][s] = corner[r * pitch + s];
    for (int c = 0; c < channels; ++c) {
      const float4* from = reinterpret_cast<const float4*>(filters[c]);
      const float4 low = from[0], middle = from[1], high = from[2];
      const float filter[kTaps] = {low.x, low.y, low.z, low.w, middle.x, middle.y, middle.z, middle.w, high.x};
      float best = 0;
      std::uint8_t where = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float sum = 0;
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) sum += filter[tap] * x[k / 2 + tap / 3][k % 2 + tap % 3];
        if (k == 0 || sum > best || (isnan(sum) && !isnan(best))) {
          best = sum;
          where = std::uint8_t(k);
        }
      }
      const float y = (best + high.y) * high.z + high.w;
      const bool dead = y <= 0;
      const std::int64_t at = (b * out + first + c) * windows + window;
      a[at] = dead ? 0 : y;
      route[at] = dead ? kDead : where;
    }
  }
}

// blockIdx.x = b, blockIdx.y = which 32 channels; 8 threads a channel.
template <class Images>
__global__ void __launch_bounds__(kTapsBlock)
    taps_kernel(float* __restrict__ taps, Images images, const float* __restrict__ da,
                const std::uint8_t* __restrict__ route, int out, int side) {
  __shared__ float plane[kMostPlane];
  const int t = int(threadIdx.x), pooled = side / 2, c = int(blockIdx.y) * kTapsChannels + t / kTapsLanes;
  const std::int64_t b = blockIdx.x, at = b * out + c;
  load_plane<kTapsBlock>(plane, images, b, side, t);
  __syncthreads();  // the image is there
  float sums[kRoutedTaps] = {};
  if (c < out)
    add_routed_taps(sums, da + at * pooled * pooled, route + at * pooled * pooled, plane, pooled, t % kTapsLanes,
                    kTapsLanes);
  store_routed_taps<kTapsLanes>(taps, sums, at, c < out, t % kTapsLanes);
}

// blockIdx.x = c.
__global__ void __launch_bounds__(kGradientBlock)
    gradient_kernel(float* __restrict__ dw, float* __restrict__ dgamma, float* __restrict__ dbeta,
                    const float* __restrict__ taps, const double* __restrict__ moments, std::int64_t batch,
                    const float* __restrict__ w, const float* __restrict__ gamma, const float* __restrict__ var,
                    double scale) {
  const int c = int(blockIdx.x);
  const auto gradient =
      layer1_gradient<kGradientBlock>(taps, moments, c, int(gridDim.x), batch, w + c * kTaps, gamma[c], var[c], scale);
  if (threadIdx.x < kTaps) dw[c * kTaps + threadIdx.x] = gradient.dw;
  if (threadIdx.x == 0) dgamma[c] = gradient.dgamma, dbeta[c] = gradient.dbeta;
}

template <class Images>
void launch_moments(double* moments, double* partial, unsigned* finished, const Images& images, std::int64_t batch,
                    int side, const MomentStatistics& of, cudaStream_t stream) {
  const auto blocks = unsigned(std::min(batch, kMostChunks));
  moments_kernel<Images><<<blocks, kMomentBlock, 0, stream>>>(moments, partial, finished, images, batch, side, of.mean,
                                                              of.var, of.w, of.bias, of.out);
  MNIST_CHECK_LAUNCH();
}

template <class Images>
void launch_layer(float* a, std::uint8_t* route, const Images& images, const float* w, const float* bias,
                  const float* gamma, const float* beta, const float* mean, const float* var, std::int64_t batch,
                  int out, int side, cudaStream_t stream) {
  const dim3 grid(unsigned(batch), unsigned(ceil_div(out, kLayerChannels)));
  layer_kernel<Images><<<grid, kLayerBlock, 0, stream>>>(a, route, images, w, bias, gamma, beta, mean, var, out, side);
  MNIST_CHECK_LAUNCH();
}

void require_layer1(const char* what, int side) {
  MNIST_REQUIRE(side % 2 == 0 && side <= kMostSide,
                what << ": side is " << side << ", expected an even number of at most " << kMostSide);
}

}  // namespace

std::int64_t pixel_moments_partial_size(std::int64_t batch) { return std::min(batch, kMostChunks) * kMoments; }

void pixel_moments(double* moments, double* partial, unsigned* finished, const float* x, std::int64_t batch, int side,
                   const MomentStatistics& of, cudaStream_t stream) {
  require_layer1("pixel_moments", side);
  launch_moments(moments, partial, finished, FloatImages{x, side * side}, batch, side, of, stream);
}

void pixel_moments_of_bytes(double* moments, double* partial, unsigned* finished, std::uint8_t* images,
                            std::uint8_t* labels, const GatherFrom& from, std::int64_t batch,
                            const MomentStatistics& of, cudaStream_t stream) {
  if (from.images)
    launch_moments(moments, partial, finished, GatheredImages{images, labels, from}, batch, kImageSide, of, stream);
  else
    launch_moments(moments, partial, finished, ByteImages{images}, batch, kImageSide, of, stream);
}

void layer_of_one_channel(float* a, std::uint8_t* route, const float* x, const float* w, const float* bias,
                          const float* gamma, const float* beta, const float* mean, const float* var,
                          std::int64_t batch, int out, int side, cudaStream_t stream) {
  require_layer1("layer_of_one_channel", side);
  launch_layer(a, route, FloatImages{x, side * side}, w, bias, gamma, beta, mean, var, batch, out, side, stream);
}

void layer_of_bytes(float* a, std::uint8_t* route, const std::uint8_t* images, const float* w, const float* bias,
                    const float* gamma, const float* beta, const float* mean, const float* var, std::int64_t batch,
                    int out, cudaStream_t stream) {
  launch_layer(a, route, ByteImages{images}, w, bias, gamma, beta, mean, var, batch, out, kImageSide, stream);
}

void layer_gradient_from_moments(float* dw, float* dgamma, float* dbeta, float* taps, const float* da, const float* x,
                                 const std::uint8_t* route, const double* moments, const float* w, const float* gamma,
                                 const float* var, std::int64_t batch, int out, int side, cudaStream_t stream) {
  require_layer1("layer_gradient_from_moments", side);
  const dim3 grid(unsigned(batch), unsigned(ceil_div(out, kTapsChannels)));
  taps_kernel<<<grid, kTapsBlock, 0, stream>>>(taps, FloatImages{x, side * side}, da, route, out, side);
  MNIST_CHECK_LAUNCH();
  gradient_kernel<<<unsigned(out), kGradientBlock, 0, stream>>>(dw, dgamma, dbeta, taps, moments, batch, w, gamma, var,
                                                                1.0);
  MNIST_CHECK_LAUNCH();
}

void conv_bn_relu_pool_forward_moments(float* a, std::uint8_t* route, float* kept, float* statistics, float* scratch,
                                       const float* x, const float* w, const float* bias, const float* gamma,
                                       const float* beta, std::int64_t batch, int in, int out, int side,
                                       cudaStream_t stream) {
  MNIST_REQUIRE(in == 1, "conv_bn_relu_pool moments: " << in << " input channels, expected 1");
  auto* moments = reinterpret_cast<double*>(kept);
  auto* partial = reinterpret_cast<double*>(scratch);
  auto* finished = reinterpret_cast<unsigned*>(partial + pixel_moments_partial_size(batch));
  cuda::fill_bytes(finished, 0, 1, stream);
  pixel_moments(moments, partial, finished, x, batch, side, {statistics, statistics + out, w, bias, out}, stream);
  layer_of_one_channel(a, route, x, w, bias, gamma, beta, statistics, statistics + out, batch, out, side, stream);
}

void conv_bn_relu_pool_backward_moments(float* dx, float* dw, float* dgamma, float* dbeta, float* scratch,
                                        const float* da, const float* x, const float* kept, const float* statistics,
                                        const std::uint8_t* route, const float* w, const float* gamma,
                                        std::int64_t batch, int in, int out, int side, cudaStream_t stream) {
  MNIST_REQUIRE(in == 1 && !dx, "conv_bn_relu_pool moments: expected one input channel, and no gradient of it");
  layer_gradient_from_moments(dw, dgamma, dbeta, scratch, da, x, route, reinterpret_cast<const double*>(kept), w, gamma,
                              statistics + out, batch, out, side, stream);
}

}  // namespace mnist::kernels
