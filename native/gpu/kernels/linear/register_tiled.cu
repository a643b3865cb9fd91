// linear, register-tiled: 64x64 outputs a block, 4x4 a thread.
#include "cuda/check.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/slices.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kTile = kLinearRegisterTile.rows;  // outputs of a block, either way
constexpr int kDepth = 16;                       // of the summed index, at a time
constexpr int kSide = 16;                        // threads of a block, either way
constexpr int kEach = 4;                         // outputs of a thread, either way
constexpr int kPitch = 68;  // of a tile's row: a multiple of 4 for float4 reads, and off the banks of the row before
static_assert(kLinearSliceUnit % kDepth == 0);
static_assert(kSide * kEach == kTile);

// rows [first, first + 64) x [depth, depth + 16) of a row-major matrix, transposed: tile[k][row]; 0 outside.
__device__ void load_tile(float (*tile)[kPitch], const float* __restrict__ matrix, std::int64_t first,
                          std::int64_t rows, int depth, int in) {
  const int t = int(threadIdx.y) * kSide + int(threadIdx.x);
  for (int n = t; n < kTile * kDepth; n += kSide * kSide) {
    const int k = n % kDepth, row = n / kDepth;
    const bool inside = first + row < rows && depth + k < in;
    tile[k][row] = inside ? matrix[(first + row) * in + depth + k] : 0;
  }
}

// blockIdx.x = which 64 rows, blockIdx.y = which 64 outputs, blockIdx.z = which slice;
// threadIdx.x = which 4 outputs, threadIdx.y = which 4 rows.
__global__ void linear_forward_register_tiled_kernel(float* __restrict__ partial, const float* __restrict__ x,
                                                     const float* __restrict__ w, std::int64_t batch, int in, int out,
                                                     int slice) {
  __shared__ __align__(16) float x_tile[kDepth][kPitch];
  __shared__ __align__(16) float w_tile[kDepth][kPitch];
  const std::int64_t first_row = std::int64_t(blockIdx.x) * kTile;
  const int first_out = int(blockIdx.y) * kTile;
  float sums[kEach][kEach] = {};
  const int begin = int(blockIdx.z) * slice, end = min(begin + slice, in);
  for (int depth = begin; depth < end; depth += kDepth) {
    load_tile(x_tile, x, first_row, batch, depth, in);
    load_tile(w_tile, w, first_out, out, depth, in);
    __syncthreads();  // both tiles are complete
    for (int k = 0; k < kDepth; ++k) {
      const float4 a4 = *reinterpret_cast<const float4*>(&x_tile[k][threadIdx.y * kEach]);
      const float4 b4 = *reinterpret_cast<const float4*>(&w_tile[k][threadIdx.x * kEach]);
      const float a[kEach] = {a4.x, a4.y, a4.z, a4.w}, b[kEach] = {b4.x, b4.y, b4.z, b4.w};
      for (int r = 0; r < kEach; ++r)
        for (int c = 0; c < kEach; ++c) sums[r][c] += a[r] * b[c];
    }
    __syncthreads();  // everyone is done with them
  }
  for (int r = 0; r < kEach; ++r)
    for (int c = 0; c < kEach; ++c) {
      const std::int64_t row = first_row + threadIdx.y * kEach + r;
      const int o = first_out + int(threadIdx.x) * kEach + c;
      if (row < batch && o < out) partial[(blockIdx.z * batch + row) * out + o] = sums[r][c];
    }
}

}  // namespace

void linear_forward_register_tiled(float* y, float* partial, const float* x, const float* w, const float* bias,
                                   std::int64_t batch, int in, int out, cudaStream_t stream) {
  const auto slices = linear_slices(kLinearRegisterTile, batch, out, in);
  const dim3 grid(unsigned(ceil_div(batch, kTile)), unsigned(ceil_div(out, kTile)), unsigned(slices.count)),
      block(kSide, kSide);
  linear_forward_register_tiled_kernel<<<grid, block, 0, stream>>>(partial, x, w, batch, in, out, slices.depth);
  MNIST_CHECK_LAUNCH();
  linear_add_slices(y, partial, bias, batch, out, slices.count, stream);
}

}  // namespace mnist::kernels
