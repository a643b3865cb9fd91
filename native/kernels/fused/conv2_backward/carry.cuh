// Rounding to 16 bits that passes on what it takes.
#pragma once

#include <cstdint>

#include "kernels/fused/shared/numbers.cuh"

namespace mnist::fused {

// Two values as they are stored, each with what rounding took from one before it. What it takes from this one, `rest`
// gets, but for values that do not count. So a sum of many loses no more than one does. (Where images are flat, dz2 and
// da1 are the same at many places, and so would be what each loses, while what they sum up to nearly cancels.)
template <class P>
__device__ __forceinline__ std::uint32_t pack_carrying(float x, float y, float2& rest, bool x_counts = true,
                                                       bool y_counts = true) {
  x += rest.x, y += rest.y;
  const auto pair = P::pack_bounded(x, y);
  const float2 kept = P::unpack(pair);
  if (x_counts) rest.x = x - kept.x;
  if (y_counts) rest.y = y - kept.y;
  return reinterpret_cast<const std::uint32_t&>(pair);
}

}  // namespace mnist::fused
