// Roofs: a large copy, and a kernel that does nothing but multiply and add in registers.
#include "bench/ladders.h"
#include "bench/roof_launch.h"
#include "bench/roofs.h"
#include "cuda/architectures.h"
#include "cuda/buffer.h"

namespace mnist::bench {
namespace {

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
  const unsigned blocks = roof_blocks();
  const cuda::DeviceBuffer<float> sink(1);
  roofs.fma_flops = 2 * kBlock * double(blocks) * kIterations * kChains / seconds(stream, [&] {
                      fma_kernel<<<blocks, kBlock, 0, stream.get()>>>(sink.data(), 0.5f);
                      MNIST_CHECK_LAUNCH();
                    });
#ifdef MNIST_WITH_SM80
  if (absent_below(cuda::kTensorCapability).empty()) measure_tensor_cores(roofs, stream);
#endif
  return roofs;
}

}  // namespace mnist::bench
