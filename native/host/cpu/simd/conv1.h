// Layer 1 of one image: patch moments, fused conv1 + batch norm + relu + pool, and what its backward pass sums up.
#pragma once

#include "cpu/simd/vec.h"
#include "mnist/engine.h"

namespace mnist::cpu {
namespace {

// In float64: the statistics that follow from the moments are differences of large sums.
void patch_moments(double* sums, const float* x, const Scratch& scratch) {
  for (int tap = 0; tap < kTaps; ++tap) {
    double* patch = scratch.patches + tap * kImagePixels;
    for (int p = 0; p < kImageSide; ++p)
      for (int q = 0; q < kImageSide; ++q) *patch++ = x[(p + tap / 3) * kPixelRow + q + tap % 3];
  }
  constexpr int kDoubles = kLanes / 2;
  static_assert(kImagePixels % kDoubles == 0);
  const auto total = [](DoubleVec v) {
    double sum = 0;
    for (int i = 0; i < kDoubles; ++i) sum += v[i];
    return sum;
  };
  double* square = sums + kTaps;
  for (int i = 0; i < kTaps; ++i) {
    const double* pi = scratch.patches + i * kImagePixels;
    DoubleVec sum = {}, products[kTaps] = {};  // products[d] of taps i and i + d; those beyond the last are not used
    for (int n = 0; n < kImagePixels; n += kDoubles) {
      const DoubleVec value = load(pi + n);
      sum += value;
      for (int d = 0; i + d < kTaps; ++d) products[d] += value * load(pi + d * kImagePixels + n);
    }
    sums[i] += total(sum);
    for (int d = 0; i + d < kTaps; ++d) *square++ += total(products[d]);
  }
}

// One cell of a1 is four outputs of conv1, 9 taps each. A vector of channels keeps its nine weights in registers for
// the whole image; the four outputs are the accumulators, the pixels are broadcast.
template <bool kRoute>
void conv1_forward_cells(float* a1, std::int32_t* route, const float* x, const float* w, const float* t) {
  for (int c = 0; c < kConv1Channels; c += kLanes) {
    Vec weight[kTaps];
    MNIST_UNROLL
    for (int tap = 0; tap < kTaps; ++tap) weight[tap] = load(w + tap * kConv1Channels + c);
    const Vec shift = load(t + c);
    for (int p = 0; p < kPool1Side; ++p)
      for (int q = 0; q < kPool1Side; ++q) {
        const float* corner = x + 2 * p * kPixelRow + 2 * q;
        Vec y[4] = {shift, shift, shift, shift};
        MNIST_UNROLL
        for (int tap = 0; tap < kTaps; ++tap) MNIST_UNROLL
        for (int k = 0; k < 4; ++k)
          y[k] += broadcast(corner[(k / 2 + tap / 3) * kPixelRow + k % 2 + tap % 3]) * weight[tap];
        Vec best = y[0];
        Mask where = {};
        MNIST_UNROLL
        for (int k = 1; k < 4; ++k) {
          const Mask better = y[k] > best;
          best = better ? y[k] : best;
          if (kRoute) where = better ? Mask{} + k : where;
        }
        store(a1 + (p + 1) * kA1Row + (q + 1) * kConv1Channels + c, relu(best));
        if (kRoute)
          store(route + (p * kPool1Side + q) * kConv1Channels + c, best <= Vec{} ? Mask{} + Routing::kDead : where);
      }
  }
}

void conv1_forward(float* a1, std::int32_t* route, const float* x, const float* w, const float* t) {
  if (route)
    conv1_forward_cells<true>(a1, route, x, w, t);
  else
    conv1_forward_cells<false>(a1, nullptr, x, w, t);
}

// The lanes of a vector took different positions of the window, so each position adds its own lanes' gradients (the
// others being 0) times its own patch.
void conv1_backward(float* sums, const float* da1, const std::int32_t* route, const float* x) {
  for (int c = 0; c < kConv1Channels; c += kLanes) {
    Vec taps[kTaps] = {}, alone = {};
    for (int p = 0; p < kPool1Side; ++p)
      for (int q = 0; q < kPool1Side; ++q) {
        const float* corner = x + 2 * p * kPixelRow + 2 * q;
        const Vec gradient = load(da1 + (p + 1) * kA1Row + (q + 1) * kConv1Channels + c);
        const Mask where = load(route + (p * kPool1Side + q) * kConv1Channels + c);
        MNIST_UNROLL
        for (int k = 0; k < 4; ++k) {
          const Vec routed = where == Mask{} + k ? gradient : Vec{};
          alone += routed;
          MNIST_UNROLL
          for (int tap = 0; tap < kTaps; ++tap)
            taps[tap] += broadcast(corner[(k / 2 + tap / 3) * kPixelRow + k % 2 + tap % 3]) * routed;
        }
      }
    MNIST_UNROLL
    for (int tap = 0; tap < kTaps; ++tap) store(sums + tap * kConv1Channels + c, taps[tap]);
    store(sums + kTaps * kConv1Channels + c, alone);
  }
}

}  // namespace
}  // namespace mnist::cpu
