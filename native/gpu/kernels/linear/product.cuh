// product: the matrix products that linear's three passes are, in 128x64 tiles with 8x8 outputs a thread.
//
// c (rows, columns) = sum over k < depth of a(row, k) * b(column, k). `Along` says of a factor that k lies side by side
// in it, (row, k); else it is (k, row). So y = x w^T is a product of two that lie along, dx = dy w of one along and one
// not, dw = dy^T x of two that do not.
#pragma once

#include <cstdint>

namespace mnist::kernels {

inline constexpr int kProductRows = 128, kProductColumns = 64;  // of a block
inline constexpr int kProductDepth = 16;                        // of the summed index, at a time
inline constexpr int kProductThreads = 128;

// A factor's tile on its way through registers: kCount lines by 16 of the summed index.
template <int kCount, bool kAlong>
class ProductTile {
 public:
  static constexpr int kPitch = kCount + 4;  // of the tile in shared memory, [k][line]

  // Lines [first, first + kCount), summed index [k, k + 16); 0 beyond `lines` and `end`. `pitch`: of the matrix, depth
  // or lines. `vector`: four neighbours lie at a multiple of 16 bytes.
  __device__ void load(const float* __restrict__ matrix, int first, int lines, int k, int end, int pitch, bool vector) {
#pragma unroll
    for (int n = 0; n < kFours; ++n) {
      const int line = first + line_of(n), at = k + k_of(n), left = kAlong ? end - at : lines - line;
      const float* from = matrix + (kAlong ? std::int64_t(line) * pitch + at : std::int64_t(at) * pitch + line);
      const bool inside = kAlong ? line < lines : at < end;
      if (vector && inside && left >= 4)
        fours_[n] = *reinterpret_cast<const float4*>(from);
      else
        fours_[n] = make_float4(inside && left > 0 ? from[0] : 0, inside && left > 1 ? from[1] : 0,
                                inside && left > 2 ? from[2] : 0, inside && left > 3 ? from[3] : 0);
    }
  }

  __device__ void store(float (*tile)[kPitch]) const {
#pragma unroll
    for (int n = 0; n < kFours; ++n) {
      const int line = line_of(n), k = k_of(n);
      const float4 four = fours_[n];
      if constexpr (kAlong) {
        tile[k][line] = four.x;
        tile[k + 1][line] = four.y;
        tile[k + 2][line] = four.z;
        tile[k + 3][line] = four.w;
      } else {
        *reinterpret_cast<float4*>(&tile[k][line]) = four;
      }
    }
  }

 private:
  static constexpr int kFours = kCount * kProductDepth / 4 / kProductThreads;  // of a thread

  static __device__ int line_of(int n) {
    const int at = int(threadIdx.x) + n * kProductThreads;
    return kAlong ? at / (kProductDepth / 4) : at % (kCount / 4) * 4;
  }
  static __device__ int k_of(int n) {
    const int at = int(threadIdx.x) + n * kProductThreads;
    return kAlong ? at % (kProductDepth / 4) * 4 : at / (kCount / 4);
  }

  float4 fours_[kFours];
};

struct Eight {
  float of[8];
};

// The four at `from`, a multiple of 16 bytes, and the four at a distance from them.
__device__ inline Eight eight(const float* from, int distance) {
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + distance);
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

// Shared memory of a block: two stages of both tiles, [k][line].
inline constexpr int kProductAPitch = ProductTile<kProductRows, true>::kPitch;
inline constexpr int kProductBPitch = ProductTile<kProductColumns, true>::kPitch;
inline constexpr int kProductFloats = 2 * kProductDepth * (kProductAPitch + kProductBPitch);

// The tile of c, a (rows, columns) matrix, from first_row and first_column on, over begin <= k < end of `depth` terms;
// `begin` is a multiple of 16, `shared` has kProductFloats. `vector`: four neighbours lie at a multiple of 16 bytes.
template <bool kAAlong, bool kBAlong>
__device__ void multiply_tile(float* shared, float* __restrict__ c, const float* __restrict__ a,
                              const float* __restrict__ b, int rows, int columns, int depth, int first_row,
                              int first_column, int begin, int end, bool vector) {
  auto a_tiles = reinterpret_cast<float (*)[kProductDepth][kProductAPitch]>(shared);
  auto b_tiles =
      reinterpret_cast<float (*)[kProductDepth][kProductBPitch]>(shared + 2 * kProductDepth * kProductAPitch);
  // A thread has rows ty and 64 + ty and columns tx and 32 + tx, each with the three after it.
  const int tx = int(threadIdx.x) % 8 * 4, ty = int(threadIdx.x) / 8 * 4;
  float sums[8][8] = {};
  ProductTile<kProductRows, kAAlong> next_a;
  ProductTile<kProductColumns, kBAlong> next_b;
  const auto load = [&](int k) {
    next_a.load(a, first_row, rows, k, end, kAAlong ? depth : rows, vector);
    next_b.load(b, first_column, columns, k, end, kBAlong ? depth : columns, vector);
  };
  load(begin);
  int stage = 0;
  for (int k0 = begin; k0 < end; k0 += kProductDepth, stage ^= 1) {
    next_a.store(a_tiles[stage]);
    next_b.store(b_tiles[stage]);
    __syncthreads();  // both tiles are complete, and everyone is done with the other stage
    if (k0 + kProductDepth < end) load(k0 + kProductDepth);  // latency hiding: they travel while the loop multiplies
#pragma unroll
    for (int k = 0; k < kProductDepth; ++k) {
      const Eight left = eight(&a_tiles[stage][k][ty], kProductRows / 2);
      const Eight right = eight(&b_tiles[stage][k][tx], kProductColumns / 2);
#pragma unroll
      for (int r = 0; r < 8; ++r)
#pragma unroll
        for (int n = 0; n < 8; ++n) sums[r][n] += left.of[r] * right.of[n];
    }
  }
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    const int row = first_row + r / 4 * (kProductRows / 2) + ty + r % 4;
    if (row >= rows) continue;
#pragma unroll
    for (int n = 0; n < 8; n += 4) {
      const int column = first_column + n / 4 * (kProductColumns / 2) + tx;
      float* to = c + std::int64_t(row) * columns + column;
      if (vector && column + 3 < columns) {
        *reinterpret_cast<float4*>(to) = make_float4(sums[r][n], sums[r][n + 1], sums[r][n + 2], sums[r][n + 3]);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (column + k < columns) to[k] = sums[r][n + k];
      }
    }
  }
}

// blockIdx.x = which 64 columns, blockIdx.y = which 128 rows, blockIdx.z = which `slice` of the summed index, a
// multiple of 16; c[slice,row,column].
template <bool kAAlong, bool kBAlong>
__global__ void __launch_bounds__(kProductThreads, 3)
    product_kernel(float* __restrict__ c, const float* __restrict__ a, const float* __restrict__ b, int rows,
                   int columns, int depth, int slice, bool vector) {
  __shared__ __align__(16) float shared[kProductFloats];
  const int begin = int(blockIdx.z) * slice;
  multiply_tile<kAAlong, kBAlong>(shared, c + std::int64_t(blockIdx.z) * rows * columns, a, b, rows, columns, depth,
                                  int(blockIdx.y) * kProductRows, int(blockIdx.x) * kProductColumns, begin,
                                  min(begin + slice, depth), vector);
}

}  // namespace mnist::kernels
