// The tables of batch_norm.
#include "kernels/batch_norm/batch_norm.h"

#include "kernels/batch_norm/naive_ops.h"

namespace mnist::kernels {
namespace {

void forward_naive(float* y, float* statistics, float* partial, const float* x, const float* gamma, const float* beta,
                   std::int64_t batch, int channels, int area, cudaStream_t stream) {
  float *mean = statistics, *var = statistics + channels;
  naive::batch_norm_statistics(mean, var, partial, x, batch, channels, area, stream);
  naive::batch_norm_forward(y, x, gamma, beta, mean, var, batch, channels, area, stream);
}

void forward_float4(float* y, float* statistics, float* partial, const float* x, const float* gamma, const float* beta,
                    std::int64_t batch, int channels, int area, cudaStream_t stream) {
  float *mean = statistics, *var = statistics + channels;
  batch_norm_statistics_groups(mean, var, partial, x, batch, channels, area, stream);
  batch_norm_normalize_float4(y, x, gamma, beta, mean, var, batch, channels, area, stream);
}

// A launcher without `inverse` as a row.
template <auto kRun>
void backward(float* dx, float* dgamma, float* dbeta, float* partial, const float* dy, const float* x,
              const float* gamma, const float* mean, const float* var, const float*, std::int64_t batch, int channels,
              int area, cudaStream_t stream) {
  kRun(dx, dgamma, dbeta, partial, dy, x, gamma, mean, var, batch, channels, area, stream);
}

}  // namespace

std::span<const Variant<BatchNormStatistics>> batch_norm_statistics_variants() {
  static constexpr Variant<BatchNormStatistics> kTable[] = {
      {"naive", naive::batch_norm_statistics, "two passes; blocks sum chunks as trees in shared memory"},
      // Slower: 8,192 threads queue for each of 64 addresses.
      {"atomics", batch_norm_statistics_atomics,
       "one pass, two atomicAdd per thread: inexact, never the same twice, 12x naive's time at B=256 on an H200, 7x at "
       "1024",
       1e-4},
      // No queue: a block adds its numbers in registers and stores one sum; naive, which does so too, waits for the
      // same memory.
      {"shuffle", batch_norm_statistics_shuffle,
       "two passes; a block's sum takes one barrier. The reads decide: 0.99x naive's time at B=256 on an H200"},
      // No change: NVIDIA's building block does the same shuffles.
      {"cub", batch_norm_statistics_cub,
       "shuffle's two passes, and its time at B=256 on an H200; a block's sum is one call of CUB, header only"},
      // Slower: x is read once instead of twice, but every number costs a division.
      {"welford", batch_norm_statistics_welford,
       "one pass, exact; a division per number: 1.6x naive's time at B=256 on an H200, 1.2x at 1024"},
      // Two divisions serve 8 numbers, so that the single pass pays, and a load brings 16 bytes.
      {"groups", batch_norm_statistics_groups,
       "welford by 8 numbers in registers: two divisions for all, 16 bytes per load"},
  };
  return kTable;
}

std::span<const Variant<BatchNormForward>> batch_norm_forward_variants() {
  static constexpr Variant<BatchNormForward> kTable[] = {
      {"naive", forward_naive, "the statistics in two passes over x, y in a third"},
      // x is read twice instead of three times, 16 bytes per load.
      {"float4", forward_float4, "the statistics by groups in one pass, y in a second; 16 bytes per load"},
  };
  return kTable;
}

std::span<const Variant<BatchNormBackward>> batch_norm_backward_variants() {
  static constexpr Variant<BatchNormBackward> kTable[] = {
      {"naive", backward<naive::batch_norm_backward<float>>, "two sums in a pass over dy and x, dx in another"},
      // A load brings 16 bytes, and dx begins with what the sums left in the L2 cache.
      {"float4", backward<batch_norm_backward_float4>,
       "the same by 16 bytes per load; dx begins where the sums ended, in the L2 cache: 1.2x cuDNN's time at B=256 on "
       "an H200, 1.0x at 1024"},
  };
  return kTable;
}

}  // namespace mnist::kernels
