// linear, tensor cores: 64x64 outputs a block, 32x32 a warp, in tf32.
#include "cuda/check.h"
#include "kernels/device/mma.cuh"
#include "kernels/linear/linear.h"
#include "kernels/linear/slices.h"

namespace mnist::kernels {
namespace {

constexpr int kTile = kLinearRegisterTile.rows;  // outputs of a block, either way
constexpr int kDepth = 32;                       // of the summed index, at a time
constexpr int kPitch = 36;  // of a tile's row: (4 g + t) % 32 differs for the 32 lanes of a fragment, so no conflicts
constexpr int kThreads = 128;
constexpr int kRowTiles = 2, kColumnTiles = 4;  // 16x8 products of a warp: 32x32
static_assert(kLinearSliceUnit % kDepth == 0);

// rows [first, first + 64) x [depth, depth + 32) of a row-major matrix, rounded to tf32; 0 outside.
__device__ void load_tile(std::uint32_t (*tile)[kPitch], const float* __restrict__ matrix, std::int64_t first,
                          std::int64_t rows, int depth, int in) {
  for (int n = int(threadIdx.x); n < kTile * kDepth; n += kThreads) {
    const int k = n % kDepth, row = n / kDepth;
    const bool inside = first + row < rows && depth + k < in;
    tile[row][k] = device::to_tf32(inside ? matrix[(first + row) * in + depth + k] : 0);
  }
}

// blockIdx.x = which 64 rows, blockIdx.y = which 64 outputs, blockIdx.z = which slice; warps 0..3 take the quarters of
// the tile.
__global__ void linear_forward_tensor_cores_kernel(float* __restrict__ partial, const float* __restrict__ x,
                                                   const float* __restrict__ w, std::int64_t batch, int in, int out,
                                                   int slice) {
  __shared__ std::uint32_t x_tile[kTile][kPitch], w_tile[kTile][kPitch];
  const std::int64_t first_row = std::int64_t(blockIdx.x) * kTile;
  const int first_out = int(blockIdx.y) * kTile;
  const int warp = int(threadIdx.x) / 32, g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
  const int row0 = warp / 2 * 32, column0 = warp % 2 * 32;
  float sums[kRowTiles][kColumnTiles][4] = {};
  const int begin = int(blockIdx.z) * slice, end = min(begin + slice, in);
  for (int depth = begin; depth < end; depth += kDepth) {
    load_tile(x_tile, x, first_row, batch, depth, in);
    load_tile(w_tile, w, first_out, out, depth, in);
    __syncthreads();  // both tiles are complete
#pragma unroll
    for (int k = 0; k < kDepth; k += 8) {
      std::uint32_t a[kRowTiles][4], b[kColumnTiles][2];
      for (int r = 0; r < kRowTiles; ++r)
        for (int e = 0; e < 4; ++e) a[r][e] = x_tile[row0 + 16 * r + g + 8 * (e % 2)][k + t + 4 * (e / 2)];
      for (int c = 0; c < kColumnTiles; ++c)
        for (int e = 0; e < 2; ++e) b[c][e] = w_tile[column0 + 8 * c + g][k + t + 4 * e];
      for (int r = 0; r < kRowTiles; ++r)
        for (int c = 0; c < kColumnTiles; ++c) device::mma_tf32(sums[r][c], a[r], b[c]);
    }
    __syncthreads();  // everyone is done with them
  }
  for (int r = 0; r < kRowTiles; ++r)
    for (int c = 0; c < kColumnTiles; ++c)
      for (int e = 0; e < 4; ++e) {
        const std::int64_t row = first_row + row0 + 16 * r + g + 8 * (e / 2);
        const int o = first_out + column0 + 8 * c + 2 * t + e % 2;
        if (row < batch && o < out) partial[(blockIdx.z * batch + row) * out + o] = sums[r][c][e];
      }
}

}  // namespace

void linear_forward_tensor_cores(float* y, float* partial, const float* x, const float* w, const float* bias,
                                 std::int64_t batch, int in, int out, cudaStream_t stream) {
  const auto slices = linear_slices(kLinearRegisterTile, batch, out, in);
  const dim3 grid(unsigned((batch + kTile - 1) / kTile), unsigned((out + kTile - 1) / kTile), unsigned(slices.count));
  linear_forward_tensor_cores_kernel<<<grid, kThreads, 0, stream>>>(partial, x, w, batch, in, out, slices.depth);
  MNIST_CHECK_LAUNCH();
  linear_add_slices(y, partial, bias, batch, out, slices.count, stream);
}

}  // namespace mnist::kernels
