// How pixels enter the fused engine's products.
#pragma once

#include "mnist/model.h"

namespace mnist::fused {

// A pixel u as v = kFactor u - kOffset, an integer; x, its normalised intensity, is kScale (v - kZero). Outside of the
// image, where x is 0, stands v = kZero.
template <int kFactor, int kOffset>
struct PixelForm {
  static constexpr int of(int u) { return kFactor * u - kOffset; }
  static constexpr double kZero = kFactor * (kPixelMean * 255) - kOffset, kScale = 1 / (255 * kPixelStd * kFactor);
  static constexpr int kLargest = of(255), kSmallest = of(0);
};

// fp16 holds this kZero to 4e-7 of a pixel's step, but that of u - 33 to 1e-4: that much is 2e-5 of the gradients of an
// image which is flat and nearly as dark as kZero.
using ExactPixels = PixelForm<3, 100>;
using Bf16Pixels = PixelForm<1, 33>;   // in bf16 the routed taps multiply bf16, which has 8 bits
using MomentPixels = PixelForm<1, 0>;  // pixel moments are sums of v - kZero

inline constexpr double kRoundingSlack = 1.001;  // of a bound from weights that conv1 rounds

}  // namespace mnist::fused
