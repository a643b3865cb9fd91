// tap_products: a 3x3 convolution by mma.sync in tf32, 8 input channels at a time. Tap (u,v) is a product of its own:
// output channels by 8 input channels times 8 input channels by positions, which lie side by side in a plane, u rows
// and v columns from their place.
#pragma once

#include <cstdint>

#include "kernels/device/copies.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/wide.cuh"
#include "mnist/model.h"

namespace mnist::kernels {

inline constexpr int kTapDepth = 8;  // input channels in shared memory at a time: the depth of a product

// The filters of 16 kRowTiles output channels in shared memory, in rows as they lie in w (out,in,3,3): one per output
// channel. kTurned, for the gradient of the input: w is (in,out,3,3), a row has an input channel, and the filters are
// rotated by 180 degrees.
template <int kRowTiles, bool kTurned>
struct TapFilters {
  static constexpr int kOutputs = 16 * kRowTiles;
  static constexpr int kRows = kTurned ? kTapDepth : kOutputs;
  static constexpr int kLength = (kTurned ? kOutputs : kTapDepth) * kTaps;
  // Rows so far apart that the 32 lanes of a fragment fall on 32 banks: (12 g + 9 t) % 32, turned (9 g + 8 t) % 32.
  static constexpr int kPitch = kLength + (kTurned ? 8 : 4);
  static_assert(kPitch % 32 == (kTurned ? 8 : 12));
  static constexpr int kFloats = kRows * kPitch;

  // Starts the copy of input channels i0 ..., kWidth weights at a time; `first`: the first output channel.
  template <int kWidth, int kThreads>
  static __device__ void copy(float* filters, const float* w, int i0, int first, int in, int out, int thread) {
    const int row0 = kTurned ? i0 : first, column0 = kTurned ? first : i0;
    const int rows = kTurned ? in : out, columns = kTurned ? out : in;
    const int count = min(kLength / kTaps, columns - column0);
#pragma unroll 1
    for (int n = thread; n < kRows * kLength / kWidth; n += kThreads) {
      const int row = n / (kLength / kWidth), k = n % (kLength / kWidth) * kWidth;
      device::copy_async_or_zero<4 * kWidth>(device::shared_address(filters + row * kPitch + k),
                                             w + ((row0 + row) * columns + column0) * kTaps + k,
                                             row0 + row < rows && k < count * kTaps);
    }
  }

  // Rounds what this thread has copied in its place.
  template <int kWidth, int kThreads>
  static __device__ void round(float* filters, int thread) {
#pragma unroll 1
    for (int n = thread; n < kRows * kLength / kWidth; n += kThreads) {
      float* at = filters + n / (kLength / kWidth) * kPitch + n % (kLength / kWidth) * kWidth;
      auto values = device::load<kWidth>(at);
      for (float& value : values.of) value = __uint_as_float(device::to_tf32(value));
      device::store(at, values);
    }
  }

  // sums[r][c] += filters of tile r, 16 output channels, times planes at tile c, 8 positions, of all taps; this lane's
  // fragments by g and t (device/mma.cuh). plane(c, i, u, v): its number for tap (u,v), i input channels further.
  template <int kPositionTiles, class Plane>
  static __device__ void multiply(float (&sums)[kRowTiles][kPositionTiles][4], const float* filters, int g, int t,
                                  Plane plane) {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      std::uint32_t a[kRowTiles][4], b[kPositionTiles][2];
      for (int r = 0; r < kRowTiles; ++r)
        for (int e = 0; e < 4; ++e) {
          const int o = 16 * r + g + 8 * (e % 2), i = t + 4 * (e / 2);
          a[r][e] = __float_as_uint(kTurned ? filters[i * kPitch + o * kTaps + kTaps - 1 - tap]
                                            : filters[o * kPitch + i * kTaps + tap]);
        }
      for (int c = 0; c < kPositionTiles; ++c)
        for (int e = 0; e < 2; ++e) b[c][e] = __float_as_uint(plane(c, 4 * e, tap / 3, tap % 3));
      for (int r = 0; r < kRowTiles; ++r)
        for (int c = 0; c < kPositionTiles; ++c) device::mma_tf32(sums[r][c], a[r], b[c]);
    }
  }
};

}  // namespace mnist::kernels
