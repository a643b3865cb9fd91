// moments: what layer 1 needs of its images instead of z and dz: sums of pixels, and of pixels by gradients.
//
// p are the 9 pixels under the filter at a position, 0 outside of the image; z = w.p + bias. So over the batch
//   mean = w.pbar + bias,   var = w' C w      with the mean pbar and the covariances C of p (54 sums, no z),
//   dw = s (Gt - (w.Gt / sigma^2) C w),   dgamma = w.Gt / sigma,   dbeta = d      with Gt = G - d pbar,
// where G is the sum of the 9 pixels under the routed position times the gradient, d that of the gradient alone, sigma
// = sqrt(var + eps) and s = gamma / sigma. docs/guide/01-network.md derives them.
//
// The sums are of e = u, a byte, and of the byte that is normalised to 0 on the border: the background is then 0 and
// sums of bytes are exact in float, so that nothing is lost where images are flat.
#pragma once

#include <cstdint>

#include "kernels/conv_bn_relu_pool/conv_bn_relu_pool.h"
#include "kernels/conv_bn_relu_pool/gradient.cuh"
#include "kernels/step.h"
#include "mnist/model.h"
#include "mnist/step.h"

namespace mnist::kernels {

inline constexpr int kRoutedTaps = kTaps + 1;                             // G and d of a channel
inline constexpr int kLayer1Plane = (kImageSide + 2) * (kImageSide + 2);  // an image with its border

// Images of bytes: of(b) gives image b, whose pixel n is e; the network sees kScale * (e - kBorder).
struct ByteImages {
  static constexpr float kBorder = float(255 * kPixelMean), kScale = float(1 / (255 * kPixelStd));
  struct Image {
    const std::uint8_t* pixels;
    __device__ float operator()(int n) const { return pixels[n]; }
  };
  const std::uint8_t* images;

  __device__ Image of(std::int64_t b) const { return {images + b * kImagePixels}; }
  // As normalize.cu does it.
  static __device__ float normalized(float e) { return kScale * e + float(-kPixelMean / kPixelStd); }
};

// The same of a data set, from which an image, and its label, goes to its place in the batch on the way.
struct GatheredImages {
  static constexpr float kBorder = ByteImages::kBorder, kScale = ByteImages::kScale;
  struct Image {
    const std::uint8_t* pixels;
    std::uint8_t* batch;
    __device__ float operator()(int n) const { return batch[n] = pixels[n]; }
  };
  std::uint8_t *images, *labels;
  GatherFrom from;

  __device__ Image of(std::int64_t b) const {
    const std::int64_t sample = from.order[from.state->cursor + b];
    if (threadIdx.x == 0) labels[b] = from.labels[sample];
    return {from.images + sample * kImagePixels, images + b * kImagePixels};
  }
};

// Planes of numbers that are normalised already.
struct FloatImages {
  static constexpr float kBorder = 0, kScale = 1;
  struct Image {
    const float* pixels;
    __device__ float operator()(int n) const { return pixels[n]; }
  };
  const float* x;
  int area;

  __device__ Image of(std::int64_t b) const { return {x + b * area}; }
  static __device__ float normalized(float e) { return e; }
};

// Image b with its border, by kThreads threads of which this is t.
template <int kThreads, class Images>
__device__ void load_plane(float* plane, const Images& images, std::int64_t b, int side, int t) {
  const auto image = images.of(b);
  const int pitch = side + 2;
  for (int n = t; n < pitch * pitch; n += kThreads) {
    const int r = n / pitch - 1, s = n % pitch - 1;
    const bool inside = r >= 0 && r < side && s >= 0 && s < side;
    plane[n] = inside ? image(r * side + s) : Images::kBorder;
  }
}

// Adds the windows `first`, `first + step` ... of a channel to G = taps[0..9) and to the sum of da, taps[9]. `da` and
// `route` are the channel's, `plane` the image with its border.
__device__ inline void add_routed_taps(float (&taps)[kRoutedTaps], const float* da, const std::uint8_t* route,
                                       const float* plane, int pooled, int first, int step) {
  const int pitch = 2 * pooled + 2;
  for (int window = first; window < pooled * pooled; window += step) {
    const int way = route[window];
    if (way == kDead) continue;
    const float d = da[window];
    const float* corner = plane + (2 * (window / pooled) + way / 2) * pitch + 2 * (window % pooled) + way % 2;
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) taps[tap] += d * corner[tap / 3 * pitch + tap % 3];
    taps[kTaps] += d;
  }
}

// Adds the taps of kLanes neighbours, of which this is `lane`, and stores them as those of plane (b,c) if it `exists`.
// All threads of the warp call it.
template <int kLanes>
__device__ void store_routed_taps(float* to, float (&taps)[kRoutedTaps], std::int64_t plane, bool exists, int lane) {
#pragma unroll
  for (int j = 0; j < kRoutedTaps; ++j) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) taps[j] += __shfl_xor_sync(0xffffffff, taps[j], step);
    if (exists && lane == 0) to[plane * kRoutedTaps + j] = taps[j];
  }
}

struct Layer1Gradient {
  float dw;  // of tap threadIdx.x, in the first 9 threads
  float dgamma, dbeta;
};

// The gradient of channel c from the taps of all images, which a block of kThreads adds in a fixed order. `w`: the 9
// weights of the channel; when it returns, no thread will read them any more.
template <int kThreads>
__device__ Layer1Gradient layer1_gradient(const float* __restrict__ taps, const double* __restrict__ moments, int c,
                                          int channels, std::int64_t batch, const float* w, float gamma, float var,
                                          double scale) {
  constexpr int kParts = kThreads / kRoutedTaps;
  __shared__ double parts[kParts][kRoutedTaps], totals[kRoutedTaps], centred[kTaps];
  const int t = int(threadIdx.x), part = t / kRoutedTaps, j = t % kRoutedTaps, tap = t < kTaps ? t : 0;
  if (part < kParts) {
    double sum = 0;
#pragma unroll 8
    for (std::int64_t b = part; b < batch; b += kParts) sum += taps[(b * channels + c) * kRoutedTaps + j];
    parts[part][j] = sum;
  }
  float weights[kTaps];
  double covariances[kTaps];  // of this thread's tap
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
    weights[k] = w[k];
    covariances[k] = moments[moment_of(tap, k)];
  }
  __syncthreads();  // all parts are there
  if (t < kRoutedTaps) {
    double sum = 0;
#pragma unroll
    for (int p = 0; p < kParts; ++p) sum += parts[p][t];
    totals[t] = sum;
  }
  __syncthreads();  // all totals are there
  if (t < kTaps) centred[t] = scale * (totals[t] - totals[kTaps] * moments[t]);
  __syncthreads();  // Gt is there
  const double sigma = sqrt(double(var) + kBatchNormEpsilon);
  double of_gradient = 0, of_covariances = 0;  // w.Gt, and this thread's of C w
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
    of_gradient += weights[k] * centred[k];
    of_covariances += weights[k] * (scale * scale * covariances[k]);
  }
  return {float(gamma / sigma * (centred[tap] - of_gradient / (sigma * sigma) * of_covariances)),
          float(of_gradient / sigma), float(totals[kTaps])};
}

}  // namespace mnist::kernels
