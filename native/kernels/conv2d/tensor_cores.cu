// conv2d, tensor cores: the implicit GEMM in tf32, 64 positions by 64 output channels a block, 32x32 a warp.
#include "cuda/check.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/conv2d/gather.cuh"
#include "kernels/device/mma.cuh"

namespace mnist::kernels {
namespace {

constexpr int kTile = 64, kDepth = 32, kPitch = 36, kThreads = 128;  // as linear/tensor_cores.cu
constexpr int kRowTiles = 2, kColumnTiles = 4;                       // 16x8 products of a warp: 32x32

// blockIdx.x = which 64 positions, blockIdx.y = which 64 channels; warps 0..3 take the quarters of the tile.
__global__ void conv2d_forward_tensor_cores_kernel(float* __restrict__ y, const float* __restrict__ x,
                                                   const float* __restrict__ w, const float* __restrict__ bias,
                                                   std::int64_t rows, int in, int out, int side) {
  __shared__ std::uint32_t x_tile[kTile][kPitch], w_tile[kTile][kPitch];
  const int thread = int(threadIdx.x), depth = in * kTaps, area = side * side;
  const std::int64_t first_row = std::int64_t(blockIdx.x) * kTile;
  const int first_out = int(blockIdx.y) * kTile;
  const int warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
  const int row0 = warp / 2 * 32, column0 = warp % 2 * 32;
  const int gathered = thread % kTile;
  const auto row = device::gather_row(x, first_row + gathered, rows, in, side);
  float sums[kRowTiles][kColumnTiles][4] = {};
  for (int k0 = 0; k0 < depth; k0 += kDepth) {
    for (int k = thread / kTile; k < kDepth; k += kThreads / kTile)
      x_tile[gathered][k] = device::to_tf32(device::gather(row, k0 + k, depth, side));
    for (int n = thread; n < kTile * kDepth; n += kThreads) {
      const int k = n % kDepth, o = n / kDepth;
      const bool inside = first_out + o < out && k0 + k < depth;
      w_tile[o][k] = device::to_tf32(inside ? w[(first_out + o) * depth + k0 + k] : 0);
    }
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
    for (int e = 0; e < 4; ++e) {
      const std::int64_t n = first_row + row0 + 16 * r + g + 8 * (e / 2), b = n / area;
      for (int c = 0; c < kColumnTiles; ++c) {
        const int o = first_out + column0 + 8 * c + 2 * t + e % 2;
        if (n < rows && o < out) y[(b * out + o) * area + n % area] = sums[r][c][e] + bias[o];
      }
    }
}

}  // namespace

void conv2d_forward_tensor_cores(float* y, const float* x, const float* w, const float* bias, std::int64_t batch,
                                 int in, int out, int side, cudaStream_t stream) {
  const std::int64_t rows = batch * side * side;
  const dim3 grid(unsigned((rows + kTile - 1) / kTile), unsigned((out + kTile - 1) / kTile));
  conv2d_forward_tensor_cores_kernel<<<grid, kThreads, 0, stream>>>(y, x, w, bias, rows, in, out, side);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
