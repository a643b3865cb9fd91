// linear, coalesced: one warp an output.
#include "cuda/check.h"
#include "kernels/linear/linear.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kWarps = 8;

// blockIdx.x = b, blockIdx.y = which 8 outputs; threadIdx.x = lane, threadIdx.y = warp.
__global__ void linear_forward_coalesced_kernel(float* __restrict__ y, const float* __restrict__ x,
                                                const float* __restrict__ w, const float* __restrict__ bias, int in,
                                                int out) {
  const std::int64_t b = blockIdx.x;
  const int lane = int(threadIdx.x), o = int(blockIdx.y * kWarps + threadIdx.y);
  if (o >= out) return;  // the whole warp leaves together
  float sum = 0;
  for (int i = lane; i < in; i += 32) sum += w[std::int64_t(o) * in + i] * x[b * in + i];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
  if (lane == 0) y[b * out + o] = sum + bias[o];
}

}  // namespace

void linear_forward_coalesced(float* y, float*, const float* x, const float* w, const float* bias, std::int64_t batch,
                              int in, int out, cudaStream_t stream) {
  const dim3 grid(unsigned(batch), unsigned(ceil_div(out, kWarps))), block(32, kWarps);
  linear_forward_coalesced_kernel<<<grid, block, 0, stream>>>(y, x, w, bias, in, out);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
