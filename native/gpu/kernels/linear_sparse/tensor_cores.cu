// linear with sparse weights: one kernel by mma.sync and by mma.sp, in bf16.
#include <cuda_bf16.h>

#include "cuda/check.h"
#include "kernels/device/mma.cuh"
#include "kernels/linear/slices.h"
#include "kernels/linear_sparse/linear_sparse.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kTile = kLinearRegisterTile.rows;  // outputs of a block, either way
constexpr int kDepth = 32;                       // of the summed index, at a time
constexpr int kThreads = 128;
constexpr int kRowTiles = 2, kColumnTiles = 4;  // 16x8 products of a warp: 32x32, w's rows by x's
constexpr int kPitch = kDepth / 2 + 4;          // words of a dense row; (20 g + t) % 32 differs for a fragment's lanes
constexpr int kSparsePitch = kDepth / 4 + 4;    // and of a row of the weights that are kept: 12 g + t
static_assert(kLinearSliceUnit % kDepth == 0 && kLinearRegisterTile.columns == kTile);

__device__ std::uint32_t pair(float lower, float upper) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(lower, upper);
  return reinterpret_cast<const std::uint32_t&>(both);
}

// Four neighbours of row `line` of a row-major matrix, 0 from `lines` and `end` on.
struct Four {
  float of[4];
};
__device__ Four load_four(const float* __restrict__ matrix, std::int64_t line, std::int64_t lines, int k, int end,
                          int in) {
  Four four;
#pragma unroll
  for (int n = 0; n < 4; ++n) four.of[n] = line < lines && k + n < end ? matrix[line * in + k + n] : 0;
  return four;
}

// Rows [first, first + 64) of a matrix, 32 of the summed index from k on, as pairs.
__device__ void load_dense(std::uint32_t (*tile)[kPitch], const float* __restrict__ matrix, std::int64_t first,
                           std::int64_t lines, int k, int end, int in) {
#pragma unroll
  for (int n = int(threadIdx.x); n < kTile * kDepth / 4; n += kThreads) {
    const int line = n / (kDepth / 4), at = n % (kDepth / 4);
    const Four four = load_four(matrix, first + line, lines, k + 4 * at, end, in);
    tile[line][2 * at] = pair(four.of[0], four.of[1]);
    tile[line][2 * at + 1] = pair(four.of[2], four.of[3]);
  }
}

// The same of weights: of each four the pair that is kept, in `kept`, and where the two stood, in `places`: of 16
// weights 4 bits for each four, the first four lowest, the first of the two lowest. The places of a pair are
// increasing.
__device__ void load_sparse(std::uint32_t (*kept)[kSparsePitch], std::uint16_t (*places)[2],
                            const float* __restrict__ w, int first, int out, int k, int end, int in) {
  const int line = int(threadIdx.x) / 2, half = int(threadIdx.x) % 2;
  std::uint32_t bits = 0;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const Four four = load_four(w, first + line, out, k + 16 * half + 4 * n, end, in);
    const auto& v = four.of;
    const int i = v[0] != 0 ? 0 : v[1] != 0 ? 1 : 2;
    const int j = v[3] != 0 ? 3 : v[2] != 0 && i < 2 ? 2 : v[1] != 0 && i < 1 ? 1 : 3;
    kept[line][4 * half + n] = pair(i == 0 ? v[0] : i == 1 ? v[1] : v[2], j == 1 ? v[1] : j == 2 ? v[2] : v[3]);
    bits |= std::uint32_t(i | j << 2) << 4 * n;
  }
  places[line][half] = std::uint16_t(bits);
}
static_assert(kThreads == 2 * kTile);

// c += a b, where a is 16x32 of which two in four are not 0: the two are a's registers, a fragment of 16x16 as
// mma_bf16's; b is 32x8, as two of mma_bf16's. Lane 4 g + t has the places of the columns 16 (t % 2) + 0 .. 15, of row
// g in the lower half and of row g + 8 in the upper one; those of t = 0 and 1 are read.
__device__ void mma_sparse(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[4],
                           std::uint32_t places) {
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1205  // older ones know no `ordered_metadata`
  asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, 0x0;"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(places));
#else
  asm("mma.sp.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, "
      "{%0,%1,%2,%3}, %12, 0x0;"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(places));
#endif
}

