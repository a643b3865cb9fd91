// wide: one number or four neighbours at a time, where planes allow it.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/chunks.h"

namespace mnist::kernels::device {

template <int kWidth>
struct Wide {
  float of[kWidth];
};

template <int kWidth>
__device__ Wide<kWidth> load(const float* from) {
  if constexpr (kWidth == 4) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    return {{four.x, four.y, four.z, four.w}};
  } else {
    static_assert(kWidth == 1);
    return {{*from}};
  }
}

template <int kWidth>
__device__ void store(float* to, const Wide<kWidth>& values) {
  if constexpr (kWidth == 4)
    *reinterpret_cast<float4*>(to) = make_float4(values.of[0], values.of[1], values.of[2], values.of[3]);
  else
    *to = values.of[0];
}

// Whether planes of `area` numbers in `arrays` may be read by four.
inline bool is_wide(int area, std::initializer_list<const void*> arrays) {
  bool wide = area % 4 == 0;
  for (const void* array : arrays) wide &= reinterpret_cast<std::uintptr_t>(array) % sizeof(float4) == 0;
  return wide;
}

// The numbers of channel blockIdx.x in the images of a chunk, by default blockIdx.y, of a (B,C,A) tensor, by kWidth at
// a time; gridDim = (channels, chunks).
template <int kWidth>
struct WideChunk {
  int size, in_plane;
  std::int64_t begin;  // the first image
  int channels, c;

  __device__ WideChunk(std::int64_t batch, int area, unsigned chunk = blockIdx.y)
      : in_plane(area / kWidth),
        begin(naive::chunk_begin(chunk, gridDim.y, batch)),
        channels(int(gridDim.x)),
        c(int(blockIdx.x)) {
    size = int(naive::chunk_begin(chunk + 1, gridDim.y, batch) - begin) * in_plane;
  }

  // Where group n < size of them starts.
  __device__ std::int64_t at(int n) const {
    const int image = n / in_plane;
    return (((begin + image) * channels + c) * in_plane + n - image * in_plane) * kWidth;
  }
};

}  // namespace mnist::kernels::device
