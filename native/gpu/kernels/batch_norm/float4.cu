// batch_norm, float4: four numbers a load; the statistics in one pass, forward in one more, backward in two.
#include "cuda/check.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/device/multiprocessor.cuh"
#include "kernels/device/wide.cuh"
#include "mnist/ceil_div.h"
#include "mnist/model.h"

namespace mnist::kernels {
namespace {

constexpr int kBlock = 256;
constexpr int kBlocksTogether = device::kResidentThreads / kBlock;  // of backward: at B=256 all blocks run at once
constexpr int kPlanes = 4, kLanes = kBlock / kPlanes;               // planes of a block, and threads of a plane
constexpr float kEpsilon = float(kBatchNormEpsilon);

__device__ float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffff, value, step);
  return value;
}

// threadIdx.x = where in the plane, threadIdx.y = which of 4 planes (b,c). Calls visit(c)(k) for every kWidth numbers
// of the plane, k where they start. The last planes come first: the pass before this one left them in the L2 cache.
template <int kWidth, class Visit>
__device__ void for_each_of_plane(std::int64_t planes, int channels, int area, Visit visit) {
  const std::int64_t plane = planes - 1 - (std::int64_t(blockIdx.x) * kPlanes + threadIdx.y);
  if (plane < 0) return;
  const int c = int(plane % channels);
  const auto body = visit(c);
#pragma unroll 4
  for (int k = int(threadIdx.x) * kWidth; k < area; k += kLanes * kWidth) body(plane * area + k);
}

template <int kWidth>
__global__ void forward_kernel(float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ gamma,
                               const float* __restrict__ beta, const float* __restrict__ mean,
                               const float* __restrict__ var, std::int64_t planes, int channels, int area) {
  for_each_of_plane<kWidth>(planes, channels, area, [=](int c) {
    const float centre = mean[c], scale = gamma[c] / sqrtf(var[c] + kEpsilon), shift = beta[c];
    return [=](std::int64_t k) {
      auto values = device::load<kWidth>(x + k);
      for (float& value : values.of) value = (value - centre) * scale + shift;
      device::store(y + k, values);
    };
  });
}

// partial[chunk,c] = sum of dy, and partial_xhat[chunk,c] = sum of dy * xhat.
template <int kWidth>
__global__ void __launch_bounds__(kBlock, kBlocksTogether)
    gradient_sums_kernel(float* __restrict__ partial, float* __restrict__ partial_xhat, const float* __restrict__ dy,
                         const float* __restrict__ x, const float* __restrict__ mean, const float* __restrict__ var,
                         std::int64_t batch, int area) {
  __shared__ float of_warp[2][kBlock / 32];
  const device::WideChunk<kWidth> chunk(batch, area);
  const float centre = mean[blockIdx.x], inverse = 1 / sqrtf(var[blockIdx.x] + kEpsilon);
  float sum = 0, sum_xhat = 0;
#pragma unroll 1
  for (int n = int(threadIdx.x); n < chunk.size; n += kBlock) {
    const std::int64_t k = chunk.at(n);
    const auto d = device::load<kWidth>(dy + k), values = device::load<kWidth>(x + k);
    for (int j = 0; j < kWidth; ++j) {
      sum += d.of[j];
      sum_xhat += d.of[j] * ((values.of[j] - centre) * inverse);
    }
  }
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  sum = warp_sum(sum);
  sum_xhat = warp_sum(sum_xhat);
  if (lane == 0) {
    of_warp[0][warp] = sum;
    of_warp[1][warp] = sum_xhat;
  }
  __syncthreads();  // the sums of all warps are there
  if (warp > 1) return;
  sum = warp_sum(lane < kBlock / 32 ? of_warp[warp][lane] : 0);
  if (lane == 0) (warp == 0 ? partial : partial_xhat)[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

// Every block adds the chunks of its channel, those of chunk 0 for dgamma and dbeta as well. The last numbers come
// first: the pass before this one left them in the L2 cache. `per_value` is 1/N.
template <int kWidth>
__global__ void __launch_bounds__(kBlock, kBlocksTogether)
    backward_kernel(float* __restrict__ dx, float* __restrict__ dgamma, float* __restrict__ dbeta,
                    const float* __restrict__ partial, const float* __restrict__ partial_xhat,
                    const float* __restrict__ dy, const float* __restrict__ x, const float* __restrict__ gamma,
                    const float* __restrict__ mean, const float* __restrict__ var, float per_value, std::int64_t batch,
                    int area) {
  __shared__ float totals[2];  // dbeta, dgamma
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, c = int(blockIdx.x);
  if (warp < 2) {
    const float* from = warp == 0 ? partial : partial_xhat;
    float sum = 0;
    for (unsigned k = lane; k < gridDim.y; k += 32) sum += from[k * gridDim.x + c];
    sum = warp_sum(sum);
    if (lane == 0) totals[warp] = sum;
    if (lane == 0 && blockIdx.y == 0) (warp == 0 ? dbeta : dgamma)[c] = sum;
  }
  const device::WideChunk<kWidth> chunk(batch, area, gridDim.y - 1 - blockIdx.y);
  const float centre = mean[c], inverse = 1 / sqrtf(var[c] + kEpsilon), scale = gamma[c] * inverse;
  __syncthreads();  // both totals are there
  const float of_mean = totals[0] * per_value, of_scale = totals[1] * per_value;
#pragma unroll 1
  for (int n = chunk.size - 1 - int(threadIdx.x); n >= 0; n -= kBlock) {
    const std::int64_t k = chunk.at(n);
    auto d = device::load<kWidth>(dy + k);
    const auto values = device::load<kWidth>(x + k);
    for (int j = 0; j < kWidth; ++j)
      d.of[j] = scale * (d.of[j] - of_mean - (values.of[j] - centre) * inverse * of_scale);
    device::store(dx + k, d);
  }
}

}  // namespace

void batch_norm_normalize_float4(float* y, const float* x, const float* gamma, const float* beta, const float* mean,
                                 const float* var, std::int64_t batch, int channels, int area, cudaStream_t stream) {
  const dim3 block(kLanes, kPlanes);
  const auto kernel = device::is_wide(area, {y, x}) ? forward_kernel<4> : forward_kernel<1>;
  const std::int64_t planes = batch * channels;
  kernel<<<unsigned(ceil_div(planes, kPlanes)), block, 0, stream>>>(y, x, gamma, beta, mean, var, planes, channels,
                                                                    area);
  MNIST_CHECK_LAUNCH();
}

void batch_norm_backward_float4(float* dx, float* dgamma, float* dbeta, float* partial, const float* dy, const float* x,
                                const float* gamma, const float* mean, const float* var, std::int64_t batch,
                                int channels, int area, cudaStream_t stream) {
  const bool wide = device::is_wide(area, {dx, dy, x});
  const auto chunks = naive::chunk_count(batch);
  const dim3 grid{unsigned(channels), unsigned(chunks)};
  float* partial_xhat = partial + chunks * channels;
  const auto sums = wide ? gradient_sums_kernel<4> : gradient_sums_kernel<1>;
  sums<<<grid, kBlock, 0, stream>>>(partial, partial_xhat, dy, x, mean, var, batch, area);
  MNIST_CHECK_LAUNCH();
  const auto kernel = wide ? backward_kernel<4> : backward_kernel<1>;
  kernel<<<grid, kBlock, 0, stream>>>(dx, dgamma, dbeta, partial, partial_xhat, dy, x, gamma, mean, var,
                                      float(1 / (double(batch) * area)), batch, area);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