// blockIdx.x = which 64 outputs, blockIdx.y = which 64 rows of x, blockIdx.z = which slice; warps 0..3 take the
// quarters of the tile. The left factor is w, whose sparsity the tensor cores know, so the product is y^T.
template <bool kSparse>
__global__ void __launch_bounds__(kThreads)
    linear_sparse_kernel(float* __restrict__ partial, const float* __restrict__ x, const float* __restrict__ w,
                         std::int64_t batch, int in, int out, int slice) {
  constexpr int kWPitch = kSparse ? kSparsePitch : kPitch;
  __shared__ std::uint32_t w_tile[kTile][kWPitch], x_tile[kTile][kPitch];
  __shared__ std::uint16_t places[kTile][2];
  const int first_out = int(blockIdx.x) * kTile;
  const std::int64_t first_row = std::int64_t(blockIdx.y) * kTile;
  const int warp = int(threadIdx.x) / 32, g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
  const int out0 = warp / 2 * (16 * kRowTiles), row0 = warp % 2 * (8 * kColumnTiles);
  const int begin = int(blockIdx.z) * slice, end = min(begin + slice, in);
  float sums[kRowTiles][kColumnTiles][4] = {};
  for (int k0 = begin; k0 < end; k0 += kDepth) {
    if constexpr (kSparse)
      load_sparse(w_tile, places, w, first_out, out, k0, end, in);
    else
      load_dense(w_tile, w, first_out, out, k0, end, in);
    load_dense(x_tile, x, first_row, batch, k0, end, in);
    __syncthreads();  // both tiles are complete
    std::uint32_t b[kColumnTiles][4];
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) b[c][e] = x_tile[row0 + 8 * c + g][4 * e + t];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const int line = out0 + 16 * r + g;
#pragma unroll
      for (int k = 0; k < (kSparse ? 1 : 2); ++k) {
        std::uint32_t a[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) a[e] = w_tile[line + 8 * (e % 2)][8 * k + 4 * (e / 2) + t];
        if constexpr (kSparse) {
          const std::uint32_t of_pair = places[line][t % 2] | std::uint32_t(places[line + 8][t % 2]) << 16;
#pragma unroll
          for (int c = 0; c < kColumnTiles; ++c) mma_sparse(sums[r][c], a, b[c], of_pair);
        } else {
#pragma unroll
          for (int c = 0; c < kColumnTiles; ++c) device::mma_bf16(sums[r][c], a, b[c][2 * k], b[c][2 * k + 1]);
        }
      }
    }
    __syncthreads();  // everyone is done with them
  }
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int o = first_out + out0 + 16 * r + g + 8 * (e / 2);
        const std::int64_t row = first_row + row0 + 8 * c + 2 * t + e % 2;
        if (row < batch && o < out) partial[(blockIdx.z * batch + row) * out + o] = sums[r][c][e];
      }
}

template <bool kSparse>
void multiply(float* y, float* partial, const float* x, const float* w, const float* bias, std::int64_t batch, int in,
              int out, cudaStream_t stream) {
  const auto slices = linear_slices(kLinearRegisterTile, batch, out, in);
  const dim3 grid(unsigned(ceil_div(out, kTile)), unsigned(ceil_div(batch, kTile)), unsigned(slices.count));
  linear_sparse_kernel<kSparse><<<grid, kThreads, 0, stream>>>(partial, x, w, batch, in, out, slices.depth);
  MNIST_CHECK_LAUNCH();
  linear_add_slices(y, partial, bias, batch, out, slices.count, stream);
}

}  // namespace

void linear_sparse_forward_dense(float* y, float* partial, const float* x, const float* w, const float* bias,
                                 std::int64_t batch, int in, int out, cudaStream_t stream) {
  multiply<false>(y, partial, x, w, bias, batch, in, out, stream);
}

void linear_sparse_forward_sparse(float* y, float* partial, const float* x, const float* w, const float* bias,
                                  std::int64_t batch, int in, int out, cudaStream_t stream) {
  multiply<true>(y, partial, x, w, bias, batch, in, out, stream);
}

}  // namespace mnist::kernels
