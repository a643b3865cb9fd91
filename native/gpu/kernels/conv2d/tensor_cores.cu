// conv2d, tensor cores: register_tiled's planes and filters in shared memory, multiplied in tf32; 64 output channels by
// 32 positions a warp.
#include <algorithm>

#include "cuda/check.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/conv2d/tap_products.cuh"
#include "mnist/ceil_div.h"
#include "mnist/model.h"

namespace mnist::kernels {
namespace {

constexpr int kRowTiles = 4, kPositionTiles = 4;  // 16x8 products of a warp: 16 output channels, 8 positions of a row
using Filters = TapFilters<kRowTiles, false>;
constexpr int kPlanes = kTapDepth, kOutputs = Filters::kOutputs;  // of a block
constexpr int kWarps = 7, kThreads = 32 * kWarps;
constexpr int kTiles = kWarps * kPositionTiles;  // of 8 positions, of a block: an image with sides of 14
// The distance of planes by which the 32 lanes of a fragment fall on 32 banks: (g + 8 t) % 32.
constexpr int plane_pitch(int plane) { return (plane + 23) / 32 * 32 + 8; }

// The next 8 input channels are on their way while these are multiplied.
//
// blockIdx.x = b, blockIdx.y = which `rows` of y, blockIdx.z = which 64 output channels. A row of y is `tiles` tiles.
// kWidth: weights that are copied at a time.
template <int kWidth>
__global__ void __launch_bounds__(kThreads, 2)
    conv2d_forward_tensor_cores_kernel(float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ w,
                                       const float* __restrict__ bias, int in, int out, int side, int rows, int tiles) {
  extern __shared__ float4 shared[];
  const int thread = int(threadIdx.x), warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
  const int pitch = 8 * tiles + 2, plane = (rows + 2) * pitch, distance = plane_pitch(plane), area = side * side;
  const int first_row = int(blockIdx.y) * rows, first_out = int(blockIdx.z) * kOutputs;
  // Of a stage: filters, then planes [kPlanes][rows + 2][pitch], `distance` apart.
  const auto filters_of = [&](int stage) {
    return reinterpret_cast<float*>(shared) + stage * (Filters::kFloats + kPlanes * distance);
  };
  const auto copy = [&](int stage, int i0) {
    float* filters = filters_of(stage);
    float* planes = filters + Filters::kFloats;
    const int count = min(kPlanes, in - i0);
    Filters::copy<kWidth, kThreads>(filters, w, i0, first_out, in, out, thread);
#pragma unroll 1
    for (int n = thread; n < plane; n += kThreads) {
      const int r = first_row + n / pitch - 1, s = n % pitch - 1;
      const bool inside = r >= 0 && r < side && s >= 0 && s < side;
      const float* from = x + (std::int64_t(blockIdx.x) * in + i0) * area + r * side + s;
#pragma unroll
      for (int i = 0; i < kPlanes; ++i)
        device::copy_async_or_zero<4>(device::shared_address(planes + i * distance + n), from + i * area,
                                      inside && i < count);
    }
    device::copy_async_commit();
  };
  // What this thread has copied, rounded in its place.
  const auto round = [&](int stage) {
    float* filters = filters_of(stage);
    float* planes = filters + Filters::kFloats;
    Filters::round<kWidth, kThreads>(filters, thread);
#pragma unroll 1
    for (int n = thread; n < plane; n += kThreads) {
      float values[kPlanes];
#pragma unroll
      for (int i = 0; i < kPlanes; ++i) values[i] = planes[i * distance + n];
#pragma unroll
      for (int i = 0; i < kPlanes; ++i) planes[i * distance + n] = __uint_as_float(device::to_tf32(values[i]));
    }
  };

  // Row and column of y's tile c, of this warp; those that are too many do the last one again.
  const auto place = [&](int c) {
    const int tile = min(warp * kPositionTiles + c, rows * tiles - 1);
    return make_int2(tile / tiles, tile % tiles * 8);
  };
  int corner[kPositionTiles];
#pragma unroll
  for (int c = 0; c < kPositionTiles; ++c) corner[c] = t * distance + place(c).x * pitch + place(c).y + g;
  float sums[kRowTiles][kPositionTiles][4] = {};
  copy(0, 0);
  int stage = 0;
  for (int i0 = 0; i0 < in; i0 += kPlanes, stage ^= 1) {
    if (i0 + kPlanes < in) {
      copy(stage ^ 1, i0 + kPlanes);
      device::copy_async_wait<1>();
    } else {
      device::copy_async_wait<0>();
    }
    round(stage);
    __syncthreads();  // this stage is complete
    const float* filters = filters_of(stage);
    const float* planes = filters + Filters::kFloats;
    Filters::multiply(sums, filters, g, t,
                      [&](int c, int i, int u, int v) { return planes[corner[c] + i * distance + u * pitch + v]; });
    __syncthreads();  // everyone is done with it
  }
#pragma unroll
  for (int c = 0; c < kPositionTiles; ++c) {
    const int2 at = place(c);
    const int p = first_row + at.x, q = at.y + 2 * t;
    if (p >= side || warp * kPositionTiles + c >= rows * tiles) continue;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int o = first_out + 16 * r + g + 8 * (e / 2);
        if (o < out && q + e % 2 < side)
          y[(std::int64_t(blockIdx.x) * out + o) * area + p * side + q + e % 2] = sums[r][c][e] + bias[o];
      }
  }
}

}  // namespace

void conv2d_forward_tensor_cores(float* y, const float* x, const float* w, const float* bias, std::int64_t batch,
                                 int in, int out, int side, cudaStream_t stream) {
  constexpr int kMaxSide = 8 * kTiles;
  MNIST_REQUIRE(side <= kMaxSide, "conv2d_forward_tensor_cores: side is " << side << ", expected at most " << kMaxSide);
  const int tiles = ceil_div(side, 8), rows = std::min(kTiles / tiles, side);
  const dim3 grid(unsigned(batch), unsigned(ceil_div(side, rows)), unsigned(ceil_div(out, kOutputs)));
  const int stage = Filters::kFloats + kPlanes * plane_pitch((rows + 2) * (8 * tiles + 2));
  const int bytes = 2 * stage * int(sizeof(float));
  const auto kernel =
      device::is_wide(in, {w}) ? conv2d_forward_tensor_cores_kernel<4> : conv2d_forward_tensor_cores_kernel<1>;
  MNIST_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<grid, kThreads, bytes, stream>>>(y, x, w, bias, in, out, side, rows, tiles);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
