// A 3x3 convolution over padded 14x14 images in shared memory, by warps: forward of conv2, and its dgrad, which is
// the same sum over the flipped filter.
//
// Image: [16 rows][2 planes][8 slots][C values], pixel (y', x') at row y', plane x' & 1, slot x' >> 1 (see conv1.cuh),
// `pitch` bytes from slot to slot; a border of zeros all round. Filter: [rows][9 taps][C], one row a column of the
// result. A warp makes R image rows of 16 outputs (two groups of 8) by 16 filter rows; an input row loaded for one
// output row serves its two neighbours too, so R + 2 loads feed 3R products.
#pragma once

#include "kernels/fused/policy.cuh"

namespace mnist::fused {

inline constexpr int kSlots = 16;  // of an image row
inline constexpr int kPaddedRows = 16;
inline constexpr int kSlotsOfImage = kPaddedRows * kSlots;

template <class P, int C>
inline constexpr int kSlotPitch = C * int(sizeof(typename P::T)) + 16;  // odd multiple of 16: no bank conflicts
template <class P, int C>
inline constexpr int kFilterPitch = kTaps * C * int(sizeof(typename P::T)) + 16;

__device__ __forceinline__ constexpr int slot_of(int padded_x) { return (padded_x & 1) * 8 + (padded_x >> 1); }

// Slot that group 0 or 1 of the outputs reads at its slot 0 for column tap v.
//   forward: groups are the two columns of the pooling windows, x' = 2j + 1 and 2j + 2; input x' + v - 1
//   aligned: groups are the planes themselves, x' = 2j and 2j + 1; input x' + v - 1
struct ForwardShift {
  static __device__ constexpr int at(int group, int v) {
    return group == 0 ? (v == 0 ? 0 : v == 1 ? 8 : 1) : (v == 0 ? 8 : v == 1 ? 1 : 9);
  }
};
struct AlignedShift {
  static __device__ constexpr int at(int group, int v) {
    return group == 0 ? (v == 0 ? 7 : v == 1 ? 0 : 8) : (v == 0 ? 0 : v == 1 ? 8 : 1);
  }
};

// Adds the outputs of image row r to acc[r]. `image` is the shared address of the row above the first output
// row, `filter` of the warp's first filter row.
//   kPixelsFirst: acc[r][n] is the mma result with rows = the 16 outputs, columns = filter rows 8n..8n+7
//   otherwise:    acc[r][group], rows = the 16 filter rows, columns = the 8 outputs of a group
// kSteps: how many k-steps of the channels are summed, from the one at which both addresses point.
template <class P, int C, int R, class Shift, bool kPixelsFirst, int kSteps, int kRowsOfAcc>
__device__ __forceinline__ void conv3x3_rows(float (&acc)[kRowsOfAcc][2][4], std::uint32_t image, std::uint32_t filter,
                                             int lane) {
  constexpr int kPitch = kSlotPitch<P, C>, kRowBytes = kSlots * kPitch;
  constexpr int kTapBytes = C * int(sizeof(typename P::T)), kStepBytes = 32;
  const int j = lane & 7, high = lane >> 4, low = lane >> 3 & 1;
  const int group = kPixelsFirst ? low : high, chunk = kPixelsFirst ? high : low;  // see a_lane_offset
  const std::uint32_t weights =
      filter + (kPixelsFirst ? b_lane_offset(lane, kFilterPitch<P, C>) : a_lane_offset(lane, kFilterPitch<P, C>));
  float part[R][2][4];
  if constexpr (!P::kDrainAccumulators)
#pragma unroll
    for (int i = 0; i < 8 * R; ++i) part[i >> 3][i >> 2 & 1][i & 3] = acc[i >> 3][i >> 2 & 1][i & 3];
  // Unrolled where registers allow, so that loads for one step are under way while another's products are made.
#pragma unroll(P::kDrainAccumulators || (sizeof(typename P::T) == 2 && !kPixelsFirst) ? 1 : 2)
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int v = 0; v < 3; ++v) {
      if constexpr (P::kDrainAccumulators)
#pragma unroll
        for (int i = 0; i < 8 * R; ++i) part[i >> 3][i >> 2 & 1][i & 3] = 0.f;
      const int slot = j + (group == 0 ? Shift::at(0, v) : Shift::at(1, v));
      const std::uint32_t column = image + slot * kPitch + chunk * 16 + step * kStepBytes;
      std::uint32_t pixels[R + 2][4];
#pragma unroll
      for (int r = 0; r < R + 2; ++r) load_matrix_x4(pixels[r], column + r * kRowBytes);
#pragma unroll
      for (int u = 0; u < 3; ++u) {
        std::uint32_t w[4];
        load_matrix_x4(w, weights + (3 * u + v) * kTapBytes + step * kStepBytes);
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const auto& p = pixels[r + u];
          if constexpr (kPixelsFirst) {
            P::mma(part[r][0], p, w[0], w[1]);
            P::mma(part[r][1], p, w[2], w[3]);
          } else {
            P::mma(part[r][0], w, p[0], p[1]);
            P::mma(part[r][1], w, p[2], p[3]);
          }
        }
      }
      if constexpr (P::kDrainAccumulators)
#pragma unroll
        for (int i = 0; i < 8 * R; ++i) acc[i >> 3][i >> 2 & 1][i & 3] += part[i >> 3][i >> 2 & 1][i & 3];
    }
  }
  if constexpr (!P::kDrainAccumulators)
#pragma unroll
    for (int i = 0; i < 8 * R; ++i) acc[i >> 3][i >> 2 & 1][i & 3] = part[i >> 3][i >> 2 & 1][i & 3];
}

// Writes four values of conv1's half_row() into an image row in shared memory: channel channel0 + g (+8), slots 2t and
// 2t+1 of a plane, but for those that are padding and stay 0. place(slot, channel) says where a value goes; where
// values have 16 bits the next channel of an even one goes behind it.
template <class P, class Place>
__device__ __forceinline__ void store_a1(const float (&a)[4], int channel0, int plane, int lane, Place place) {
  const int g = lane >> 2, t = lane & 3, padding = plane == 0 ? 0 : 7;
  if constexpr (sizeof(typename P::T) == 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const __nv_bfloat162 pair = transposed(P::pack(a[2 * half], a[2 * half + 1]));
      if (g != padding) *reinterpret_cast<__nv_bfloat162*>(place(g, channel0 + half * 8 + 2 * t)) = pair;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int slot = 2 * t + (i & 1);
      if (slot != padding) *reinterpret_cast<float*>(place(slot, channel0 + (i >> 1) * 8 + g)) = P::store(a[i]);
    }
  }
}

// A place in a row of a padded image as above.
template <class P>
struct A1Place {
  unsigned char* row;
  int plane;
  __device__ __forceinline__ unsigned char* operator()(int slot, int channel) const {
    return row + (plane * 8 + slot) * kSlotPitch<P, kConv1Channels> + channel * int(sizeof(typename P::T));
  }
};

// Copies chunk i of a filter from global memory, packed, to shared memory, pitched. Commit and wait are the caller's.
template <class P, int C>
inline constexpr int kFilterChunks = kTaps * C * int(sizeof(typename P::T)) / 16;  // of a row
template <class P, int C>
__device__ __forceinline__ void copy_filter_chunk(unsigned char* shared, const void* packed, int i) {
  constexpr int kChunks = kFilterChunks<P, C>;
  copy_async_16(shared_address(shared) + i / kChunks * kFilterPitch<P, C> + i % kChunks * 16,
                static_cast<const char*>(packed) + std::size_t(i) * 16);
}

}  // namespace mnist::fused
