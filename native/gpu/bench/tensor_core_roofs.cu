// Roofs of the tensor cores: kernels that do nothing but multiply and add in registers, by mma.sync.
#include "bench/roof_launch.h"
#include "bench/roofs.h"
#include "cuda/buffer.h"
#include "kernels/device/mma.cuh"

namespace mnist::bench {
namespace {

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

}  // namespace

void measure_tensor_cores(Roofs& roofs, const cuda::Stream& stream) {
  const unsigned blocks = roof_blocks();
  const cuda::DeviceBuffer<float> sink(1);
  const double products = (kBlock / 32) * double(blocks) * kIterations * kChains;
  roofs.tf32_flops = 2 * 16 * 8 * 8 * products / seconds(stream, [&] {
                       tf32_kernel<<<blocks, kBlock, 0, stream.get()>>>(sink.data(), 0.5f);
                       MNIST_CHECK_LAUNCH();
                     });
  roofs.bf16_flops = 2 * 16 * 8 * 16 * products / seconds(stream, [&] {
                       bf16_kernel<<<blocks, kBlock, 0, stream.get()>>>(sink.data(), 0.5f);
                       MNIST_CHECK_LAUNCH();
                     });
}

}  // namespace mnist::bench
