// The routed taps by mma.sync: the gradient of conv1's pooled cells times the 9 pixels under each window's winning
// position.
#pragma once

#include "kernels/device/lane.cuh"
#include "kernels/device/shared_memory.cuh"
#include "kernels/fused/conv2_backward/carry.cuh"
#include "kernels/fused/conv2_backward/pixel_lists.cuh"
#include "kernels/fused/shared/numbers.cuh"
#include "kernels/fused/shared/routing.cuh"

namespace mnist::fused {

// Those of one image row and 16 channels: gradient `da1` (rows = channels, columns = slots of a plane) times the pixels
// under the position that `route` names: one product a position, with the other windows' gradients masked to 0. Bit 7 -
// p of byte i of route[plane] says that value i goes to position p; shifted to the top of its byte it becomes a mask in
// one instruction. Column 9 of the result is the plain sum, bn1's d beta. `pixel_lists` is the address of the row's
// pixels; `rest` is what rounding in tf32 took from the rows before. With kSums = 4 each position has sums of its own,
// so that no product waits for the one before; they cost registers.
template <class P, int kSums>
__device__ __forceinline__ void accumulate_routed_taps(float (&routed_taps)[kSums][2][4], const float (&da1)[2][4],
                                                       const std::uint32_t (&route)[2], std::uint32_t pixel_lists,
                                                       int lane, float2 (&rest)[4], float to_stored) {
  using Q = PixelLists<P>;
  const auto [g, t] = fragment_place(lane);
  const std::uint32_t tap =
      pixel_lists + g % 3 * Q::kListBytes + g / 3 * Q::kRowBytes + t * 2 * int(sizeof(typename Q::T));
  const std::uint32_t last_tap =
      pixel_lists + 2 * Q::kListBytes + 2 * Q::kRowBytes + t * 2 * int(sizeof(typename Q::T));
  const auto at = [](int plane, int position) {
    return (2 * plane + (position & 1)) * Q::kListBytes + (position >> 1) * Q::kRowBytes;
  };
  if constexpr (sizeof(typename P::T) == 2) {
    const std::uint32_t ones = g == 1 ? P::kOnes : 0u;
    std::uint32_t packed[4];  // pairs of neighbouring slots
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* two = da1[i >> 1] + 2 * (i & 1);
      if constexpr (P::kScaled) {
        const std::uint32_t alive = route[i >> 1] >> 16 * (i & 1);
        packed[i] = pack_carrying<P>(to_stored * two[0], to_stored * two[1], rest[i], alive & 0xffu, alive & 0xff00u);
      } else {
        const auto pair = P::pack(two[0], two[1]);
        packed[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
      }
    }
#pragma unroll
    for (int position = 0; position < 4; ++position) {
      std::uint32_t a[4], b[2][2];  // b: [columns 0-7 or 8-15][plane]
#pragma unroll
      for (int plane = 0; plane < 2; ++plane) {
        b[0][plane] = load_shared_32(tap + at(plane, position));
        const std::uint32_t last = load_shared_32(last_tap + at(plane, position));
        b[1][plane] = g == 0 ? last : ones;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = packed[i] & routing_mask_16(route[i >> 1], position, i & 1);
#pragma unroll
      for (int n = 0; n < 2; ++n) P::mma(routed_taps[position % kSums][n], a, b[n][0], b[n][1]);
    }
  } else {
    const float ones = g == 1 ? 1.f : 0.f;
#pragma unroll
    for (int plane = 0; plane < 2; ++plane) {
      std::uint32_t big[4], small[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t value = __float_as_uint(da1[plane][i]);
        big[i] = big_term(value);
        small[i] = small_term(value);
      }
#pragma unroll
      for (int position = 0; position < 4; ++position) {
        float2 b[2] = {load_shared_float2(tap + at(plane, position)),
                       load_shared_float2(last_tap + at(plane, position))};
        b[1] = g == 0 ? b[1] : make_float2(ones, ones);
        std::uint32_t mask[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) mask[i] = routing_mask_32(route[plane], position, i);
        // k = t is slot 2t and k = t + 4 slot 2t + 1, the order in which a product's result lies in the registers.
        const auto multiply = [&](const std::uint32_t (&value)[4]) {
          const std::uint32_t a[4] = {value[0] & mask[0], value[2] & mask[2], value[1] & mask[1], value[3] & mask[3]};
#pragma unroll
          for (int n = 0; n < 2; ++n)
            mma_tf32(routed_taps[position % kSums][n], a, __float_as_uint(b[n].x), __float_as_uint(b[n].y));
        };
        multiply(small);
        multiply(big);
      }
    }
  }
}

}  // namespace mnist::fused
