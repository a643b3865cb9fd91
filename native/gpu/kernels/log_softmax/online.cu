// log_softmax, online: one pass for maximum and sum, by a thread or by a warp a row.
#include "cuda/check.h"
#include "kernels/log_softmax/log_softmax.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kBlock = 128;

// The maximum seen so far, and the sum of exp(x - top).
struct Online {
  float top, sum;

  __device__ void add(float x) {
    if (x > top) {  // divergence: where lanes differ, the warp runs both sides, one after the other
      sum = sum * expf(top - x) + 1;
      top = x;
    } else {
      sum += expf(x - top);
    }
  }

  // A sum of 0 means that nothing was seen: the maximum itself adds 1.
  __device__ void merge(const Online& other) {
    if (other.sum == 0) return;
    if (sum == 0) {
      *this = other;
      return;
    }
    const float higher = fmaxf(top, other.top);
    sum = sum * expf(top - higher) + other.sum * expf(other.top - higher);
    top = higher;
  }
};

__global__ void log_softmax_forward_online_kernel(float* __restrict__ log_p, const float* __restrict__ x,
                                                  std::int64_t batch, int classes) {
  const std::int64_t b = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (b >= batch) return;
  const float* row = x + b * classes;
  Online seen{row[0], 1};
  for (int k = 1; k < classes; ++k) seen.add(row[k]);
  const float shift = logf(seen.sum);
  for (int k = 0; k < classes; ++k) log_p[b * classes + k] = row[k] - seen.top - shift;
}

// threadIdx.x = lane, threadIdx.y = which of the block's rows.
__global__ void log_softmax_forward_warp_kernel(float* __restrict__ log_p, const float* __restrict__ x,
                                                std::int64_t batch, int classes) {
  const std::int64_t b = std::int64_t(blockIdx.x) * (kBlock / 32) + threadIdx.y;
  if (b >= batch) return;  // the whole warp leaves together
  const float* row = x + b * classes;
  const int lane = int(threadIdx.x);
  Online seen{-INFINITY, 0};
  if (lane < classes) seen = {row[lane], 1};
  for (int k = lane + 32; k < classes; k += 32) seen.add(row[k]);
  for (int step = 16; step > 0; step /= 2)
    seen.merge({__shfl_xor_sync(0xffffffff, seen.top, step), __shfl_xor_sync(0xffffffff, seen.sum, step)});
  const float shift = logf(seen.sum);
  for (int k = lane; k < classes; k += 32) log_p[b * classes + k] = row[k] - seen.top - shift;
}

}  // namespace

void log_softmax_forward_online(float* log_p, const float* x, std::int64_t batch, int classes, cudaStream_t stream) {
  log_softmax_forward_online_kernel<<<unsigned(ceil_div(batch, kBlock)), kBlock, 0, stream>>>(log_p, x, batch, classes);
  MNIST_CHECK_LAUNCH();
}

void log_softmax_forward_warp(float* log_p, const float* x, std::int64_t batch, int classes, cudaStream_t stream) {
  constexpr int kRows = kBlock / 32;
  const dim3 block(32, kRows);
  log_softmax_forward_warp_kernel<<<unsigned(ceil_div(batch, kRows)), block, 0, stream>>>(log_p, x, batch, classes);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
