// conv2d, tensor cores: register_tiled's planes and filters in shared memory, multiplied in tf32; 64 output channels by
// 32 positions a warp.
#include <algorithm>

#include "cuda/check.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/device/copies.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/wide.cuh"
#include "mnist/ceil_div.h"
#include "mnist/model.h"

namespace mnist::kernels {
namespace {

constexpr int kPlanes = 8;                        // input channels in shared memory at a time: the depth of a product
constexpr int kRowTiles = 4, kPositionTiles = 4;  // 16x8 products of a warp: 16 output channels, 8 positions of a row
constexpr int kOutputs = 16 * kRowTiles;          // of a block
constexpr int kWarps = 7, kThreads = 32 * kWarps;
constexpr int kTiles = kWarps * kPositionTiles;  // of 8 positions, of a block: an image with sides of 14
constexpr int kTerms = kPlanes * kTaps;
// Distances in shared memory by which the 32 lanes of a fragment fall on 32 banks: (12 g + 9 t) % 32 for the filters,
// (g + 8 t) % 32 for the planes.
constexpr int kFilterPitch = kTerms + 4;
constexpr int plane_pitch(int plane) { return (plane + 23) / 32 * 32 + 8; }

// Tap (u,v) is a product of its own: 64 output channels by 8 input channels times 8 input channels by positions, which
// lie side by side in a plane, u rows and v columns from their place. The next 8 input channels are on their way
// meanwhile.
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
  // Of a stage: filters [kOutputs][kFilterPitch], then planes [kPlanes][rows + 2][pitch], `distance` apart.
  const auto filters_of = [&](int stage) {
    return reinterpret_cast<float*>(shared) + stage * (kOutputs * kFilterPitch + kPlanes * distance);
  };
  const auto copy = [&](int stage, int i0) {
    float* filters = filters_of(stage);
    float* planes = filters + kOutputs * kFilterPitch;
    const int count = min(kPlanes, in - i0);
#pragma unroll 1
    for (int n = thread; n < kOutputs * kTerms / kWidth; n += kThreads) {
      const int o = n / (kTerms / kWidth), k = n % (kTerms / kWidth) * kWidth;
      device::copy_async_or_zero<4 * kWidth>(device::shared_address(filters + o * kFilterPitch + k),
                                             w + ((first_out + o) * in + i0) * kTaps + k,
                                             first_out + o < out && k < count * kTaps);
    }
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
    float* planes = filters + kOutputs * kFilterPitch;
    const auto to_tf32 = [](float value) { return __uint_as_float(device::to_tf32(value)); };
#pragma unroll 1
    for (int n = thread; n < kOutputs * kTerms / kWidth; n += kThreads) {
      float* at = filters + n / (kTerms / kWidth) * kFilterPitch + n % (kTerms / kWidth) * kWidth;
      auto values = device::load<kWidth>(at);
      for (float& value : values.of) value = to_tf32(value);
      device::store(at, values);
    }
#pragma unroll 1
    for (int n = thread; n < plane; n += kThreads) {
      float values[kPlanes];
#pragma unroll
      for (int i = 0; i < kPlanes; ++i) values[i] = planes[i * distance + n];
#pragma unroll
      for (int i = 0; i < kPlanes; ++i) planes[i * distance + n] = to_tf32(values[i]);
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
    const float* planes = filters + kOutputs * kFilterPitch;
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      std::uint32_t a[kRowTiles][4], b[kPositionTiles][2];
      for (int r = 0; r < kRowTiles; ++r)
        for (int e = 0; e < 4; ++e)
          a[r][e] =
              __float_as_uint(filters[(16 * r + g + 8 * (e % 2)) * kFilterPitch + (t + 4 * (e / 2)) * kTaps + tap]);
      for (int c = 0; c < kPositionTiles; ++c)
        for (int e = 0; e < 2; ++e)
          b[c][e] = __float_as_uint(planes[corner[c] + 4 * e * distance + tap / 3 * pitch + tap % 3]);
      for (int r = 0; r < kRowTiles; ++r)
        for (int c = 0; c < kPositionTiles; ++c) device::mma_tf32(sums[r][c], a[r], b[c]);
    }
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
  const int stage = kOutputs * kFilterPitch + kPlanes * plane_pitch((rows + 2) * (8 * tiles + 2));
  const int bytes = 2 * stage * int(sizeof(float));
  const auto kernel =
      device::is_wide(in, {w}) ? conv2d_forward_tensor_cores_kernel<4> : conv2d_forward_tensor_cores_kernel<1>;
  MNIST_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<grid, kThreads, bytes, stream>>>(y, x, w, bias, in, out, side, rows, tiles);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
