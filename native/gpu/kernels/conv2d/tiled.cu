// conv2d, tiled: padded planes and filters in shared memory, 8 output channels a thread.
#include "cuda/check.h"
#include "kernels/conv2d/conv2d.h"
#include "mnist/ceil_div.h"
#include "mnist/model.h"

namespace mnist::kernels {
namespace {

constexpr int kBlock = 256;     // positions
constexpr int kOutputs = 8;     // of a thread
constexpr int kPlanes = 4;      // input channels in shared memory at a time
constexpr int kMaxPadded = 54;  // 4 planes of 54x54 floats are 46,656 bytes; with the filters 47,808 of 48 KiB

// blockIdx.x = b, blockIdx.y = which 256 positions, blockIdx.z = which 8 output channels.
__global__ void conv2d_forward_tiled_kernel(float* __restrict__ y, const float* __restrict__ x,
                                            const float* __restrict__ w, const float* __restrict__ bias, int in,
                                            int out, int side) {
  extern __shared__ float4 shared[];
  float4* filters = shared;                                                           // [kPlanes][kTaps][kOutputs / 4]
  float* planes = reinterpret_cast<float*>(shared + kPlanes * kTaps * kOutputs / 4);  // [kPlanes][padded][padded]
  const int area = side * side, padded = side + 2, padded_area = padded * padded, t = int(threadIdx.x);
  const std::int64_t b = blockIdx.x;
  const int position = int(blockIdx.y) * kBlock + t, o0 = int(blockIdx.z) * kOutputs;
  const int p = position / side, q = position % side;
  float sums[kOutputs];
  for (int k = 0; k < kOutputs; ++k) sums[k] = o0 + k < out ? bias[o0 + k] : 0;

  for (int i0 = 0; i0 < in; i0 += kPlanes) {
    const int count = min(kPlanes, in - i0);
    for (int n = t; n < count * padded_area; n += kBlock) {
      const int r = n % padded_area / padded - 1, s = n % padded - 1, i = i0 + n / padded_area;
      const bool inside = r >= 0 && r < side && s >= 0 && s < side;
      planes[n] = inside ? x[(b * in + i) * area + r * side + s] : 0;
    }
    for (int n = t; n < count * kTaps * kOutputs; n += kBlock) {
      const int k = n % kOutputs, tap = n / kOutputs % kTaps, i = i0 + n / (kOutputs * kTaps), o = o0 + k;
      reinterpret_cast<float*>(filters)[n] = o < out ? w[(o * in + i) * kTaps + tap] : 0;
    }
    __syncthreads();  // planes and filters are complete
    if (position < area)
      for (int i = 0; i < count; ++i)
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) {
          const float value = planes[i * padded_area + (p + tap / 3) * padded + q + tap % 3];
          const float4 low = filters[(i * kTaps + tap) * 2], high = filters[(i * kTaps + tap) * 2 + 1];
          const float weights[kOutputs] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
          for (int k = 0; k < kOutputs; ++k) sums[k] += weights[k] * value;
        }
    __syncthreads();  // everyone is done with them
  }
  if (position >= area) return;
  for (int k = 0; k < kOutputs; ++k)
    if (o0 + k < out) y[(b * out + o0 + k) * area + position] = sums[k];
}

}  // namespace

void conv2d_forward_tiled(float* y, const float* x, const float* w, const float* bias, std::int64_t batch, int in,
                          int out, int side, cudaStream_t stream) {
  const int padded = side + 2;
  MNIST_REQUIRE(padded <= kMaxPadded,
                "conv2d_forward_tiled: side is " << side << ", expected at most " << kMaxPadded - 2);
  const dim3 grid(unsigned(batch), unsigned(ceil_div(side * side, kBlock)), unsigned(ceil_div(out, kOutputs)));
  const std::size_t bytes = std::size_t(kPlanes) * (kTaps * kOutputs + padded * padded) * sizeof(float);
  conv2d_forward_tiled_kernel<<<grid, kBlock, bytes, stream>>>(y, x, w, bias, in, out, side);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
