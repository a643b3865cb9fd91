// An image in shared memory, as conv1 reads it.
//
// Pixels enter the tensor cores as v, an integer that is exact there, with v = kZero outside the image: the value whose
// normalised intensity is 0. So normalisation and padding cost nothing:
//   z[c] = sum w x = kScale * (sum w v - kZero * sum w),   x = kScale * (v - kZero).
#pragma once

#include "kernels/fused/shared/numbers.cuh"
#include "kernels/fused/shared/pixels.h"
#include "kernels/fused/state.h"

namespace mnist::fused {

// An image in shared memory, padded: column x'' = x + 1.
inline constexpr int kImageRows = 30, kImagePitch = 32;
inline constexpr int kImageBytes = kImageRows * kImagePitch * 2;
inline constexpr int kImageWords = kImagePixels / 4;  // 32-bit loads of an image

template <class P>
using Pixels = std::conditional_t<std::is_same_v<typename P::T, __nv_bfloat16>, Bf16Pixels, ExactPixels>;

// The 16-bit value twice.
template <class T>
__device__ __forceinline__ std::uint32_t two_of(T value) {
  return *reinterpret_cast<const std::uint16_t*>(&value) * 0x10001u;
}

// Fills `count` image buffers with the padding's value; the interior is overwritten by store_image_word().
template <class P>
__device__ inline void clear_images(unsigned char* images, int count) {
  const std::uint32_t zeros = two_of(__float2half_rn(float(Pixels<P>::kZero)));
  for (int i = threadIdx.x; i < count * kImageBytes / 16; i += blockDim.x)
    reinterpret_cast<uint4*>(images)[i] = make_uint4(zeros, zeros, zeros, zeros);
}

// Word `i` of an image: pixels 4i .. 4i+3, all in one row.
template <class P>
__device__ __forceinline__ void store_image_word(unsigned char* image, int i, std::uint32_t word) {
  const int y = i / 7, x = i % 7 * 4;
  const auto pixel = [&](int k) { return __float2half_rn(float(Pixels<P>::of(word >> 8 * k & 255))); };
  auto* row = reinterpret_cast<__half*>(image) + (y + 1) * kImagePitch + x + 1;
  row[0] = pixel(0);
  const __half pair[2] = {pixel(1), pixel(2)};
  *reinterpret_cast<std::uint32_t*>(row + 1) = *reinterpret_cast<const std::uint32_t*>(pair);
  row[3] = pixel(3);
}

// Word i of an image of the batch.
__device__ __forceinline__ std::uint32_t load_image_word(const State& s, int graph_step, int image, int i) {
  const auto index = s.samples.order[std::size_t(graph_step) * s.batch + image];
  return reinterpret_cast<const std::uint32_t*>(s.samples.images + std::size_t(index) * kImagePixels)[i];
}

}  // namespace mnist::fused
