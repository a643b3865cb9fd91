// conv2d, tensor cores: register_tiled's planes and filters in shared memory, multiplied in tf32; 64 output channels by
// 32 positions a warp.
#include <algorithm>

#include "cuda/check.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/device/mma.cuh"
#include "mnist/model.h"

namespace mnist::kernels {
namespace {

constexpr int kPlanes = 8;                        // input channels in shared memory at a time: the depth of a product
constexpr int kRowTiles = 4, kPositionTiles = 4;  // 16x8 products of a warp: 16 output channels, 8 positions of a row
constexpr int kOutputs = 16 * kRowTiles;          // of a block
constexpr int kWarps = 7, kThreads = 32 * kWarps;
constexpr int kTiles = kWarps * kPositionTiles;  // of 8 positions, of a block: an image with sides of 14
constexpr int kTerms = kPlanes * kTaps;
// Distances in shared memory by which the 32 lanes of a fragment fall on 32 banks: (12 g + 9 t) % 32 for the filters,
// (g + 8 t) % 32 for the planes.
constexpr int kFilterPitch = kTerms + 4;
constexpr int plane_pitch(int plane) { return (plane + 23) / 32 * 32 + 8; }

// Tap (u,v) is a product of its own: 64 output channels by 8 input channels times 8 input channels by positions, which
// lie side by side in a plane, u rows and v columns from their place.
//
// blockIdx.x = b, blockIdx.y = which `rows` of y, blockIdx.z = which 64 output channels. A row of y is `tiles` tiles.
__global__ void __launch_bounds__(kThreads, 2)
    conv2d_forward_tensor_cores_kernel(float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ w,
                                       const float* __restrict__ bias, int in, int out, int side, int rows, int tiles) {
  extern __shared__ std::uint32_t shared[];
  const int thread = int(threadIdx.x), warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
  const int pitch = 8 * tiles + 2, plane = (rows + 2) * pitch, distance = plane_pitch(plane), area = side * side;
  const int first_row = int(blockIdx.y) * rows, first_out = int(blockIdx.z) * kOutputs;
  std::uint32_t* filters = shared;                            // [kOutputs][kFilterPitch]
  std::uint32_t* planes = filters + kOutputs * kFilterPitch;  // [kPlanes][rows + 2][pitch], `distance` apart
  const float* image = x + std::int64_t(blockIdx.x) * in * area;
  int row[kPositionTiles], column[kPositionTiles];
  for (int c = 0; c < kPositionTiles; ++c) {
    const int tile = min(warp * kPositionTiles + c, rows * tiles - 1);
    row[c] = tile / tiles;
    column[c] = tile % tiles * 8;
  }
  float sums[kRowTiles][kPositionTiles][4] = {};

  for (int i0 = 0; i0 < in; i0 += kPlanes) {
    const int count = min(kPlanes, in - i0);
    for (int n = thread; n < plane; n += kThreads) {
      const int r = first_row + n / pitch - 1, s = n % pitch - 1;
      const bool inside = r >= 0 && r < side && s >= 0 && s < side;
      const float* from = image + i0 * area + r * side + s;
#pragma unroll
      for (int i = 0; i < kPlanes; ++i)
        planes[i * distance + n] = device::to_tf32(inside && i < count ? from[i * area] : 0);
    }
#pragma unroll 7
    for (int n = thread; n < kOutputs * kTerms; n += kThreads) {
      const int o = n / kTerms, k = n % kTerms;
      const bool inside = first_out + o < out && k < count * kTaps;
      filters[o * kFilterPitch + k] = device::to_tf32(inside ? w[((first_out + o) * in + i0) * kTaps + k] : 0);
    }
    __syncthreads();  // planes and filters are complete
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      std::uint32_t a[kRowTiles][4], b[kPositionTiles][2];
      for (int r = 0; r < kRowTiles; ++r)
        for (int e = 0; e < 4; ++e)
          a[r][e] = filters[(16 * r + g + 8 * (e % 2)) * kFilterPitch + (t + 4 * (e / 2)) * kTaps + tap];
      for (int c = 0; c < kPositionTiles; ++c)
        for (int e = 0; e < 2; ++e)
          b[c][e] = planes[(t + 4 * e) * distance + (row[c] + tap / 3) * pitch + column[c] + g + tap % 3];
      for (int r = 0; r < kRowTiles; ++r)
        for (int c = 0; c < kPositionTiles; ++c) device::mma_tf32(sums[r][c], a[r], b[c]);
    }
    __syncthreads();  // everyone is done with them
  }
  for (int r = 0; r < kRowTiles; ++r)
    for (int e = 0; e < 4; ++e) {
      const int o = first_out + 16 * r + g + 8 * (e / 2);
      if (o >= out) continue;
      float* to = y + (std::int64_t(blockIdx.x) * out + o) * area;
      const float constant = bias[o];
      for (int c = 0; c < kPositionTiles; ++c) {
        const int p = first_row + row[c], q = column[c] + 2 * t + e % 2;
        const bool own = warp * kPositionTiles + c < rows * tiles;
        if (own && p < side && q < side) to[p * side + q] = sums[r][c][e] + constant;
      }
    }
}

}  // namespace

void conv2d_forward_tensor_cores(float* y, const float* x, const float* w, const float* bias, std::int64_t batch,
                                 int in, int out, int side, cudaStream_t stream) {
  constexpr int kMaxSide = 8 * kTiles;
  MNIST_REQUIRE(side <= kMaxSide, "conv2d_forward_tensor_cores: side is " << side << ", expected at most " << kMaxSide);
  const auto up = [](int a, int b) { return (a + b - 1) / b; };
  const int tiles = up(side, 8), rows = std::min(kTiles / tiles, side);
  const dim3 grid(unsigned(batch), unsigned(up(side, rows)), unsigned(up(out, kOutputs)));
  const int words = kOutputs * kFilterPitch + kPlanes * plane_pitch((rows + 2) * (8 * tiles + 2));
  conv2d_forward_tensor_cores_kernel<<<grid, kThreads, words * sizeof(float), stream>>>(y, x, w, bias, in, out, side,
                                                                                        rows, tiles);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
