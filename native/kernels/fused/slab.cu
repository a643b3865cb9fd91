// Slabs of parameters on the GPU: between the fused engine's order and PyTorch's, and initial values.
#include "cuda/check.h"
#include "kernels/fused/state.h"

namespace mnist::fused {
namespace {

constexpr int kBlock = 256, kDrawsOfThread = 16;

// Where element i of the engine's slab is in PyTorch's: fc1.weight's columns are (cell, channel) here, (channel, cell)
// there.
__device__ int torch_index(int i) {
  constexpr int begin = int(kParameters[kFc1Weight].offset), end = int(kParameters[kFc1Bias].offset);
  if (i < begin || i >= end) return i;
  const int hidden = (i - begin) / int(kFeatures), feature = (i - begin) % int(kFeatures);
  return begin + hidden * int(kFeatures) + feature % kConv2Channels * kCells2 + feature / kConv2Channels;
}

__global__ void slab_to_engine_kernel(float* __restrict__ engine, const float* __restrict__ torch) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < kParameterCount) engine[i] = torch[torch_index(i)];
}

__global__ void slab_to_torch_kernel(float* __restrict__ torch, const float* __restrict__ engine) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < kParameterCount) torch[torch_index(i)] = engine[i];
}

// Draws kDrawsOfThread * thread .. of the stream; __dmul_rn and __dadd_rn because the host does not fuse them either.
__global__ void initialize_slab_kernel(float* __restrict__ torch, Pcg64 stream,
                                       std::array<double, kParameterTensors> bounds) {
  const std::int64_t first = (std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * kDrawsOfThread;
  for (int p = 0; p < kParameterTensors; ++p)
    if (is_batch_norm(p) && first / kDrawsOfThread < kParameters[p].size)
      torch[kParameters[p].offset + first / kDrawsOfThread] = p % 2 == 0 ? 1.f : 0.f;
  if (first >= kInitialDraws) return;
  stream.skip(std::uint64_t(first));
  int p = 0;
  for (std::int64_t draw = first; draw < first + kDrawsOfThread && draw < kInitialDraws; ++draw) {
    while (draw >= draws_before(p + 1)) ++p;
    const double width = __dadd_rn(bounds[p], bounds[p]);
    const double value = __dadd_rn(-bounds[p], __dmul_rn(width, unit_interval(stream.next())));
    torch[kParameters[p].offset + draw - draws_before(p)] = float(value);
  }
}

constexpr unsigned blocks_for(std::int64_t threads) { return unsigned((threads + kBlock - 1) / kBlock); }

}  // namespace

void slab_to_engine(float* engine, const float* torch, cudaStream_t stream) {
  slab_to_engine_kernel<<<blocks_for(kParameterCount), kBlock, 0, stream>>>(engine, torch);
  MNIST_CHECK_LAUNCH();
}

void slab_to_torch(float* torch, const float* engine, cudaStream_t stream) {
  slab_to_torch_kernel<<<blocks_for(kParameterCount), kBlock, 0, stream>>>(torch, engine);
  MNIST_CHECK_LAUNCH();
}

void initialize_slab(float* torch, const Pcg64& from, cudaStream_t stream) {
  initialize_slab_kernel<<<blocks_for((kInitialDraws + kDrawsOfThread - 1) / kDrawsOfThread), kBlock, 0, stream>>>(
      torch, from, initial_bounds());
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::fused
