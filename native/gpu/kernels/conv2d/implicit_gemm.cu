// conv2d, implicit GEMM: 64 positions by 64 output channels a block, 4x4 a thread.
#include "cuda/check.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/conv2d/gather.cuh"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kTile = 64, kDepth = 16, kSide = 16, kEach = 4, kPitch = 68;  // as linear/register_tiled.cu
constexpr int kThreads = kSide * kSide;

// y[n,o] = bias[o] + sum over k of column[n,k] * filter(o,k). Forward: filter(o,k) = w[o,k]. Backward data: `x` is dy,
// `y` is dx, `in` and `out` have changed places, and filter(i,(o,u,v)) = w[o,i,2-u,2-v]; no bias.
//
// blockIdx.x = which 64 positions, blockIdx.y = which 64 channels; threadIdx.x = which 4 positions, so that a warp
// writes neighbours, threadIdx.y = which 4 channels.
template <bool kBackwardData>
__global__ void implicit_gemm_kernel(float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ w,
                                     const float* __restrict__ bias, std::int64_t rows, int in, int out, int side) {
  __shared__ __align__(16) float x_tile[kDepth][kPitch];
  __shared__ __align__(16) float w_tile[kDepth][kPitch];
  const int t = int(threadIdx.y) * kSide + int(threadIdx.x), depth = in * kTaps, area = side * side;
  const std::int64_t first_row = std::int64_t(blockIdx.x) * kTile;
  const int first_out = int(blockIdx.y) * kTile;
  // A thread gathers for one position: its neighbours in the warp read neighbouring pixels.
  const int gathered = t % kTile;
  const auto row = gather_row(x, first_row + gathered, rows, in, side);
  float sums[kEach][kEach] = {};
  for (int k0 = 0; k0 < depth; k0 += kDepth) {
    for (int k = t / kTile; k < kDepth; k += kThreads / kTile) x_tile[k][gathered] = gather(row, k0 + k, depth, side);
    for (int n = t; n < kTile * kDepth; n += kThreads) {
      const int k = n % kDepth, o = n / kDepth, of = k0 + k;
      const int at = kBackwardData ? (of / kTaps * out + first_out + o) * kTaps + kTaps - 1 - of % kTaps
                                   : (first_out + o) * depth + of;
      w_tile[k][o] = first_out + o < out && of < depth ? w[at] : 0;
    }
    __syncthreads();  // both tiles are complete
    for (int k = 0; k < kDepth; ++k) {
      const float4 a4 = *reinterpret_cast<const float4*>(&x_tile[k][threadIdx.x * kEach]);
      const float4 b4 = *reinterpret_cast<const float4*>(&w_tile[k][threadIdx.y * kEach]);
      const float a[kEach] = {a4.x, a4.y, a4.z, a4.w}, b[kEach] = {b4.x, b4.y, b4.z, b4.w};
      for (int r = 0; r < kEach; ++r)
        for (int c = 0; c < kEach; ++c) sums[r][c] += a[r] * b[c];
    }
    __syncthreads();  // everyone is done with them
  }
  for (int r = 0; r < kEach; ++r) {
    const std::int64_t n = first_row + threadIdx.x * kEach + r, b = n / area;
    for (int c = 0; c < kEach; ++c) {
      const int o = first_out + int(threadIdx.y) * kEach + c;
      if (n < rows && o < out) y[(b * out + o) * area + n % area] = sums[r][c] + (kBackwardData ? 0 : bias[o]);
    }
  }
}

template <bool kBackwardData>
void launch(float* y, const float* x, const float* w, const float* bias, std::int64_t batch, int in, int out, int side,
            cudaStream_t stream) {
  const std::int64_t rows = batch * side * side;
  const dim3 grid(unsigned(ceil_div(rows, kTile)), unsigned(ceil_div(out, kTile))), block(kSide, kSide);
  implicit_gemm_kernel<kBackwardData><<<grid, block, 0, stream>>>(y, x, w, bias, rows, in, out, side);
  MNIST_CHECK_LAUNCH();
}

}  // namespace

void conv2d_forward_implicit_gemm(float* y, const float* x, const float* w, const float* bias, std::int64_t batch,
                                  int in, int out, int side, cudaStream_t stream) {
  launch<false>(y, x, w, bias, batch, in, out, side, stream);
}

void conv2d_backward_data_implicit_gemm(float* dx, const float* dy, const float* w, std::int64_t batch, int in, int out,
                                        int side, cudaStream_t stream) {
  launch<true>(dx, dy, w, nullptr, batch, out, in, side, stream);
}

}  // namespace mnist::kernels
