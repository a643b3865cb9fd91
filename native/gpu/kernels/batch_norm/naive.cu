// batch_norm: blocks sum chunks of a channel, one thread a channel adds them, one thread an element normalises.
#include "cuda/check.h"
#include "kernels/batch_norm/naive_ops.h"
#include "kernels/chunks.h"
#include "kernels/device/block_sum.cuh"
#include "kernels/device/for_each_of_chunk.cuh"
#include "mnist/ceil_div.h"
#include "mnist/model.h"

namespace mnist::kernels::naive {
namespace {

constexpr int kBlock = 256;
template <class T>
constexpr T kEpsilon = T(kBatchNormEpsilon);

// partial[chunk,c] = sum of x, or of (x - mean[c])^2 where there is a mean.
template <class T>
__global__ void moment_kernel(T* __restrict__ partial, const T* __restrict__ x, const T* __restrict__ mean,
                              std::int64_t batch, int area) {
  __shared__ T shared[kBlock];
  T sum = 0;
  if (mean) {
    const T centre = mean[blockIdx.x];
    device::for_each_of_chunk<kBlock>(batch, area, [&](std::int64_t k) { sum += (x[k] - centre) * (x[k] - centre); });
  } else {
    device::for_each_of_chunk<kBlock>(batch, area, [&](std::int64_t k) { sum += x[k]; });
  }
  sum = device::block_sum<kBlock>(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

// total[c] = scale * (partial[0,c] + partial[1,c] + ...).
template <class T>
__global__ void add_chunks_kernel(T* __restrict__ total, const T* __restrict__ partial, T scale, int channels,
                                  int chunks) {
  const int c = int(blockIdx.x * kBlock + threadIdx.x);
  if (c >= channels) return;
  T sum = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) sum += partial[chunk * channels + c];
  total[c] = scale * sum;
}

// blockIdx.x = b * channels + c, blockIdx.y = which 256 positions.
template <class T>
__global__ void batch_norm_forward_kernel(T* __restrict__ y, const T* __restrict__ x, const T* __restrict__ gamma,
                                          const T* __restrict__ beta, const T* __restrict__ mean,
                                          const T* __restrict__ var, int channels, int area) {
  const int position = int(blockIdx.y * kBlock + threadIdx.x), c = int(blockIdx.x) % channels;
  if (position >= area) return;
  const std::int64_t k = std::int64_t(blockIdx.x) * area + position;
  y[k] = gamma[c] * (x[k] - mean[c]) / sqrt(var[c] + kEpsilon<T>) + beta[c];
}

// partial[chunk,c] = sum of dy, and partial_xhat[chunk,c] = sum of dy * xhat.
template <class T>
__global__ void gradient_sums_kernel(T* __restrict__ partial, T* __restrict__ partial_xhat, const T* __restrict__ dy,
                                     const T* __restrict__ x, const T* __restrict__ mean, const T* __restrict__ var,
                                     std::int64_t batch, int area) {
  __shared__ T shared[kBlock];
  const T centre = mean[blockIdx.x], sigma = sqrt(var[blockIdx.x] + kEpsilon<T>);
  T sum = 0, sum_xhat = 0;
  device::for_each_of_chunk<kBlock>(batch, area, [&](std::int64_t k) {
    sum += dy[k];
    sum_xhat += dy[k] * ((x[k] - centre) / sigma);
  });
  sum = device::block_sum<kBlock>(sum, shared);
  sum_xhat = device::block_sum<kBlock>(sum_xhat, shared);
  if (threadIdx.x == 0) {
    partial[blockIdx.y * gridDim.x + blockIdx.x] = sum;
    partial_xhat[blockIdx.y * gridDim.x + blockIdx.x] = sum_xhat;
  }
}

// Geometry of the forward kernel; `per_value` is 1/N.
template <class T>
__global__ void batch_norm_backward_kernel(T* __restrict__ dx, const T* __restrict__ dy, const T* __restrict__ x,
                                           const T* __restrict__ dgamma, const T* __restrict__ dbeta,
                                           const T* __restrict__ gamma, const T* __restrict__ mean,
                                           const T* __restrict__ var, T per_value, int channels, int area) {
  const int position = int(blockIdx.y * kBlock + threadIdx.x), c = int(blockIdx.x) % channels;
  if (position >= area) return;
  const std::int64_t k = std::int64_t(blockIdx.x) * area + position;
  const T sigma = sqrt(var[c] + kEpsilon<T>), xhat = (x[k] - mean[c]) / sigma;
  dx[k] = gamma[c] / sigma * (dy[k] - dbeta[c] * per_value - xhat * (dgamma[c] * per_value));
}

void require_sizes(const char* what, std::int64_t batch, int channels, int area) {
  MNIST_REQUIRE(batch > 0 && channels > 0 && area > 0, what << ": batch " << batch << ", " << channels
                                                            << " channels, area " << area
                                                            << ", expected all at least 1");
}

dim3 plane_grid(std::int64_t planes, int area) { return {unsigned(planes), unsigned(ceil_div(area, kBlock))}; }

template <class T>
void add_chunks(T* total, const T* partial, double scale, std::int64_t batch, int channels, cudaStream_t stream) {
  add_chunks_kernel<<<unsigned(ceil_div(channels, kBlock)), kBlock, 0, stream>>>(total, partial, T(scale), channels,
                                                                                 int(chunk_count(batch)));
  MNIST_CHECK_LAUNCH();
}

}  // namespace

template <class T>
void batch_norm_statistics(T* mean, T* var, T* partial, const T* x, std::int64_t batch, int channels, int area,
                           cudaStream_t stream) {
  require_sizes("batch_norm_statistics", batch, channels, area);
  const dim3 grid(unsigned(channels), unsigned(chunk_count(batch)));
  const double per_value = 1 / (double(batch) * area);
  moment_kernel<T><<<grid, kBlock, 0, stream>>>(partial, x, nullptr, batch, area);
  MNIST_CHECK_LAUNCH();
  add_chunks(mean, partial, per_value, batch, channels, stream);
  moment_kernel<<<grid, kBlock, 0, stream>>>(partial, x, mean, batch, area);
  MNIST_CHECK_LAUNCH();
  add_chunks(var, partial, per_value, batch, channels, stream);
}

template <class T>
void batch_norm_forward(T* y, const T* x, const T* gamma, const T* beta, const T* mean, const T* var,
                        std::int64_t batch, int channels, int area, cudaStream_t stream) {
  require_sizes("batch_norm_forward", batch, channels, area);
  batch_norm_forward_kernel<<<plane_grid(batch * channels, area), kBlock, 0, stream>>>(y, x, gamma, beta, mean, var,
                                                                                       channels, area);
  MNIST_CHECK_LAUNCH();
}

template <class T>
void batch_norm_backward(T* dx, T* dgamma, T* dbeta, T* partial, const T* dy, const T* x, const T* gamma, const T* mean,
                         const T* var, std::int64_t batch, int channels, int area, cudaStream_t stream) {
  require_sizes("batch_norm_backward", batch, channels, area);
  const dim3 grid(unsigned(channels), unsigned(chunk_count(batch)));
  T* partial_xhat = partial + chunk_count(batch) * channels;
  gradient_sums_kernel<<<grid, kBlock, 0, stream>>>(partial, partial_xhat, dy, x, mean, var, batch, area);
  MNIST_CHECK_LAUNCH();
  add_chunks(dbeta, partial, 1, batch, channels, stream);
  add_chunks(dgamma, partial_xhat, 1, batch, channels, stream);
  batch_norm_backward_kernel<<<plane_grid(batch * channels, area), kBlock, 0, stream>>>(
      dx, dy, x, dgamma, dbeta, gamma, mean, var, T(1 / (double(batch) * area)), channels, area);
  MNIST_CHECK_LAUNCH();
}

#define MNIST_INSTANTIATE(T)                                                                                        \
  template void batch_norm_statistics(T*, T*, T*, const T*, std::int64_t, int, int, cudaStream_t);                  \
  template void batch_norm_forward(T*, const T*, const T*, const T*, const T*, const T*, std::int64_t, int, int,    \
                                   cudaStream_t);                                                                   \
  template void batch_norm_backward(T*, T*, T*, T*, const T*, const T*, const T*, const T*, const T*, std::int64_t, \
                                    int, int, cudaStream_t)
MNIST_INSTANTIATE(float);
MNIST_INSTANTIATE(double);

}  // namespace mnist::kernels::naive
