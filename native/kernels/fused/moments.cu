// Pixel moments of each image, once for a data set: what bn1's statistics and conv1's gradient need of it.
#include "cuda/check.h"
#include "kernels/fused/conv1.cuh"
#include "kernels/fused/state.h"

namespace mnist::fused {
namespace {

// One block an image, one thread a moment: sum over positions of v'_j, then of v'_j v'_k for j <= k, where v' is
// pixel - 255 * kPixelMean inside the image and 0 outside, and j, k are taps of a 3x3 filter.
__global__ void __launch_bounds__(64)
    image_moments_kernel(double* __restrict__ moments, const std::uint8_t* __restrict__ images) {
  __shared__ float padded[30][32];
  const std::uint8_t* image = images + std::size_t(blockIdx.x) * kImagePixels;
  for (int i = threadIdx.x; i < 30 * 32; i += blockDim.x) {
    const int y = i / 32 - 1, x = i % 32 - 1;
    const bool inside = y >= 0 && y < kImageSide && x >= 0 && x < kImageSide;
    padded[i / 32][i % 32] = inside ? float(image[y * kImageSide + x]) : -1.f;
  }
  __syncthreads();
  if (threadIdx.x >= kMoments) return;
  int j = threadIdx.x, k = -1;
  if (threadIdx.x >= kTaps) {
    int rest = threadIdx.x - kTaps;
    for (j = 0; rest >= kTaps - j; ++j) rest -= kTaps - j;
    k = j + rest;
  }
  const auto value = [&](int y, int x, int tap) {
    const float u = padded[y + tap / 3][x + tap % 3];
    return u < 0 ? 0.0 : double(u) - 255 * kPixelMean;
  };
  double total = 0;
  for (int y = 0; y < kImageSide; ++y)
    for (int x = 0; x < kImageSide; ++x) total += value(y, x, j) * (k < 0 ? 1.0 : value(y, x, k));
  // On a grid of 2^-11, so that sums over any batch are exact: the order in which they are added does not matter, and
  // a step gives the same bits whether its moments were summed ahead or at the start of a call.
  moments[std::size_t(blockIdx.x) * kMoments + threadIdx.x] = rint(total * 2048) / 2048;
}

}  // namespace

void image_moments(double* moments, const std::uint8_t* images, std::int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  image_moments_kernel<<<unsigned(count), 64, 0, stream>>>(moments, images);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::fused
