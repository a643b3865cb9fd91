// conv1 -> bn1 -> relu -> max_pool of one row of pooled cells by warps, from the bytes of the image.
//
// Pixels enter the tensor cores as v = u - 33, exact in 16 bits, with v = kZeroPixel outside the image: the value
// whose normalised intensity is 0. So normalisation and padding cost nothing:
//   z[c] = sum w x = kPixelScale * (sum w v - kZeroPixel * sum w),   x = kPixelScale * (v - kZeroPixel).
// One m16n8k16 product has 16 channels as rows and 8 pooled cells as columns, for one of the 4 positions of the
// pooling window; k = 4*u + v runs over the taps with v = 3 and u = 3 weighted by zero. The four products of a cell
// lie in the same lane, so pooling never leaves the registers.
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

// An image in shared memory, padded, twice: `even` has column x'' = x + 1 at x'', `odd` at x'' - 1, so that a pair of
// neighbouring pixels is one aligned 32-bit word in one of them.
inline constexpr int kImageRows = 30, kImagePitch = 32;
inline constexpr int kImageCopyBytes = kImageRows * kImagePitch * 2;
inline constexpr int kImageBytes = 2 * kImageCopyBytes;
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
  union {
    Pixel v[4];
    std::uint16_t half[4];
    std::uint32_t word[2];
    uint2 both;
  } p;
#pragma unroll
  for (int k = 0; k < 4; ++k) p.v[k] = to_pixel<Pixel>(float(int(word >> 8 * k & 255) - kPixelOffset));
  auto* even = reinterpret_cast<std::uint16_t*>(image) + (y + 1) * kImagePitch + x + 1;
  even[0] = p.half[0];
  *reinterpret_cast<std::uint32_t*>(even + 1) = std::uint32_t(p.half[1]) | std::uint32_t(p.half[2]) << 16;
  even[3] = p.half[3];
  *reinterpret_cast<uint2*>(image + kImageCopyBytes + ((y + 1) * kImagePitch + x) * 2) = p.both;
}

// One warp's share: 16 of the 32 channels.
template <class P>
struct Conv1 {
  std::uint32_t weight[P::kConv1Terms][4];  // A operands of the parts
  float scale[2], shift[2];                 // of channels g and g + 8
  bool first_only[2];                       // scale is 0: every position ties, the first one wins

  __device__ void load(const void* packed, const float* bn1, int channel0, int lane) {
    const int g = lane >> 2, t = lane & 3;
    const auto* words = static_cast<const std::uint32_t*>(packed);
#pragma unroll
    for (int part = 0; part < P::kConv1Terms; ++part)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        weight[part][r] = words[(part * kConv1Channels + channel0 + g + (r & 1) * 8) * 8 + t + (r >> 1) * 4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scale[i] = bn1[channel0 + g + 8 * i];
      shift[i] = bn1[32 + channel0 + g + 8 * i];
      first_only[i] = bn1[64 + channel0 + g + 8 * i] != 0.f;
    }
  }

  // Row cy of pooled cells. Calls emit(plane, a, route) for each plane: a[0], a[1] are channel g at slots 2t and 2t+1,
  // a[2], a[3] channel g + 8; byte i of route is 0x80 >> the position that a[i] came from, or 0 where relu (or padding)
  // made a zero.
  template <class Emit>
  __device__ __forceinline__ void row(std::uint32_t image, int cy, int lane, Emit emit) const {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int plane = 0; plane < 2; ++plane) {
      const int cx = plane == 0 ? (g == 0 ? 1 : 2 * g - 1) : (g == 7 ? 12 : 2 * g);  // padding repeats a neighbour
      std::uint32_t b[4][2];
#pragma unroll
      for (int position = 0; position < 4; ++position) {
        const std::uint32_t corner = image + (position & 1) * kImageCopyBytes +
                                     ((2 * cy + (position >> 1)) * kImagePitch + 2 * cx + 2 * (t & 1)) * 2;
        b[position][0] = load_shared_32(corner + (t >> 1) * kImagePitch * 2);
        b[position][1] = load_shared_32(corner + 2 * kImagePitch * 2);
      }
      float z[4][4];
#pragma unroll
      for (int position = 0; position < 4; ++position) {
#pragma unroll
        for (int i = 0; i < 4; ++i) z[position][i] = 0.f;
#pragma unroll
        for (int part = P::kConv1Terms - 1; part >= 0; --part) {
          if constexpr (std::is_same_v<typename P::Pixel, __half>)
            mma_fp16(z[position], weight[part], b[position][0], b[position][1]);
          else
            mma_bf16(z[position], weight[part], b[position][0], b[position][1]);
        }
      }
      float a[4];
      int where[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int c = i >> 1;
        float best = z[0][i];
        where[i] = 0x80;
#pragma unroll
        for (int position = 1; position < 4; ++position)
          if (z[position][i] > best && !first_only[c]) best = z[position][i], where[i] = 0x80 >> position;
        a[i] = relu_keep_nan(fmaf(scale[c], best, shift[c]));
        const bool padding = plane == 0 ? (t == 0 && (i & 1) == 0) : (t == 3 && (i & 1) == 1);
        if (padding) a[i] = 0.f;
        if (a[i] == 0.f) where[i] = 0;
      }
      emit(plane, a, std::uint32_t(where[0] | where[1] << 8 | where[2] << 16 | where[3] << 24));
    }
  }
};

}  // namespace mnist::fused
