// Roofs: a large copy, and kernels that do nothing but multiply and add in registers.
#include <algorithm>
#include <vector>

#include "bench/roofs.h"
#include "cuda/buffer.h"
#include "kernels/device/mma_bf16.cuh"
#include "kernels/device/mma_tf32.cuh"

namespace mnist::bench {
namespace {

constexpr int kBlock = 256, kBlocksPerProcessor = 8, kIterations = 4096, kChains = 8;

// kChains independent chains a thread hide the latency of an instruction.
__global__ void fma_kernel(float* __restrict__ sink, float factor) {
  float values[kChains];
  for (int k = 0; k < kChains; ++k) values[k] = float(threadIdx.x + k);
  for (int n = 0; n < kIterations; ++n)
#pragma unroll
    for (int k = 0; k < kChains; ++k) values[k] = values[k] * factor + factor;
  float sum = 0;
  for (int k = 0; k < kChains; ++k) sum += values[k];
  if (sum == 0) sink[0] = sum;  // never, but the compiler cannot know
}

// `mma` of operands made of `f`, from registers.
template <class Mma>
__device__ void mma_chains(float* sink, std::uint32_t f, Mma mma) {
  const std::uint32_t a[4] = {f, f, f, f}, b[2] = {f, f};
  float values[kChains][4] = {};
  for (int n = 0; n < kIterations; ++n)
#pragma unroll
    for (int k = 0; k < kChains; ++k) mma(values[k], a, b);
  float sum = 1;
  for (int k = 0; k < kChains; ++k) sum += values[k][0] + values[k][1] + values[k][2] + values[k][3];
  if (sum == 0) sink[0] = sum;
}

__global__ void tf32_kernel(float* __restrict__ sink, float factor) {
  mma_chains(sink, kernels::device::to_tf32(factor),
             [](auto& c, const auto& a, const auto& b) { kernels::device::mma_tf32(c, a, b); });
}

__global__ void bf16_kernel(float* __restrict__ sink, float factor) {
  mma_chains(sink, __float_as_uint(factor) >> 16 | (__float_as_uint(factor) & 0xffff0000u),
             [](auto& c, const auto& a, const auto& b) { kernels::device::mma_bf16(c, a, b); });
}

// Median seconds of five runs after a warm-up.
template <class F>
double seconds(const cuda::Stream& stream, F&& queue) {
  cuda::Event start(0), stop(0);
  std::vector<double> times;
  for (int run = 0; run < 6; ++run) {
    start.record(stream.get());
    queue();
    stop.record(stream.get());
    if (run > 0) times.push_back(cuda::elapsed_ms(start, stop) / 1e3);
  }
  std::ranges::nth_element(times, times.begin() + 2);
  return times[2];
}

}  // namespace

Roofs measure_roofs(const cuda::Stream& stream) {
  constexpr std::int64_t kCopied = std::int64_t(1) << 29;
  Roofs roofs;
  {
    const cuda::DeviceBuffer<std::uint8_t> from(kCopied), to(kCopied);
    cuda::fill_bytes(from.data(), 1, kCopied, stream.get());
    roofs.bytes_per_second =
        2 * double(kCopied) / seconds(stream, [&] { cuda::copy(to.data(), from.data(), kCopied, stream.get()); });
  }
  int device = 0, processors = 0;
  MNIST_CHECK(cudaGetDevice(&device));
  MNIST_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  const unsigned blocks = unsigned(processors * kBlocksPerProcessor);
  const cuda::DeviceBuffer<float> sink(1);
  const double chains = double(blocks) * kIterations * kChains;
  roofs.fma_flops = 2 * kBlock * chains / seconds(stream, [&] {
                      fma_kernel<<<blocks, kBlock, 0, stream.get()>>>(sink.data(), 0.5f);
                      MNIST_CHECK_LAUNCH();
                    });
  roofs.tf32_flops = 2 * 16 * 8 * 8 * (kBlock / 32) * chains / seconds(stream, [&] {
                       tf32_kernel<<<blocks, kBlock, 0, stream.get()>>>(sink.data(), 0.5f);
                       MNIST_CHECK_LAUNCH();
                     });
  roofs.bf16_flops = 2 * 16 * 8 * 16 * (kBlock / 32) * chains / seconds(stream, [&] {
                       bf16_kernel<<<blocks, kBlock, 0, stream.get()>>>(sink.data(), 0.5f);
                       MNIST_CHECK_LAUNCH();
                     });
  return roofs;
}

}  // namespace mnist::bench
