// conv2d through cuFFT: pad, multiply, crop. The transforms are the library's.
#include <algorithm>

#include "cuda/check.h"
#include "kernels/conv2d/fft.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kBlock = 256;
constexpr int kProductBlock = 128;  // frequencies
constexpr int kEach = 4;            // images, and outputs, of a thread

// One thread an element of `padded`, (planes, size, size): `from` (planes, side, side) at (first, first), else 0.
__global__ void pad_kernel(float* __restrict__ padded, const float* __restrict__ from, std::int64_t count, int size,
                           int side, int first) {
  const std::int64_t n = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (n >= count) return;
  const std::int64_t plane = n / (size * size);
  const int r = int(n / size % size) - first, s = int(n % size) - first;
  const bool inside = r >= 0 && r < side && s >= 0 && s < side;
  padded[n] = inside ? from[(plane * side + r) * side + s] : 0;
}

// threadIdx.x and blockIdx.x = which frequency, blockIdx.y = which 4 images, blockIdx.z = which 4 outputs.
__global__ void product_kernel(float2* __restrict__ y, const float2* __restrict__ x, const float2* __restrict__ w,
                               std::int64_t batch, int in, int out, int frequencies) {
  const int f = int(blockIdx.x) * kProductBlock + int(threadIdx.x), o0 = int(blockIdx.z) * kEach;
  const std::int64_t b0 = std::int64_t(blockIdx.y) * kEach;
  if (f >= frequencies) return;
  float2 sums[kEach][kEach] = {};
  for (int i = 0; i < in; ++i) {
    float2 a[kEach], c[kEach];
    for (int e = 0; e < kEach; ++e) {  // beyond the last: the last again, for a sum that nobody stores
      a[e] = x[(min(b0 + e, batch - 1) * in + i) * frequencies + f];
      c[e] = w[(std::int64_t(min(o0 + e, out - 1)) * in + i) * frequencies + f];
    }
    for (int m = 0; m < kEach; ++m)
      for (int n = 0; n < kEach; ++n) {
        sums[m][n].x += a[m].x * c[n].x + a[m].y * c[n].y;
        sums[m][n].y += a[m].y * c[n].x - a[m].x * c[n].y;
      }
  }
  for (int m = 0; m < kEach; ++m)
    for (int n = 0; n < kEach; ++n)
      if (b0 + m < batch && o0 + n < out) y[((b0 + m) * out + o0 + n) * frequencies + f] = sums[m][n];
}

// One thread an element of y, (batch, out, side, side).
__global__ void crop_kernel(float* __restrict__ y, const float* __restrict__ planes, const float* __restrict__ bias,
                            std::int64_t count, int out, int side, int size) {
  const std::int64_t n = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (n >= count) return;
  const std::int64_t plane = n / (side * side);
  const int p = int(n / side % side), q = int(n % side);
  y[n] = planes[(plane * size + p) * size + q] / float(size * size) + bias[plane % out];
}

unsigned blocks(std::int64_t threads, int block) { return unsigned(ceil_div(threads, block)); }

std::int64_t area(int size) { return std::int64_t(size) * size; }
int frequencies(int size) { return size * (size / 2 + 1); }

}  // namespace

Conv2dFft::Conv2dFft(std::int64_t batch, int in, int out, int side)
    : batch_(batch),
      in_(in),
      out_(out),
      side_(side),
      planes_(std::max((batch + out) * in, batch * out) * area(side + 2)),
      spectra_((batch + out) * in * frequencies(side + 2)),
      products_(batch * out * frequencies(side + 2)),
      forward_(cufft::kForward, side + 2, int((batch + out) * in)),
      inverse_(cufft::kInverse, side + 2, int(batch * out)) {}

void Conv2dFft::forward(float* y, const float* x, const float* w, const float* bias, cudaStream_t stream) {
  const int size = side_ + 2, taps = 3, f = frequencies(size);
  const std::int64_t of_x = batch_ * in_, of_w = std::int64_t(out_) * in_;  // planes, one after the other
  const std::int64_t x_count = of_x * area(size), w_count = of_w * area(size), y_count = batch_ * out_ * area(side_);
  pad_kernel<<<blocks(x_count, kBlock), kBlock, 0, stream>>>(planes_.data(), x, x_count, size, side_, 1);
  MNIST_CHECK_LAUNCH();
  pad_kernel<<<blocks(w_count, kBlock), kBlock, 0, stream>>>(planes_.data() + x_count, w, w_count, size, taps, 0);
  MNIST_CHECK_LAUNCH();
  forward_.forward(spectra_.data(), planes_.data(), stream);
  const dim3 grid(blocks(f, kProductBlock), blocks(batch_, kEach), blocks(out_, kEach));
  product_kernel<<<grid, kProductBlock, 0, stream>>>(products_.data(), spectra_.data(), spectra_.data() + of_x * f,
                                                     batch_, in_, out_, f);
  MNIST_CHECK_LAUNCH();
  inverse_.inverse(planes_.data(), products_.data(), stream);
  crop_kernel<<<blocks(y_count, kBlock), kBlock, 0, stream>>>(y, planes_.data(), bias, y_count, out_, side_, size);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
