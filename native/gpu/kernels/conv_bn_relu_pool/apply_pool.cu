// conv_bn_relu_pool, apply_pool: batch norm, relu and pool in one pass over z; backward, two passes without dy.
#include "cuda/check.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/chunks.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/conv_bn_relu_pool/conv_bn_relu_pool.h"
#include "kernels/conv_bn_relu_pool/gradient.cuh"
#include "kernels/device/block_sum.cuh"

namespace mnist::kernels {
namespace {

constexpr int kBlock = 256, kSumsBlock = 1024;

// Calls visit(plane, window) for the windows of channel blockIdx.x in the images of chunk blockIdx.y.
template <class Visit>
__device__ void for_each_window(std::int64_t batch, int windows, Visit visit) {
  const std::int64_t begin = naive::chunk_begin(blockIdx.y, gridDim.y, batch);
  const int count = int(naive::chunk_begin(blockIdx.y + 1, gridDim.y, batch) - begin) * windows;
  for (int n = int(threadIdx.x); n < count; n += kBlock) {
    const int image = n / windows;
    visit((begin + image) * gridDim.x + blockIdx.x, n - image * windows);
  }
}

// A window of a plane of z: its upper two numbers and its lower two.
struct Window {
  float2 upper, lower;
};
__device__ Window load_window(const float* plane, int window, int pooled) {
  const float* corner = plane + routed_position(window, 0, pooled);
  return {*reinterpret_cast<const float2*>(corner), *reinterpret_cast<const float2*>(corner + 2 * pooled)};
}

__device__ void consider(float value, std::uint8_t k, float& best, std::uint8_t& where) {
  if (value > best || (isnan(value) && !isnan(best))) {  // strictly greater: the first of equals stays
    best = value;
    where = k;
  }
}

// blockIdx.x = c, blockIdx.y = chunk of images. With `of_images` each block first merges the images' statistics of its
// channel, and the blocks of chunk 0 set mean and var. An image's n values have the mean m_b and the sum S_b of squared
// distances from it. Those of all images: the mean of the m_b, and the sum of the S_b + n (m_b - mean)^2.
__global__ void __launch_bounds__(kBlock)
    apply_pool_kernel(float* __restrict__ a, std::uint8_t* __restrict__ route, float* mean, float* var,
                      const float* __restrict__ z, const float* __restrict__ of_images, const float* __restrict__ gamma,
                      const float* __restrict__ beta, std::int64_t batch, int pooled) {
  __shared__ float sums[kBlock], merged[2];
  const int c = int(blockIdx.x), channels = int(gridDim.x), windows = pooled * pooled, t = int(threadIdx.x);
  if (of_images) {
    const float *means = of_images + c * batch, *squares = of_images + (channels + c) * batch;
    float sum = 0, distances = 0;
    for (std::int64_t b = t; b < batch; b += kBlock) sum += means[b];
    sum = device::block_sum<kBlock>(sum, sums);
    if (t == 0) merged[0] = sum / float(batch);
    __syncthreads();  // the mean is there
    for (std::int64_t b = t; b < batch; b += kBlock)
      distances += squares[b] + float(4 * windows) * (means[b] - merged[0]) * (means[b] - merged[0]);
    distances = device::block_sum<kBlock>(distances, sums);
    if (t == 0) {
      merged[1] = distances / (float(batch) * float(4 * windows));
      if (blockIdx.y == 0) mean[c] = merged[0], var[c] = merged[1];
    }
  } else if (t == 0) {
    merged[0] = mean[c], merged[1] = var[c];
  }
  __syncthreads();  // mean and variance are there
  const float centre = merged[0], scale = gamma[c] / sqrtf(merged[1] + float(kBatchNormEpsilon)), shift = beta[c];
  for_each_window(batch, windows, [&](std::int64_t plane, int window) {
    const Window of = load_window(z + plane * 4 * windows, window, pooled);
    const auto y = [&](float value) { return (value - centre) * scale + shift; };
    float best = y(of.upper.x);
    std::uint8_t where = 0;
    consider(y(of.upper.y), 1, best, where);
    consider(y(of.lower.x), 2, best, where);
    consider(y(of.lower.y), 3, best, where);
    const bool dead = best <= 0;
    a[plane * windows + window] = dead ? 0 : best;
    route[plane * windows + window] = dead ? kDead : where;
  });
}

// blockIdx.x = c. dbeta = sum of da over windows that relu let through, dgamma = sum of da * xhat there.
__global__ void __launch_bounds__(kSumsBlock)
    pooled_sums_kernel(float* __restrict__ dgamma, float* __restrict__ dbeta, const float* __restrict__ da,
                       const float* __restrict__ z, const std::uint8_t* __restrict__ route,
                       const float* __restrict__ mean, const float* __restrict__ var, std::int64_t batch, int pooled) {
  __shared__ float sums[kSumsBlock];
  const int c = int(blockIdx.x), channels = int(gridDim.x), windows = pooled * pooled;
  const float centre = mean[c], inverse = 1 / sqrtf(var[c] + float(kBatchNormEpsilon));
  float sum = 0, sum_xhat = 0;
#pragma unroll 4
  for (std::int64_t n = threadIdx.x; n < batch * windows; n += kSumsBlock) {
    const std::int64_t b = n / windows, plane = b * channels + c;
    const int window = int(n - b * windows), way = route[plane * windows + window];
    const bool alive = way != kDead;
    const float value = z[plane * 4 * windows + routed_position(window, alive ? way : 0, pooled)];
    const float d = alive ? da[plane * windows + window] : 0;
    sum += d;
    sum_xhat += d * ((value - centre) * inverse);
  }
  sum = device::block_sum<kSumsBlock>(sum, sums);
  sum_xhat = device::block_sum<kSumsBlock>(sum_xhat, sums);
  if (threadIdx.x == 0) dbeta[c] = sum, dgamma[c] = sum_xhat;
}

// blockIdx.x = c, blockIdx.y = chunk of images.
__global__ void __launch_bounds__(kBlock)
    dz_kernel(float* __restrict__ dz, const float* __restrict__ da, const float* __restrict__ z,
              const std::uint8_t* __restrict__ route, BatchNormGradient by, std::int64_t batch, int pooled) {
  const int windows = pooled * pooled;
  const ChannelGradient channel = channel_gradient(by, int(blockIdx.x));
  for_each_window(batch, windows, [&](std::int64_t plane, int window) {
    const Window of = load_window(z + plane * 4 * windows, window, pooled);
    const int way = route[plane * windows + window];
    const float d = da[plane * windows + window];
    float* corner = dz + plane * 4 * windows + routed_position(window, 0, pooled);
    const auto at = [&](int k, float value) { return channel.of(way == k ? d : 0, value); };
    *reinterpret_cast<float2*>(corner) = make_float2(at(0, of.upper.x), at(1, of.upper.y));
    *reinterpret_cast<float2*>(corner + 2 * pooled) = make_float2(at(2, of.lower.x), at(3, of.lower.y));
  });
}

void require_even(const char* what, const float* z, int side) {
  MNIST_REQUIRE(side % 2 == 0, what << ": side is " << side << ", expected an even number");
  MNIST_REQUIRE(reinterpret_cast<std::uintptr_t>(z) % sizeof(float2) == 0, what << ": z must be aligned to 8 bytes");
}

}  // namespace

void merge_apply_pool(float* a, std::uint8_t* route, float* mean, float* var, const float* z, const float* of_images,
                      const float* gamma, const float* beta, std::int64_t batch, int channels, int side,
                      cudaStream_t stream) {
  require_even("apply_pool", z, side);
  const dim3 grid(unsigned(channels), unsigned(naive::chunk_count(batch)));
  apply_pool_kernel<<<grid, kBlock, 0, stream>>>(a, route, mean, var, z, of_images, gamma, beta, batch, side / 2);
  MNIST_CHECK_LAUNCH();
}

// Without `of_images` the kernel only reads mean and var.
void apply_pool(float* a, std::uint8_t* route, const float* z, const float* gamma, const float* beta, const float* mean,
                const float* var, std::int64_t batch, int channels, int side, cudaStream_t stream) {
  merge_apply_pool(a, route, const_cast<float*>(mean), const_cast<float*>(var), z, nullptr, gamma, beta, batch,
                   channels, side, stream);
}

void pooled_sums(float* dgamma, float* dbeta, const float* da, const float* z, const std::uint8_t* route,
                 const float* mean, const float* var, std::int64_t batch, int channels, int side, cudaStream_t stream) {
  pooled_sums_kernel<<<unsigned(channels), kSumsBlock, 0, stream>>>(dgamma, dbeta, da, z, route, mean, var, batch,
                                                                    side / 2);
  MNIST_CHECK_LAUNCH();
}

void dz_of_pooled(float* dz, const float* da, const float* z, const std::uint8_t* route, const float* gamma,
                  const float* mean, const float* var, const float* dgamma, const float* dbeta, std::int64_t batch,
                  int channels, int side, cudaStream_t stream) {
  require_even("dz_of_pooled", z, side);
  const dim3 grid(unsigned(channels), unsigned(naive::chunk_count(batch)));
  const auto by = gradient_of({da, z, route, gamma, mean, var, dgamma, dbeta}, batch, side);
  dz_kernel<<<grid, kBlock, 0, stream>>>(dz, da, z, route, by, batch, side / 2);
  MNIST_CHECK_LAUNCH();
}

void conv_bn_relu_pool_forward_apply_pool(float* a, std::uint8_t* route, float* z, float* statistics, float* scratch,
                                          const float* x, const float* w, const float* bias, const float* gamma,
                                          const float* beta, std::int64_t batch, int in, int out, int side,
                                          cudaStream_t stream) {
  float *mean = statistics, *var = statistics + out;
  conv2d_forward_register_tiled(z, x, w, bias, batch, in, out, side, stream);
  batch_norm_statistics_groups(mean, var, scratch, z, batch, out, side * side, stream);
  apply_pool(a, route, z, gamma, beta, mean, var, batch, out, side, stream);
}

void conv_bn_relu_pool_backward_pooled_sums(float* dx, float* dw, float* dgamma, float* dbeta, float* scratch,
                                            const float* da, const float* x, const float* z, const float* statistics,
                                            const std::uint8_t* route, const float* w, const float* gamma,
                                            std::int64_t batch, int in, int out, int side, cudaStream_t stream) {
  const float *mean = statistics, *var = statistics + out;
  float *dz = scratch, *partial = dz + aligned_floats(batch * out * side * side);
  pooled_sums(dgamma, dbeta, da, z, route, mean, var, batch, out, side, stream);
  dz_of_pooled(dz, da, z, route, gamma, mean, var, dgamma, dbeta, batch, out, side, stream);
  conv2d_backward_weight_register_tiled(dw, partial, dz, x, batch, in, out, side, stream);
  if (dx) conv2d_backward_data_register_tiled(dx, dz, w, batch, in, out, side, stream);
}

}  // namespace mnist::kernels
