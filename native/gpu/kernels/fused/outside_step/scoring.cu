// Evaluation apart from conv_forward, fc1_forward and head: sums over a data set, and how many images were right.
#include "cuda/check.h"
#include "kernels/fused/state.h"

namespace mnist::fused {
namespace {

constexpr int kMomentBlocks = 128, kMomentGroups = 4, kScoreBlock = 128;

// partial[block][m]: a share of the images. Moments lie on a grid (see data.cu), so that the order of the sum does
// not matter.
__global__ void __launch_bounds__(64 * kMomentGroups)
    sum_moments_kernel(double* __restrict__ partial, const double* __restrict__ moments, std::int64_t count) {
  __shared__ double groups[kMomentGroups][64];
  const int column = int(threadIdx.x) & 63, group = int(threadIdx.x) >> 6;
  double total = 0;
  if (column < kMoments)
#pragma unroll 4
    for (std::int64_t b = blockIdx.x * kMomentGroups + group; b < count; b += gridDim.x * kMomentGroups)
      total += moments[b * kMoments + column];
  groups[group][column] = total;
  __syncthreads();
  if (threadIdx.x >= kMoments) return;
  for (int k = 1; k < kMomentGroups; ++k) total += groups[k][column];
  partial[blockIdx.x * kMoments + column] = total;
}

// sums[i] += the column's total, in the order of the rows.
template <class T>
__global__ void add_rows_kernel(double* __restrict__ sums, const T* __restrict__ rows, int count, int width) {
  const int i = int(threadIdx.x);
  double total = sums[i];
#pragma unroll 8
  for (int row = 0; row < count; ++row) total += rows[row * width + i];
  sums[i] = total;
}

__global__ void __launch_bounds__(kScoreBlock)
    score_kernel(Score* __restrict__ partial, const float* __restrict__ logits, const std::uint8_t* __restrict__ labels,
                 std::int64_t count) {
  __shared__ double losses[kScoreBlock];
  __shared__ int correct[kClasses];
  const int t = int(threadIdx.x);
  const std::int64_t b = std::int64_t(blockIdx.x) * kScoreBlock + t;
  losses[t] = 0;
  if (t < kClasses) correct[t] = 0;
  __syncthreads();
  if (b < count) {
    float row[kClasses];
    for (int k = 0; k < kClasses; ++k) row[k] = logits[b * kClasses + k];
    int best = 0;
    bool finite = true;
    for (int k = 0; k < kClasses; ++k) {
      if (row[k] > row[best]) best = k;
      finite = finite && isfinite(row[k]);
    }
    double sum = 0, of_label = 0;
    for (int k = 0; k < kClasses; ++k) {
      sum += exp(double(row[k]) - row[best]);
      if (k == labels[b]) of_label = double(row[k]) - row[best];
    }
    losses[t] = log(sum) - of_label;
    if (finite && best == labels[b]) atomicAdd(&correct[best], 1);
  }
  for (int half = kScoreBlock / 2; half > 0; half /= 2) {
    __syncthreads();  // the upper half is complete before the lower half adds it
    if (t < half) losses[t] += losses[t + half];
  }
  if (t == 0) partial[blockIdx.x].loss = losses[0];
  if (t < kClasses) partial[blockIdx.x].correct[t] = correct[t];
}

}  // namespace

void sum_moments(double* sums, double* scratch, const double* moments, std::int64_t count, cudaStream_t stream) {
  sum_moments_kernel<<<kMomentBlocks, 64 * kMomentGroups, 0, stream>>>(scratch, moments, count);
  MNIST_CHECK_LAUNCH();
  add_rows_kernel<<<1, kMoments, 0, stream>>>(sums, scratch, kMomentBlocks, kMoments);
  MNIST_CHECK_LAUNCH();
}
std::int64_t sum_moments_scratch() { return kMomentBlocks * kMoments; }

void add_z2_sums(double* sums, const float* z2_sums, int blocks, cudaStream_t stream) {
  add_rows_kernel<<<1, 2 * kConv2Channels, 0, stream>>>(sums, z2_sums, blocks, 2 * kConv2Channels);
  MNIST_CHECK_LAUNCH();
}

void score_images(Score* partial, const float* logits, const std::uint8_t* labels, std::int64_t count,
                  cudaStream_t stream) {
  score_kernel<<<unsigned(score_blocks(count)), kScoreBlock, 0, stream>>>(partial, logits, labels, count);
  MNIST_CHECK_LAUNCH();
}
std::int64_t score_blocks(std::int64_t count) { return (count + kScoreBlock - 1) / kScoreBlock; }

}  // namespace mnist::fused
