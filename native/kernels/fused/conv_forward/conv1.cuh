// conv1 -> bn1 -> relu -> max_pool of one row of pooled cells by warps, from the bytes of the image.
//
// A cell's pooling window sees 4 x 4 pixels, just one k-step of an m16n8k16 product: 16 channels as rows, 8 pooled
// cells as columns, k = 4 * row + column of the patch. The filter at each of the window's 4 positions is an A operand
// of its own, shifted within zeros, so that one load of the pixels serves four products. Their results for a cell lie
// in the same lane: pooling never leaves the registers.
#pragma once

#include "kernels/device/lane.cuh"
#include "kernels/device/shared_memory.cuh"
#include "kernels/fused/shared/image.cuh"
#include "kernels/fused/shared/image_layout.cuh"
#include "kernels/fused/shared/policy.cuh"
#include "kernels/fused/shared/routing.cuh"

namespace mnist::fused {

// One warp's share: 16 of the 32 channels.
template <class P>
struct Conv1 {
  std::uint32_t weight[P::kConv1Terms][4][4];  // A operands: of a term, at a position
  float scale[2], shift[2];                    // of channels g and g + 8

  __device__ __forceinline__ void load(const void* packed, Bn1Operand bn1, int channel0, int lane) {
    const auto [g, t] = fragment_place(lane);
    const auto* words = static_cast<const std::uint32_t*>(packed);
#pragma unroll
    for (int term = 0; term < P::kConv1Terms; ++term)
#pragma unroll
      for (int position = 0; position < 4; ++position)
#pragma unroll
        for (int r = 0; r < 4; ++r)
          weight[term][position][r] =
              words[((term * 4 + position) * kConv1Channels + channel0 + g + (r & 1) * 8) * 8 + t + (r >> 1) * 4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int channel = channel0 + g + 8 * i;
      scale[i] = bn1.scale(channel) * bn1.filter_scale(channel);
      shift[i] = bn1.shift(channel);
    }
  }

  // From here on a is divided by `divisor`, too.
  __device__ __forceinline__ void divide(float divisor) {
#pragma unroll
    for (int i = 0; i < 2; ++i) scale[i] /= divisor, shift[i] /= divisor;
  }

  // Row cy of pooled cells. Calls emit(plane, a, route) for each plane: a[0], a[1] are channel g at slots 2t and 2t+1,
  // a[2], a[3] channel g + 8; byte i of route is 0x80 >> the position that a[i] came from, or 0 where relu made a zero
  // and in padding slots, whose a[i] means nothing.
  template <class Emit>
  __device__ __forceinline__ void row(std::uint32_t image, int cy, int lane, Emit emit) const {
#pragma unroll
    for (int plane = 0; plane < 2; ++plane)
      half_row(image, cy, plane, lane, [&](const float (&a)[4], std::uint32_t route) { emit(plane, a, route); });
  }

  // One plane of it: calls emit(a, route).
  template <class Emit>
  __device__ __forceinline__ void half_row(std::uint32_t image, int cy, int plane, int lane, Emit emit) const {
    const auto [g, t] = fragment_place(lane);
    const int cx = plane == 0 ? (g == 0 ? 1 : 2 * g - 1) : (g == 7 ? 12 : 2 * g);  // padding repeats a neighbour
    const std::uint32_t patch = image + ((2 * cy + (t >> 1)) * kImagePitch + 2 * cx + 2 * (t & 1)) * 2;
    const std::uint32_t b[2] = {load_shared_32(patch), load_shared_32(patch + 2 * kImagePitch * 2)};
    float z[4][4];
#pragma unroll
    for (int position = 0; position < 4; ++position) {
#pragma unroll
      for (int i = 0; i < 4; ++i) z[position][i] = 0.f;
#pragma unroll
      for (int term = P::kConv1Terms - 1; term >= 0; --term) mma_fp16(z[position], weight[term][position], b[0], b[1]);
    }
    float a[4];
    std::uint32_t route = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float window[4] = {z[0][i], z[1][i], z[2][i], z[3][i]};
      a[i] = pooled(window, scale[i >> 1], shift[i >> 1], false, i, route);
    }
    if (plane == 0 ? t == 0 : t == 3) route &= plane == 0 ? 0xff00ff00u : 0x00ff00ffu;
    emit(a, route);
  }
};

}  // namespace mnist::fused
