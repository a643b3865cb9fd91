// How conv1's pooled cells, a1, get into shared memory, and from there to global memory for conv2_backward.
#pragma once

#include "kernels/device/lane.cuh"
#include "kernels/device/matrix.cuh"
#include "kernels/fused/shared/image_layout.cuh"
#include "kernels/fused/state.h"

namespace mnist::fused {

// An image's a1 in shared memory; a padding slot may read past its end.
template <class P>
inline constexpr int kA1Bytes = (kSlotsOfImage + 1) * kSlotPitch<P, kConv1Channels>;

// Writes four values of conv1's half_row() into an image row in shared memory: channel channel0 + g (+8), slots 2t and
// 2t+1 of a plane, but for those that are padding and stay 0. place(slot, channel) says where a value goes; where
// values have 16 bits the next channel of an even one goes behind it.
template <class P, class Place>
__device__ __forceinline__ void store_a1(const float (&a)[4], int channel0, int plane, int lane, Place place) {
  const auto [g, t] = fragment_place(lane);
  const int padding = plane == 0 ? 0 : 7;
  if constexpr (sizeof(typename P::T) == 2) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const auto pair = transposed(P::pack(a[2 * upper], a[2 * upper + 1]));
      if (g != padding) *reinterpret_cast<typename P::Pair*>(place(g, channel0 + upper * 8 + 2 * t)) = pair;
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

// a1 for conv2_backward, in whole 16-byte chunks: piece `piece` of the rows.
template <class P, int kThreads, int kPieces>
__device__ __forceinline__ void store_image_a1(const State& s, const unsigned char* a1, int image, int tid, int piece) {
  constexpr int kChunks = kConv1Channels * int(sizeof(typename P::T)) / 16, kCount = kCells1 * kChunks / kPieces;
  for (int i = piece * kCount + tid; i < (piece + 1) * kCount; i += kThreads) {
    const int pixel = i / kChunks, at = (pixel / kPool1Side + 1) * kSlots + slot_of(pixel % kPool1Side + 1);
    reinterpret_cast<uint4*>(s.a1)[std::size_t(image) * kCells1 * kChunks + i] =
        *reinterpret_cast<const uint4*>(a1 + at * kSlotPitch<P, kConv1Channels> + i % kChunks * 16);
  }
}

}  // namespace mnist::fused
