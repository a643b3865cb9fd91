// linear, tensor cores: 128x64 outputs a block, 64x32 a warp, in tf32, and the next tiles on their way.
#include "cuda/check.h"
#include "kernels/device/mma.cuh"
#include "kernels/linear/linear.h"
#include "kernels/linear/product.cuh"
#include "kernels/linear/slices.h"

namespace mnist::kernels {
namespace {

constexpr int kRowTiles = 4, kColumnTiles = 4;  // 16x8 products of a warp: 64x32
using XTile = device::ProductTile<device::kProductRows, true>;
using WTile = device::ProductTile<device::kProductColumns, true>;

// blockIdx.x = which 64 outputs, blockIdx.y = which 128 rows, blockIdx.z = which slice; warps 0..3 take the quarters of
// the tile.
__global__ void __launch_bounds__(device::kProductThreads, 3)
    linear_forward_tensor_cores_kernel(float* __restrict__ partial, const float* __restrict__ x,
                                       const float* __restrict__ w, int batch, int in, int out, int slice,
                                       bool vector) {
  // (20 g + t) % 32 differs for the 32 lanes of a fragment, so no conflicts.
  __shared__ __align__(16) float x_tiles[2][device::kProductRows][XTile::kLinePitch];
  __shared__ __align__(16) float w_tiles[2][device::kProductColumns][WTile::kLinePitch];
  const int first_row = int(blockIdx.y) * device::kProductRows, first_out = int(blockIdx.x) * device::kProductColumns;
  const int warp = int(threadIdx.x) / 32, g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
  const int row0 = warp / 2 * (16 * kRowTiles), column0 = warp % 2 * (8 * kColumnTiles);
  const int begin = int(blockIdx.z) * slice, end = min(begin + slice, in);
  float sums[kRowTiles][kColumnTiles][4] = {};
  XTile next_x;
  WTile next_w;
  const auto load = [&](int k) {
    next_x.load(x, first_row, batch, k, end, in, vector);
    next_w.load(w, first_out, out, k, end, in, vector);
  };
  const auto round = [](float value) { return __uint_as_float(device::to_tf32(value)); };
  load(begin);
  int stage = 0;
  for (int k0 = begin; k0 < end; k0 += device::kProductDepth, stage ^= 1) {
    next_x.store_lines(x_tiles[stage], round);
    next_w.store_lines(w_tiles[stage], round);
    __syncthreads();  // both tiles are complete, and everyone is done with those before the last
    if (k0 + device::kProductDepth < end) load(k0 + device::kProductDepth);
#pragma unroll
    for (int k = 0; k < device::kProductDepth; k += 8) {
      std::uint32_t a[kRowTiles][4], b[kColumnTiles][2];
      for (int r = 0; r < kRowTiles; ++r)
        for (int e = 0; e < 4; ++e)
          a[r][e] = __float_as_uint(x_tiles[stage][row0 + 16 * r + g + 8 * (e % 2)][k + t + 4 * (e / 2)]);
      for (int c = 0; c < kColumnTiles; ++c)
        for (int e = 0; e < 2; ++e) b[c][e] = __float_as_uint(w_tiles[stage][column0 + 8 * c + g][k + t + 4 * e]);
      for (int r = 0; r < kRowTiles; ++r)
        for (int c = 0; c < kColumnTiles; ++c) device::mma_tf32(sums[r][c], a[r], b[c]);
    }
  }
  for (int r = 0; r < kRowTiles; ++r)
    for (int c = 0; c < kColumnTiles; ++c)
      for (int e = 0; e < 4; ++e) {
        const int row = first_row + row0 + 16 * r + g + 8 * (e / 2);
        const int o = first_out + column0 + 8 * c + 2 * t + e % 2;
        if (row < batch && o < out) partial[(std::int64_t(blockIdx.z) * batch + row) * out + o] = sums[r][c][e];
      }
}

}  // namespace

void linear_forward_tensor_cores(float* y, float* partial, const float* x, const float* w, const float* bias,
                                 std::int64_t batch, int in, int out, cudaStream_t stream) {
  const auto slices = linear_slices(kLinearProductTile, batch, out, in);
  const bool vector = in % 4 == 0 && device::lies_in_fours(x) && device::lies_in_fours(w);
  linear_forward_tensor_cores_kernel<<<device::product_grid(int(batch), out, slices.count), device::kProductThreads, 0,
                                       stream>>>(partial, x, w, int(batch), in, out, slices.depth, vector);
  MNIST_CHECK_LAUNCH();
  linear_add_slices(y, partial, bias, batch, out, slices.count, stream);
}

}  // namespace mnist::kernels
