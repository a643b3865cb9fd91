// linear, tiled: square tiles in shared memory, one thread an output.
#include "cuda/check.h"
#include "kernels/linear/linear.h"

namespace mnist::kernels {
namespace {

constexpr int kTile = 32;

// blockIdx.x = which 32 rows, blockIdx.y = which 32 outputs; threadIdx.x = output, threadIdx.y = row.
__global__ void linear_forward_tiled_kernel(float* __restrict__ y, const float* __restrict__ x,
                                            const float* __restrict__ w, const float* __restrict__ bias,
                                            std::int64_t batch, int in, int out) {
  __shared__ float x_tile[kTile][kTile];
  __shared__ float w_tile[kTile][kTile + 1];  // the column reads below hit 32 banks instead of one
  const int tx = int(threadIdx.x), ty = int(threadIdx.y);
  const std::int64_t b = std::int64_t(blockIdx.x) * kTile + ty;
  const int o = int(blockIdx.y) * kTile + tx, w_row = int(blockIdx.y) * kTile + ty;
  float sum = o < out ? bias[o] : 0;
  for (int first = 0; first < in; first += kTile) {
    const int i = first + tx;
    x_tile[ty][tx] = b < batch && i < in ? x[b * in + i] : 0;
    w_tile[ty][tx] = w_row < out && i < in ? w[std::int64_t(w_row) * in + i] : 0;
    __syncthreads();  // both tiles are complete
    for (int k = 0; k < kTile; ++k) sum += x_tile[ty][k] * w_tile[tx][k];
    __syncthreads();  // everyone is done with them
  }
  if (b < batch && o < out) y[b * out + o] = sum;
}

}  // namespace

void linear_forward_tiled(float* y, float*, const float* x, const float* w, const float* bias, std::int64_t batch,
                          int in, int out, cudaStream_t stream) {
  const dim3 grid(unsigned((batch + kTile - 1) / kTile), unsigned((out + kTile - 1) / kTile)), block(kTile, kTile);
  linear_forward_tiled_kernel<<<grid, block, 0, stream>>>(y, x, w, bias, batch, in, out);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
