// Part of B2: G, the gradient of conv1's pooled cells times the 9 pixels under each window's winning position.
#pragma once

#include "kernels/fused/conv1.cuh"

namespace mnist::fused {

// The pixels of an image for G: one list of 8 for each row and x'' mod 4, x'' = x + 1, because the cells of a plane are
// 4 pixels apart; so the pixels of two neighbouring slots are neighbours. Lists in memory: x'' = 4j - 2, 4j - 1, 4j, 4j
// + 1, 4j + 2, 4j + 3 at index j. A window in plane 0 begins at 4j - 2, in plane 1 at 4j. Lists are 35 rows apart,
// which keeps the 8 taps of a load in different banks.
template <class P>
struct Quads {
  using T = std::conditional_t<sizeof(typename P::T) == 2, typename P::Pixel, float>;
  static constexpr int kRowBytes = 8 * sizeof(T), kListBytes = 35 * kRowBytes, kBytes = 6 * kListBytes;
  static __device__ __forceinline__ T value(float v) {
    if constexpr (sizeof(T) == 2)
      return to_pixel<T>(v);
    else
      return v;
  }
  // Of a word, the j-th of a row: calls store(list, i, value) for each place of its pixels, index j + i of the list.
  template <class Store>
  static __device__ __forceinline__ void spread(std::uint32_t word, Store store) {
    const auto pixel = [&](int k) { return value(float(int(word >> 8 * k & 255) - kPixelOffset)); };
    store(3, 0, pixel(0));
    const T second = pixel(1);
    store(0, 1, second);
    store(4, 0, second);
    const T third = pixel(2);
    store(1, 1, third);
    store(5, 0, third);
    store(2, 1, pixel(3));
  }
  // Word j of row y of the padded image.
  static __device__ __forceinline__ void store_word(unsigned char* quads, int y, int j, std::uint32_t word) {
    auto* lists = reinterpret_cast<T*>(quads + y * kRowBytes) + j;
    spread(word, [&](int list, int at, T v) { lists[list * (kListBytes / int(sizeof(T))) + at] = v; });
  }
  static __device__ __forceinline__ void clear(unsigned char* quads, int tid) {
    for (int i = tid; i < kBytes / int(sizeof(T)); i += kConvThreads)
      reinterpret_cast<T*>(quads)[i] = value(kZeroPixel);
  }
};

// G of one image row and 16 channels: gradient `da1` (rows = channels, columns = slots of a plane) times the pixels
// under the position that `route` names: one product a position, with the other windows' gradients masked to 0. Bit 7 -
// p of byte i of route[plane] says that value i goes to position p; shifted to the top of its byte it becomes a mask in
// one instruction. Column 9 of the result is the plain sum, bn1's d beta. `quads` is the address of the row's pixels.
// With kSums = 4 each position has sums of its own, so that no product waits for the one before; they cost registers.
template <class P, int kSums>
__device__ __forceinline__ void accumulate_g1(float (&g1)[kSums][2][4], const float (&da1)[2][4],
                                              const std::uint32_t (&route)[2], std::uint32_t quads, int lane) {
  using Q = Quads<P>;
  const int g = lane >> 2, t = lane & 3;
  const std::uint32_t tap = quads + g % 3 * Q::kListBytes + g / 3 * Q::kRowBytes + t * 2 * int(sizeof(typename Q::T));
  const std::uint32_t last_tap = quads + 2 * Q::kListBytes + 2 * Q::kRowBytes + t * 2 * int(sizeof(typename Q::T));
  const auto at = [](int plane, int position) {
    return (2 * plane + (position & 1)) * Q::kListBytes + (position >> 1) * Q::kRowBytes;
  };
  if constexpr (sizeof(typename P::T) == 2) {
    const std::uint32_t ones = g == 1 ? 0x3f803f80u : 0u;
    std::uint32_t packed[4];  // pairs of neighbouring slots
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(da1[i >> 1][2 * (i & 1)], da1[i >> 1][2 * (i & 1) + 1]);
      packed[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
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
      for (int i = 0; i < 4; ++i) a[i] = packed[i] & permute_bytes(route[i >> 1] << position, i & 1 ? 0xbbaa : 0x9988);
#pragma unroll
      for (int n = 0; n < 2; ++n) mma_bf16(g1[position % kSums][n], a, b[n][0], b[n][1]);
    }
  } else {
    const float ones = g == 1 ? 1.f : 0.f;
#pragma unroll
    for (int plane = 0; plane < 2; ++plane) {
      std::uint32_t big[4], small[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t value = __float_as_uint(da1[plane][i]);
        big[i] = P::kDrainAccumulators ? big_part(value) : __float_as_uint(P::store(da1[plane][i]));
        small[i] = P::kDrainAccumulators ? small_part(value) : 0;
      }
#pragma unroll
      for (int position = 0; position < 4; ++position) {
        float2 b[2] = {load_shared_float2(tap + at(plane, position)),
                       load_shared_float2(last_tap + at(plane, position))};
        b[1] = g == 0 ? b[1] : make_float2(ones, ones);
        std::uint32_t mask[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) mask[i] = permute_bytes(route[plane] << position, 0x8888 + i * 0x1111);
        // k = t is slot 2t and k = t + 4 slot 2t + 1, the order in which a product's result lies in the registers.
        const auto multiply = [&](const std::uint32_t (&value)[4]) {
          const std::uint32_t a[4] = {value[0] & mask[0], value[2] & mask[2], value[1] & mask[1], value[3] & mask[3]};
#pragma unroll
          for (int n = 0; n < 2; ++n)
            mma_tf32(g1[position % kSums][n], a, __float_as_uint(b[n].x), __float_as_uint(b[n].y));
        };
        if constexpr (P::kDrainAccumulators) multiply(small);
        multiply(big);
      }
    }
  }
}

}  // namespace mnist::fused
