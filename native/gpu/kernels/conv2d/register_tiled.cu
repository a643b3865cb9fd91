// conv2d, register-tiled: seven rows of a column by 8 output channels a thread; forward, and backward by data.
#include <algorithm>

#include "cuda/check.h"
#include "kernels/conv2d/conv2d.h"
#include "mnist/ceil_div.h"
#include "mnist/model.h"

namespace mnist::kernels {
namespace {

constexpr int kRows = 7, kOutputs = 8;  // of a thread
constexpr int kThreads = 256;           // at most
constexpr int kLanes = 32;              // for columns side by side, and below them another run of rows of a small side
constexpr int kMaxGroups = 8;           // of 8 output channels, in a block
constexpr int kFilterPitch =
    kMaxGroups * kOutputs + 4;  // a multiple of 4 for float4 reads, off the banks of the row before
constexpr int kMaxSide = 96;    // where rows and filters of 8 planes fill the 48 KiB that need not be asked for
static_assert(8 * (kTaps * kFilterPitch + (kRows + 2) * (kMaxSide + 2)) * sizeof(float) <= 48 << 10);

// y[b,o,p,q] = bias[o] + sum over i,u,v of filter(o,i,u,v) * x[b,i,p+u-1,q+v-1]. Forward: filter = w[o,i,u,v]. Backward
// data: `x` is dy, `y` is dx, `in` and `out` have changed places, and filter(o,i,u,v) = w[i,o,2-u,2-v]; no bias.
//
// blockIdx.x = b, blockIdx.y = which `runs` of 7 rows, blockIdx.z = which channels; threadIdx.x = column and run,
// threadIdx.y = which 8 channels: the same for a warp, which reads a weight for all of its lanes at once. kPlanes:
// input channels in shared memory at a time.
template <int kPlanes, bool kBackwardData>
__global__ void __launch_bounds__(kThreads, 2)
    register_tiled_kernel(float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ w,
                          const float* __restrict__ bias, int in, int out, int side, int runs) {
  extern __shared__ float4 shared[];
  float* filters = reinterpret_cast<float*>(shared);         // [kPlanes][kTaps][kFilterPitch]
  float* planes = filters + kPlanes * kTaps * kFilterPitch;  // [kPlanes][rows + 2][side + 2]
  const int t = int(threadIdx.y * blockDim.x + threadIdx.x), threads = int(blockDim.x * blockDim.y);
  const bool active = int(threadIdx.x) < runs * side;
  const int run = active ? int(threadIdx.x) / side : 0, q = active ? int(threadIdx.x) % side : 0;
  const int pitch = side + 2, plane = (runs * kRows + 2) * pitch, area = side * side;
  const int first_row = int(blockIdx.y) * runs * kRows;
  const int channels = int(blockDim.y) * kOutputs, o0 = int(blockIdx.z) * channels;
  const float* image = x + std::int64_t(blockIdx.x) * in * area;
  float sums[kOutputs][kRows] = {};

  for (int i0 = 0; i0 < in; i0 += kPlanes) {
    const int count = min(kPlanes, in - i0);
    for (int n = t; n < plane; n += threads) {
      const int r = first_row + n / pitch - 1, s = n % pitch - 1;
      const bool inside = r >= 0 && r < side && s >= 0 && s < side;
      const float* from = image + i0 * area + r * side + s;
#pragma unroll
      for (int i = 0; i < kPlanes; ++i) planes[i * plane + n] = inside && i < count ? from[i * area] : 0;
    }
#pragma unroll 8
    for (int n = t; n < channels * kPlanes * kTaps; n += threads) {
      const int k = n % (kPlanes * kTaps), o = o0 + n / (kPlanes * kTaps), i = i0 + k / kTaps, tap = k % kTaps;
      const int at = kBackwardData ? (i * out + o) * kTaps + kTaps - 1 - tap : (o * in + i) * kTaps + tap;
      filters[k * kFilterPitch + o - o0] = o < out && i < in ? w[at] : 0;
    }
    __syncthreads();  // planes and filters are complete
    for (int i = 0; i < count; ++i) {
      const float* corner = planes + i * plane + run * kRows * pitch + q;
      const float* filter = filters + i * kTaps * kFilterPitch + threadIdx.y * kOutputs;
#pragma unroll
      for (int v = 0; v < 3; ++v) {
        float column[kRows + 2];
#pragma unroll
        for (int r = 0; r < kRows + 2; ++r) column[r] = corner[r * pitch + v];
#pragma unroll
        for (int u = 0; u < 3; ++u) {
          const float* at = filter + (3 * u + v) * kFilterPitch;
          const float4 low = *reinterpret_cast<const float4*>(at), high = *reinterpret_cast<const float4*>(at + 4);
          const float weights[kOutputs] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
          for (int k = 0; k < kOutputs; ++k)
#pragma unroll
            for (int r = 0; r < kRows; ++r) sums[k][r] += weights[k] * column[r + u];
        }
      }
    }
    __syncthreads();  // everyone is done with them
  }
  if (!active) return;
#pragma unroll
  for (int k = 0; k < kOutputs; ++k) {
    const int o = o0 + int(threadIdx.y) * kOutputs + k;
    if (o >= out) break;
    const float constant = kBackwardData ? 0 : bias[o];
    float* to = y + (std::int64_t(blockIdx.x) * out + o) * area + q;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int p = first_row + run * kRows + r;
      if (p < side) to[p * side] = sums[k][r] + constant;
    }
  }
}

template <int kPlanes, bool kBackwardData>
void launch(float* y, const float* x, const float* w, const float* bias, std::int64_t batch, int in, int out, int side,
            cudaStream_t stream) {
  const int runs = std::clamp(kLanes / side, 1, ceil_div(side, kRows)),
            columns = ceil_div(runs * side, kLanes) * kLanes;
  const int groups = std::min({kMaxGroups, ceil_div(out, kOutputs), kThreads / columns});
  const dim3 grid(unsigned(batch), unsigned(ceil_div(side, runs * kRows)), unsigned(ceil_div(out, groups * kOutputs)));
  const dim3 block{unsigned(columns), unsigned(groups)};
  const std::size_t floats = kPlanes * (kTaps * kFilterPitch + (runs * kRows + 2) * (side + 2));
  register_tiled_kernel<kPlanes, kBackwardData>
      <<<grid, block, floats * sizeof(float), stream>>>(y, x, w, bias, in, out, side, runs);
  MNIST_CHECK_LAUNCH();
}

void require_side(const char* what, int side) {
  MNIST_REQUIRE(side <= kMaxSide, what << ": side is " << side << ", expected at most " << kMaxSide);
}

}  // namespace

void conv2d_forward_register_tiled(float* y, const float* x, const float* w, const float* bias, std::int64_t batch,
                                   int in, int out, int side, cudaStream_t stream) {
  require_side("conv2d_forward_register_tiled", side);
  const auto run = in == 1 ? launch<1, false> : launch<8, false>;
  run(y, x, w, bias, batch, in, out, side, stream);
}

void conv2d_backward_data_register_tiled(float* dx, const float* dy, const float* w, std::int64_t batch, int in,
                                         int out, int side, cudaStream_t stream) {
  require_side("conv2d_backward_data_register_tiled", side);
  launch<8, true>(dx, dy, w, nullptr, batch, out, in, side, stream);
}

}  // namespace mnist::kernels
