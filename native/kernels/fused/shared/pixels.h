// How pixels enter the fused engine's conv1: as v = u - 33, with kZeroPixel for the normalised intensity 0.
#pragma once

#include "mnist/model.h"

namespace mnist::fused {

inline constexpr int kPixelOffset = 33;
inline constexpr double kZeroPixelExact = kPixelMean * 255 - kPixelOffset;
inline constexpr double kPixelScale = 1 / (255 * kPixelStd);
inline constexpr int kLargestPixel = 255 - kPixelOffset, kSmallestPixel = -kPixelOffset;
inline constexpr double kRoundingSlack = 1.001;  // of a bound from weights that conv1 rounds

}  // namespace mnist::fused
