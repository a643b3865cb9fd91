// linear, tiled: square tiles in shared memory, one thread an output; forward and backward.
#include "cuda/check.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/slices.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kTile = kLinearTile.rows;
static_assert(kLinearTile.columns == kTile && kLinearSliceUnit % kTile == 0);

// c[slice,row,column] = sum over the slice's k of a(row,k) * b(column,k). kAAlong: a is stored as a[row][k], else as
// a[k][row]; kBAlong likewise. `slice`: terms per slice. blockIdx.x = which 32 rows, blockIdx.y = which 32 columns,
// blockIdx.z = which slice; threadIdx.x = column, threadIdx.y = row. In either layout a warp reads 32 neighbours.
template <bool kAAlong, bool kBAlong>
__global__ void tiled_kernel(float* __restrict__ c, const float* __restrict__ a, const float* __restrict__ b,
                             std::int64_t rows, std::int64_t columns, std::int64_t depth, std::int64_t slice) {
  __shared__ float a_tile[kTile][kTile + 1];
  __shared__ float b_tile[kTile][kTile + 1];  // the column reads below hit 32 banks instead of one
  const int tx = int(threadIdx.x), ty = int(threadIdx.y);
  const std::int64_t first_row = std::int64_t(blockIdx.x) * kTile, first_column = std::int64_t(blockIdx.y) * kTile;
  const std::int64_t begin = blockIdx.z * slice, end = begin + slice < depth ? begin + slice : depth;
  float sum = 0;
  for (std::int64_t k0 = begin; k0 < end; k0 += kTile) {
    if constexpr (kAAlong)
      a_tile[ty][tx] = first_row + ty < rows && k0 + tx < end ? a[(first_row + ty) * depth + k0 + tx] : 0;
    else
      a_tile[tx][ty] = first_row + tx < rows && k0 + ty < end ? a[(k0 + ty) * rows + first_row + tx] : 0;
    if constexpr (kBAlong)
      b_tile[ty][tx] = first_column + ty < columns && k0 + tx < end ? b[(first_column + ty) * depth + k0 + tx] : 0;
    else
      b_tile[tx][ty] = first_column + tx < columns && k0 + ty < end ? b[(k0 + ty) * columns + first_column + tx] : 0;
    __syncthreads();  // both tiles are complete
    for (int k = 0; k < kTile; ++k) sum += a_tile[ty][k] * b_tile[tx][k];
    __syncthreads();  // everyone is done with them
  }
  const std::int64_t row = first_row + ty, column = first_column + tx;
  if (row < rows && column < columns) c[(blockIdx.z * rows + row) * columns + column] = sum;
}

template <bool kAAlong, bool kBAlong>
void multiply(float* c, const float* a, const float* b, std::int64_t rows, std::int64_t columns, std::int64_t depth,
              const LinearSlices& slices, cudaStream_t stream) {
  const dim3 grid(unsigned(ceil_div(rows, kTile)), unsigned(ceil_div(columns, kTile)), unsigned(slices.count)),
      block(kTile, kTile);
  tiled_kernel<kAAlong, kBAlong><<<grid, block, 0, stream>>>(c, a, b, rows, columns, depth, slices.depth);
  MNIST_CHECK_LAUNCH();
}

}  // namespace

void linear_forward_tiled(float* y, float* partial, const float* x, const float* w, const float* bias,
                          std::int64_t batch, int in, int out, cudaStream_t stream) {
  const auto slices = linear_slices(kLinearTile, batch, out, in);
  multiply<true, true>(partial, x, w, batch, out, in, slices, stream);
  linear_add_slices(y, partial, bias, batch, out, slices.count, stream);
}

void linear_backward_tiled(float* dx, float* dw, float* dbias, float*, const float* dy, const float* x, const float* w,
                           std::int64_t batch, int in, int out, cudaStream_t stream) {
  multiply<true, false>(dx, dy, w, batch, in, out, {1, out}, stream);
  multiply<false, false>(dw, dy, x, out, in, batch, {1, int(batch)}, stream);
  linear_backward_bias(dbias, dy, batch, out, stream);
}

}  // namespace mnist::kernels
