// conv1 -> bn1 -> relu -> max_pool of one row of pooled cells by warps, from the bytes of the image.
//
// Pixels enter the tensor cores as v = u - 33, exact in 16 bits, with v = kZeroPixel outside the image: the value
// whose normalised intensity is 0. So normalisation and padding cost nothing:
//   z[c] = sum w x = kPixelScale * (sum w v - kZeroPixel * sum w),   x = kPixelScale * (v - kZeroPixel).
// A cell's pooling window sees 4 x 4 pixels, just one k-step of an m16n8k16 product: 16 channels as rows, 8 pooled
// cells as columns, k = 4 * row + column of the patch. The filter at each of the window's 4 positions is an A operand
// of its own, shifted within zeros, so that one load of the pixels serves four products. Their results for a cell lie
// in the same lane: pooling never leaves the registers.
//
// A row of 14 cells is handled, here and in conv3x3.cuh, as two planes of 8 slots: padded column x' = x + 1 lies in
// plane x' & 1, slot x' >> 1. Cells of one plane are two pixels apart in every direction that matters, which makes
// each tap a constant shift and keeps shared memory free of bank conflicts. Slot 0 of plane 0 and slot 7 of plane 1
// are padding.
#pragma once

#include "kernels/fused/conv1_constants.h"
#include "kernels/fused/policy.cuh"

namespace mnist::fused {

inline constexpr float kZeroPixel = float(kZeroPixelExact);

// An image in shared memory, padded: column x'' = x + 1.
inline constexpr int kImageRows = 30, kImagePitch = 32;
inline constexpr int kImageBytes = kImageRows * kImagePitch * 2;
inline constexpr int kImageWords = kImagePixels / 4;  // 32-bit loads of an image

template <class Pixel>
__device__ __forceinline__ Pixel to_pixel(float v) {
  if constexpr (sizeof(Pixel) == 2 && !std::is_same_v<Pixel, __half>)
    return __float2bfloat16_rn(v);
  else
    return __float2half_rn(v);
}
template <class Pixel>
__device__ __forceinline__ float from_pixel(Pixel v) {
  if constexpr (std::is_same_v<Pixel, __half>)
    return __half2float(v);
  else
    return __bfloat162float(v);
}

template <class P>
__device__ __forceinline__ std::uint32_t two_padding_pixels() {
  const auto pixel = to_pixel<typename P::Pixel>(kZeroPixel);
  return *reinterpret_cast<const std::uint16_t*>(&pixel) * 0x10001u;
}

// Fills `count` image buffers with the padding's value; the interior is overwritten by store_image_word().
template <class P>
__device__ void clear_images(unsigned char* images, int count) {
  const std::uint32_t zeros = two_padding_pixels<P>();
  for (int i = threadIdx.x; i < count * kImageBytes / 16; i += blockDim.x)
    reinterpret_cast<uint4*>(images)[i] = make_uint4(zeros, zeros, zeros, zeros);
}

// Word `i` of an image: pixels 4i .. 4i+3, all in one row.
template <class P>
__device__ __forceinline__ void store_image_word(unsigned char* image, int i, std::uint32_t word) {
  using Pixel = typename P::Pixel;
  const int y = i / 7, x = i % 7 * 4;
  const auto pixel = [&](int k) { return to_pixel<Pixel>(float(int(word >> 8 * k & 255) - kPixelOffset)); };
  auto* row = reinterpret_cast<Pixel*>(image) + (y + 1) * kImagePitch + x + 1;
  row[0] = pixel(0);
  const Pixel pair[2] = {pixel(1), pixel(2)};
  *reinterpret_cast<std::uint32_t*>(row + 1) = *reinterpret_cast<const std::uint32_t*>(pair);
  row[3] = pixel(3);
}

// bn1, relu and pooling of a window's four positions. Byte `byte` of route gets 0x80 >> the position that the value
// came from, or stays 0 where relu made a zero or the cell is padding.
__device__ __forceinline__ float pooled(const float (&z)[4], float scale, float shift, bool padding, int byte,
                                        std::uint32_t& route) {
  const float best = fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3]));
  std::uint32_t where = 0x10u << 8 * byte;  // the first of equals wins
  where = z[2] == best ? 0x20u << 8 * byte : where;
  where = z[1] == best ? 0x40u << 8 * byte : where;
  where = z[0] == best ? 0x80u << 8 * byte : where;
  const float value = fmaf(scale, best, shift);
  const bool dead = value <= 0.f || padding;  // not NaN
  route |= dead ? 0u : where;
  return dead ? 0.f : value;
}

// One warp's share: 16 of the 32 channels.
template <class P>
struct Conv1 {
  std::uint32_t weight[P::kConv1Terms][4][4];  // A operands: of a part, at a position
  float scale[2], shift[2];                    // of channels g and g + 8

  __device__ __forceinline__ void load(const void* packed, const float* bn1, int channel0, int lane) {
    const int g = lane >> 2, t = lane & 3;
    const auto* words = static_cast<const std::uint32_t*>(packed);
#pragma unroll
    for (int part = 0; part < P::kConv1Terms; ++part)
#pragma unroll
      for (int position = 0; position < 4; ++position)
#pragma unroll
        for (int r = 0; r < 4; ++r)
          weight[part][position][r] =
              words[((part * 4 + position) * kConv1Channels + channel0 + g + (r & 1) * 8) * 8 + t + (r >> 1) * 4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int channel = channel0 + g + 8 * i;
      scale[i] = bn1[channel] * bn1[96 + channel];
      shift[i] = bn1[32 + channel];
    }
  }

  // From here on a is in units of `unit`.
  __device__ __forceinline__ void divide(float unit) {
#pragma unroll
    for (int i = 0; i < 2; ++i) scale[i] /= unit, shift[i] /= unit;
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
    const int g = lane >> 2, t = lane & 3;
    const int cx = plane == 0 ? (g == 0 ? 1 : 2 * g - 1) : (g == 7 ? 12 : 2 * g);  // padding repeats a neighbour
    const std::uint32_t patch = image + ((2 * cy + (t >> 1)) * kImagePitch + 2 * cx + 2 * (t & 1)) * 2;
    const std::uint32_t b[2] = {load_shared_32(patch), load_shared_32(patch + 2 * kImagePitch * 2)};
    float z[4][4];
#pragma unroll
    for (int position = 0; position < 4; ++position) {
#pragma unroll
      for (int i = 0; i < 4; ++i) z[position][i] = 0.f;
#pragma unroll
      for (int part = P::kConv1Terms - 1; part >= 0; --part) {
        if constexpr (std::is_same_v<typename P::Pixel, __half>)
          mma_fp16(z[position], weight[part][position], b[0], b[1]);
        else
          mma_bf16(z[position], weight[part][position], b[0], b[1]);
      }
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
