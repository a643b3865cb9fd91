// linear, tensor cores: 128x64 outputs a block, 64x32 a warp, in tf32; two tiles on their way while one is multiplied.
#include "cuda/check.h"
#include "kernels/device/copies.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/wide.cuh"
#include "kernels/linear/linear.h"
#include "kernels/linear/slices.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kRows = kLinearProductTile.rows, kColumns = kLinearProductTile.columns;  // of a block
constexpr int kDepth = 16;                                                             // of the summed index, at a time
constexpr int kStages = 3;
constexpr int kPitch = kDepth + 4;  // (20 g + t) % 32 differs for the 32 lanes of a fragment, so no conflicts
constexpr int kThreads = 128;
constexpr int kRowTiles = 4, kColumnTiles = 4;  // 16x8 products of a warp: 64x32
static_assert(kLinearSliceUnit % kDepth == 0);

// lines [first, first + kLines) x [k, k + 16) of a row-major matrix, kWidth numbers at a time; 0 from `lines` and `end`
// on.
template <int kWidth, int kLines>
__device__ void copy_tile(float (*tile)[kPitch], const float* __restrict__ matrix, int first, int lines, int k, int end,
                          int in) {
#pragma unroll
  for (int n = int(threadIdx.x); n < kLines * kDepth / kWidth; n += kThreads) {
    const int line = n / (kDepth / kWidth), at = n % (kDepth / kWidth) * kWidth;
    device::copy_async_or_zero<4 * kWidth>(device::shared_address(&tile[line][at]),
                                           matrix + std::int64_t(first + line) * in + k + at,
                                           first + line < lines && k + at < end);
  }
}

// blockIdx.x = which 64 outputs, blockIdx.y = which 128 rows, blockIdx.z = which slice; warps 0..3 take the quarters of
// the tile. `pairs`: two neighbours in `partial` lie at a multiple of 8 bytes.
template <int kWidth>
__global__ void __launch_bounds__(kThreads, 3)
    linear_forward_tensor_cores_kernel(float* __restrict__ partial, const float* __restrict__ x,
                                       const float* __restrict__ w, int batch, int in, int out, int slice, bool pairs) {
  __shared__ __align__(16) float x_tiles[kStages][kRows][kPitch], w_tiles[kStages][kColumns][kPitch];
  const int first_row = int(blockIdx.y) * kRows, first_out = int(blockIdx.x) * kColumns;
  const int warp = int(threadIdx.x) / 32, g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
  const int row0 = warp / 2 * (16 * kRowTiles), column0 = warp % 2 * (8 * kColumnTiles);
  const int begin = int(blockIdx.z) * slice, end = min(begin + slice, in);
  float sums[kRowTiles][kColumnTiles][4] = {};
  const auto copy = [&](int stage, int k) {
    copy_tile<kWidth, kRows>(x_tiles[stage], x, first_row, batch, k, end, in);
    copy_tile<kWidth, kColumns>(w_tiles[stage], w, first_out, out, k, end, in);
    device::copy_async_commit();
  };
  for (int stage = 0; stage < kStages - 1; ++stage) copy(stage, begin + stage * kDepth);
  int stage = 0;
  for (int k0 = begin; k0 < end; k0 += kDepth, stage = (stage + 1) % kStages) {
    device::copy_async_wait<kStages - 2>();
    __syncthreads();  // the tiles of this stage are complete, and everyone is done with those before
    copy((stage + kStages - 1) % kStages, k0 + (kStages - 1) * kDepth);
#pragma unroll
    for (int k = 0; k < kDepth; k += 8) {
      std::uint32_t a[kRowTiles][4], b[kColumnTiles][2];
      for (int r = 0; r < kRowTiles; ++r)
        for (int e = 0; e < 4; ++e)
          a[r][e] = device::to_tf32(x_tiles[stage][row0 + 16 * r + g + 8 * (e % 2)][k + t + 4 * (e / 2)]);
      for (int c = 0; c < kColumnTiles; ++c)
        for (int e = 0; e < 2; ++e) b[c][e] = device::to_tf32(w_tiles[stage][column0 + 8 * c + g][k + t + 4 * e]);
      for (int r = 0; r < kRowTiles; ++r)
        for (int c = 0; c < kColumnTiles; ++c) device::mma_tf32(sums[r][c], a[r], b[c]);
    }
  }
  device::copy_async_wait<0>();  // none is left on its way
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c)
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const int row = first_row + row0 + 16 * r + g + 4 * e, o = first_out + column0 + 8 * c + 2 * t;
        if (row >= batch || o >= out) continue;
        float* to = partial + (std::int64_t(blockIdx.z) * batch + row) * out + o;
        if (pairs) {
          *reinterpret_cast<float2*>(to) = make_float2(sums[r][c][e], sums[r][c][e + 1]);
        } else {
          to[0] = sums[r][c][e];
          if (o + 1 < out) to[1] = sums[r][c][e + 1];
        }
      }
}

}  // namespace

void linear_forward_tensor_cores(float* y, float* partial, const float* x, const float* w, const float* bias,
                                 std::int64_t batch, int in, int out, cudaStream_t stream) {
  const auto slices = linear_slices(kLinearProductTile, batch, out, in);
  const bool pairs = out % 2 == 0 && reinterpret_cast<std::uintptr_t>(partial) % sizeof(float2) == 0;
  const dim3 grid(unsigned(ceil_div(out, kColumns)), unsigned(ceil_div(batch, kRows)), unsigned(slices.count));
  const auto kernel =
      device::is_wide(in, {x, w}) ? linear_forward_tensor_cores_kernel<4> : linear_forward_tensor_cores_kernel<1>;
  kernel<<<grid, kThreads, 0, stream>>>(partial, x, w, int(batch), in, out, slices.depth, pairs);
  MNIST_CHECK_LAUNCH();
  linear_add_slices(y, partial, bias, batch, out, slices.count, stream);
}

}  // namespace mnist::kernels
