// Slabs of parameters on the GPU: between the fused engine's order and PyTorch's, and initial values.
#include "cuda/check.h"
#include "kernels/fused/state.h"

namespace mnist::fused {
namespace {

constexpr int kBlock = 256, kElementsOfThread = 16;

// Where element i of the engine's slab is in PyTorch's: fc1.weight's columns are (cell, channel) here, (channel, cell)
// there.
__device__ int torch_index(int i) {
  constexpr int begin = int(kParameters[kFc1Weight].offset), end = int(kParameters[kFc1Bias].offset);
  if (i < begin || i >= end) return i;
  const int hidden = (i - begin) / int(kFeatures), feature = (i - begin) % int(kFeatures);
  return begin + hidden * int(kFeatures) + feature % kConv2Channels * kCells2 + feature / kConv2Channels;
}

// to[i] = from[torch_index(i)], or the other way round.
template <bool kToTorch>
__global__ void reorder_slab_kernel(float* __restrict__ to, const float* __restrict__ from) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < kParameterCount) to[kToTorch ? torch_index(i) : i] = from[kToTorch ? i : torch_index(i)];
}

using InitialTensors = std::array<InitialTensor, kParameterTensors>;

// Elements kElementsOfThread * thread .. of the slab; __dmul_rn and __dadd_rn because the host does not fuse them
// either.
__global__ void initialize_slab_kernel(float* __restrict__ torch, Pcg64 stream, InitialTensors tensors) {
  const std::int64_t first = (std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * kElementsOfThread;
  const std::int64_t end = min(first + kElementsOfThread, std::int64_t(kParameterCount));
  std::int64_t drawn = 0;  // by this thread's copy of the stream
  int p = 0;
  for (std::int64_t i = first; i < end; ++i) {
    while (i >= tensors[p].offset + tensors[p].size) ++p;
    const InitialTensor& tensor = tensors[p];
    if (tensor.bound == 0) {
      torch[i] = tensor.value;
      continue;
    }
    const std::int64_t draw = tensor.draws + i - tensor.offset;
    stream.skip(std::uint64_t(draw - drawn));
    drawn = draw + 1;
    const double width = __dadd_rn(tensor.bound, tensor.bound);
    torch[i] = float(__dadd_rn(-tensor.bound, __dmul_rn(width, unit_interval(stream.next()))));
  }
}

constexpr unsigned blocks_for(std::int64_t threads) { return unsigned((threads + kBlock - 1) / kBlock); }

}  // namespace

void slab_to_engine(float* engine, const float* torch, cudaStream_t stream) {
  reorder_slab_kernel<false><<<blocks_for(kParameterCount), kBlock, 0, stream>>>(engine, torch);
  MNIST_CHECK_LAUNCH();
}

void slab_to_torch(float* torch, const float* engine, cudaStream_t stream) {
  reorder_slab_kernel<true><<<blocks_for(kParameterCount), kBlock, 0, stream>>>(torch, engine);
  MNIST_CHECK_LAUNCH();
}

void initialize_slab(float* torch, const Pcg64& from, cudaStream_t stream) {
  initialize_slab_kernel<<<blocks_for((kParameterCount + kElementsOfThread - 1) / kElementsOfThread), kBlock, 0,
                           stream>>>(torch, from, initial_tensors());
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::fused
