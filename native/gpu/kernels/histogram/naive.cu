// histogram: one thread per pixel, atomics in global memory.
#include "kernels/histogram/counters.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

__global__ void histogram_naive_kernel(int* __restrict__ count, const std::uint8_t* __restrict__ pixels,
                                       std::int64_t pixel_count) {
  const std::int64_t n = std::int64_t(blockIdx.x) * kHistogramBlock + threadIdx.x;
  if (n < pixel_count) atomicAdd(&count[pixels[n]], 1);
}

}  // namespace

void histogram_naive(int* count, const std::uint8_t* pixels, std::int64_t pixel_count, cudaStream_t stream) {
  clear_counters(count, pixel_count, stream);
  const auto blocks = unsigned(ceil_div(pixel_count, kHistogramBlock));
  histogram_naive_kernel<<<blocks, kHistogramBlock, 0, stream>>>(count, pixels, pixel_count);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
