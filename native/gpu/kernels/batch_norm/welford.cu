// batch_norm statistics, Welford: one pass that never subtracts two large numbers, by one number a step or by eight.
#include "cuda/check.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/device/for_each_of_chunk.cuh"
#include "kernels/device/multiprocessor.cuh"
#include "kernels/device/wide.cuh"

namespace mnist::kernels {
namespace {

constexpr int kBlock = 256, kWarps = kBlock / 32;
constexpr int kBlocksTogether = device::kResidentThreads / kBlock;  // of groups: at B=256 all blocks run at once
constexpr int kGroup = 2;                                           // loads of a group

// Of n numbers: their mean, and the sum of their squared distances from it.
struct Moments {
  float n = 0, mean = 0, squares = 0;

  __device__ void add(float x) {
    n += 1;
    const float before = x - mean;
    mean += before / n;
    squares += before * (x - mean);
  }

  // Chan, Golub, LeVeque 1979.
  __device__ void merge(const Moments& other) {
    if (other.n == 0) return;
    const float total = n + other.n, difference = other.mean - mean;
    mean += difference * (other.n / total);
    squares += other.squares + difference * difference * n * (other.n / total);
    n = total;
  }
};

__device__ void warp_merge(Moments& m) {
  for (int step = 16; step > 0; step /= 2)
    m.merge({__shfl_down_sync(0xffffffff, m.n, step), __shfl_down_sync(0xffffffff, m.mean, step),
             __shfl_down_sync(0xffffffff, m.squares, step)});
}

// The moments of a block to means[chunk,c] and squares[chunk,c].
__device__ void keep_chunk(float* means, float* squares, Moments m) {
  __shared__ float shared[3][kWarps];
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  warp_merge(m);
  if (lane == 0) {
    shared[0][warp] = m.n;
    shared[1][warp] = m.mean;
    shared[2][warp] = m.squares;
  }
  __syncthreads();  // the moments of all warps are there
  if (warp > 0) return;
  m = {};
  if (lane < kWarps) m = {shared[0][lane], shared[1][lane], shared[2][lane]};
  warp_merge(m);
  if (lane == 0) {
    means[blockIdx.y * gridDim.x + blockIdx.x] = m.mean;
    squares[blockIdx.y * gridDim.x + blockIdx.x] = m.squares;
  }
}

__global__ void chunk_kernel(float* __restrict__ means, float* __restrict__ squares, const float* __restrict__ x,
                             std::int64_t batch, int area) {
  Moments m;
  device::for_each_of_chunk<kBlock>(batch, area, [&](std::int64_t k) { m.add(x[k]); });
  keep_chunk(means, squares, m);
}

// The same by kGroup times kWidth numbers at a time, which stay in registers until their own mean is known.
template <int kWidth>
__global__ void __launch_bounds__(kBlock, kBlocksTogether)
    chunk_groups_kernel(float* __restrict__ means, float* __restrict__ squares, const float* __restrict__ x,
                        std::int64_t batch, int area) {
  const device::WideChunk<kWidth> chunk(batch, area);
  Moments m;
  for (int first = int(threadIdx.x); first < chunk.size; first += kGroup * kBlock) {
    device::Wide<kWidth> values[kGroup];
    float sum = 0;
    int count = 0;
#pragma unroll
    for (int k = 0; k < kGroup; ++k) {
      const int n = first + k * kBlock;
      if (n >= chunk.size) break;
      values[k] = device::load<kWidth>(x + chunk.at(n));
      count = k + 1;
    }
#pragma unroll
    for (int k = 0; k < kGroup; ++k)
      for (int j = 0; j < kWidth; ++j) sum += k < count ? values[k].of[j] : 0;
    Moments group{float(count * kWidth), sum / float(count * kWidth), 0};
#pragma unroll
    for (int k = 0; k < kGroup; ++k)
      for (int j = 0; j < kWidth; ++j) {
        const float distance = k < count ? values[k].of[j] - group.mean : 0;
        group.squares += distance * distance;
      }
    m.merge(group);
  }
  keep_chunk(means, squares, m);
}

// One warp a channel.
__global__ void finish_kernel(float* __restrict__ mean, float* __restrict__ var, const float* __restrict__ means,
                              const float* __restrict__ squares, std::int64_t batch, int area, int chunks) {
  Moments m;
  for (int chunk = int(threadIdx.x); chunk < chunks; chunk += 32) {
    const std::int64_t images = naive::chunk_begin(chunk + 1, chunks, batch) - naive::chunk_begin(chunk, chunks, batch);
    m.merge({float(images * area), means[chunk * gridDim.x + blockIdx.x], squares[chunk * gridDim.x + blockIdx.x]});
  }
  warp_merge(m);
  if (threadIdx.x == 0) {
    mean[blockIdx.x] = m.mean;
    var[blockIdx.x] = m.squares / m.n;
  }
}

// `chunk` sums chunks of images.
template <class Kernel>
void launch(Kernel chunk, float* mean, float* var, float* partial, const float* x, std::int64_t batch, int channels,
            int area, cudaStream_t stream) {
  const int chunks = int(naive::chunk_count(batch));
  const dim3 grid{unsigned(channels), unsigned(chunks)};
  float* squares = partial + std::int64_t(chunks) * channels;
  chunk<<<grid, kBlock, 0, stream>>>(partial, squares, x, batch, area);
  MNIST_CHECK_LAUNCH();
  finish_kernel<<<unsigned(channels), 32, 0, stream>>>(mean, var, partial, squares, batch, area, chunks);
  MNIST_CHECK_LAUNCH();
}

}  // namespace

void batch_norm_statistics_welford(float* mean, float* var, float* partial, const float* x, std::int64_t batch,
                                   int channels, int area, cudaStream_t stream) {
  launch(chunk_kernel, mean, var, partial, x, batch, channels, area, stream);
}

void batch_norm_statistics_groups(float* mean, float* var, float* partial, const float* x, std::int64_t batch,
                                  int channels, int area, cudaStream_t stream) {
  const bool wide = device::is_wide(area, {x});
  launch(wide ? chunk_groups_kernel<4> : chunk_groups_kernel<1>, mean, var, partial, x, batch, channels, area, stream);
}

}  // namespace mnist::kernels
