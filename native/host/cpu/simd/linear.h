// The linear layers of a block of images. fc1's weight lies feature by feature, (3136, 128), its features pixel by
// pixel: forward and weight gradient then read it as it lies, and only the data gradient needs a transposed tile.
#pragma once

#include "cpu/simd/gemm.h"

namespace mnist::cpu {
namespace {

void bn2_relu(float* a, const float* e, std::int64_t stride, int rows, int pixels, const Affine2& affine) {
  for (int c = 0; c < kConv2Channels; c += kLanes) {
    const Vec scale = load(affine.scale + c), shift = load(affine.shift + c);
    for (int row = 0; row < rows; ++row)
      for (int p = 0; p < pixels; ++p)
        store(a + (row * pixels + p) * kConv2Channels + c,
              relu(scale * load(e + row * stride + p * kConv2Channels + c) + shift));
  }
}

// One pixel's 64 features at a time: its part of w (32 KB) is read once for all rows.
void fc1_forward(float* hidden, const float* e, const float* w, const float* bias, int rows, const Affine2& affine,
                 float* scratch) {
  for (int row = 0; row < rows; ++row)
    for (int o = 0; o < kHidden; o += kLanes) store(hidden + row * kHidden + o, load(bias + o));
  for (int p = 0; p < kTiles; ++p) {
    bn2_relu(scratch, e + p * kPixelFeatures, kFeatures, rows, 1, affine);
    gemm<kHidden, Strides<kPixelFeatures, 1>, kHidden, kHidden, true>(hidden, scratch, w + p * kPixelFeatures * kHidden,
                                                                      rows, kPixelFeatures);
  }
}

void fc1_backward(float* e, float* dw, float* sums, const float* dh, const float* wt, int rows, const Affine2& affine,
                  float* scratch) {
  bn2_relu(scratch, e, kFeatures, rows, 1, affine);
  gemm<kPixelFeatures, kHidden, Strides<1, kPixelFeatures>, kHidden, kHidden, true>(dw, scratch, dh, rows);
  alignas(64) float g[kLinearRows * kPixelFeatures];
  gemm<kPixelFeatures, Strides<kHidden, 1>, kPixelFeatures, kPixelFeatures, false>(g, dh, wt, rows, kHidden);
  for (int c = 0; c < kPixelFeatures; c += kLanes) {
    const Vec mean = load(affine.mean + c);
    Vec sum = load(sums + c), product = load(sums + kPixelFeatures + c);
    for (int row = 0; row < rows; ++row) {
      float* cell = e + std::int64_t(row) * kFeatures + c;
      const Vec passed = load(scratch + row * kPixelFeatures + c) <= Vec{} ? Vec{} : load(g + row * kPixelFeatures + c);
      sum += passed;
      product += passed * (load(cell) - mean);
      store(cell, passed);
    }
    store(sums + c, sum);
    store(sums + kPixelFeatures + c, product);
  }
}

void fc1_transpose(float* wt, const float* w) {
  for (int f = 0; f < kPixelFeatures; ++f)
    for (int o = 0; o < kHidden; ++o) wt[o * kPixelFeatures + f] = w[f * kHidden + o];
}

void fc2_forward(float* logits, const float* h, const float* w, const float* bias, int rows) {
  for (int row = 0; row < rows; ++row)
    for (int k = 0; k < kClassLanes; k += kLanes) store(logits + row * kClassLanes + k, load(bias + k));
  gemm<kClassLanes, Strides<kHidden, 1>, kClassLanes, kClassLanes, true>(logits, h, w, rows, kHidden);
}

void fc2_backward(float* dh, const float* dlogits, const float* w, const float* h, int rows) {
  gemm<kHidden, Strides<kClassLanes, 1>, kHidden, kHidden, false>(dh, dlogits, w, rows, kClasses);
  for (int i = 0; i < rows * kHidden; i += kLanes) store(dh + i, load(h + i) <= Vec{} ? Vec{} : load(dh + i));
}

void fc2_weight_gradient(float* dw, const float* dlogits, const float* h, int rows) {
  gemm<kClasses, kHidden, Strides<1, kClassLanes>, kHidden, kHidden, true>(dw, dlogits, h, rows);
}

void sgd_update(float* w, const float* dw, float learning_rate, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) w[i] -= learning_rate * dw[i];
}

}  // namespace
}  // namespace mnist::cpu
