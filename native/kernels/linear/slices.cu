// linear: how the summed index is cut into slices, and the pass that adds them.
#include <algorithm>

#include "cuda/check.h"
#include "kernels/linear/linear.h"

namespace mnist::kernels {
namespace {

constexpr int kBlock = 128;
constexpr std::int64_t kWantedBlocks = 512;  // a few on every multiprocessor
constexpr std::int64_t kMaxSlices = 32;      // each is written and read once more

// One thread an output.
__global__ void linear_add_slices_kernel(float* __restrict__ y, const float* __restrict__ partial,
                                         const float* __restrict__ bias, std::int64_t count, int out, int slices) {
  const std::int64_t n = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (n >= count) return;
  float sum = 0;
#pragma unroll 8
  for (int slice = 0; slice < slices; ++slice) sum += partial[slice * count + n];
  y[n] = sum + bias[n % out];
}

}  // namespace

LinearSlices linear_slices(std::int64_t batch, int in, int out) {
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t tiles = up(batch, kLinearTile) * up(out, kLinearTile);
  const std::int64_t wanted = std::clamp(kWantedBlocks / tiles, std::int64_t(1), kMaxSlices);
  const std::int64_t depth = up(up(in, kLinearSliceUnit), wanted) * kLinearSliceUnit;
  return {int(up(in, depth)), int(depth)};
}

std::int64_t linear_partial_size(std::int64_t batch, int in, int out) {
  return linear_slices(batch, in, out).count * batch * out;
}

void linear_add_slices(float* y, const float* partial, const float* bias, std::int64_t batch, int out, int slices,
                       cudaStream_t stream) {
  const std::int64_t count = batch * out;
  linear_add_slices_kernel<<<unsigned((count + kBlock - 1) / kBlock), kBlock, 0, stream>>>(y, partial, bias, count, out,
                                                                                           slices);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
