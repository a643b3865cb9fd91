// Launch<>: grid sizes and launches of the fused kernels for one policy; included by the one .cu file of each.
#pragma once

#include <algorithm>

#include "cuda/check.h"
#include "kernels/fused/tiles.cuh"
#include "kernels/fused/update/prepare.cuh"
#include "mnist/thresholds.h"

namespace mnist::fused {

// A launch that may begin before its predecessor has ended, where the GPU can do that: see wait_for_predecessor().
template <class Kernel, class Models, class... Arguments>
void launch(Kernel kernel, dim3 grid, int threads, int shared_bytes, cudaStream_t stream, const Models& models,
            Arguments... arguments) {
  if (shared_bytes > 0)
    MNIST_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid.x, grid.y, unsigned(models_of(models)));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = any_state(models).overlap ? 1 : 0;
  kernels::device::seed_delays();
  cuda::random_delay();
  MNIST_CHECK(cudaLaunchKernelEx(&config, kernel, models, arguments...));
}

template <Precision kPrecision>
std::span<const Tile> Launch<kPrecision>::tiles() {
  static const std::vector<Tile> rows = tiles_of<Policy<kPrecision>>();
  return rows;
}

// Not a property of the GPU: code compiled for an older one has an empty wait_for_predecessor().
template <Precision kPrecision>
bool Launch<kPrecision>::overlaps() {
  cudaFuncAttributes attributes{};
  MNIST_CHECK(cudaFuncGetAttributes(&attributes, update_kernel<Policy<kPrecision>, State>));
  return attributes.ptxVersion >= 90;
}

template <Precision kPrecision>
Schedule Launch<kPrecision>::schedule(const State& s) {
  using P = Policy<kPrecision>;
  const auto rounds = [](int items, int at_once) { return int(mnist::rounds(items, at_once)); };
  return {s.conv_forward_many,
          s.conv_forward_halves,
          rounds(2 * s.batch / s.conv_forward_halves, s.conv_forward_blocks),
          s.fc1_forward_wgmma,
          s.fc1_forward_rows,
          s.fc1_forward_slices,
          rounds(s.batch, s.head_blocks * (kThreads / 32)),
          rounds(s.batch, s.head_blocks * (kThreads / 64)),  // the next batch's moments
          rounds(s.batch, Fc1BackwardShared<P, 3>::kRows),
          s.conv2_backward_wgmma,
          s.conv2_backward_rows,
          rounds(kPool1Side / s.conv2_backward_rows * s.conv2_backward_parts * s.batch, s.conv2_backward_blocks),
          rounds(s.conv2_backward_blocks, kConv2Groups * kUpdateLoads<State>.conv2),
          rounds(s.head_blocks, kUpdateGroups * kUpdateLoads<State>.head)};
}

template <Precision kPrecision>
void Launch<kPrecision>::conv_forward(const State& s, int graph_step, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  const auto run = [&](auto kernel, int bytes) {
    launch(kernel, s.conv_forward_blocks, kConvThreads, bytes, stream, s, graph_step);
  };
  if (s.wgmma) {
    using Shared = ConvForwardWgmmaShared<P>;
    if (s.conv_forward_many)
      run(conv_forward_wgmma_roles_kernel<P, State>, Shared::kRolesBytes);
    else if (s.conv_forward_halves == 2)
      run(conv_forward_wgmma_kernel<P, 2>, Shared::kBytes);
    else
      run(conv_forward_wgmma_kernel<P, 1>, Shared::kBytes);
    return;
  }
  if constexpr (sizeof(typename P::T) == 4)
    if (s.conv_forward_many && s.conv_forward_halves == 1)
      return run(conv_forward_halves_kernel<P, State>, ConvForwardHalvesShared<P>::kBytes);
  if (s.conv_forward_many)
    run(conv_forward_roles_kernel<P, State>, ConvForwardRolesShared<P>::kBytes);
  else if (s.conv_forward_halves == 2)
    run(conv_forward_kernel<P, 2>, ConvForwardShared<P>::kBytes);
  else
    run(conv_forward_kernel<P, 1>, ConvForwardShared<P>::kBytes);
}

template <Precision kPrecision>
void Launch<kPrecision>::fc1_forward(const State& s, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  const dim3 grid((s.batch + s.fc1_forward_rows - 1) / s.fc1_forward_rows, s.fc1_forward_slices);
  if constexpr (sizeof(typename P::T) == 2)
    if (s.fc1_forward_wgmma) {
      const auto run = [&](auto kernel, int bytes) { launch(kernel, grid, kFc1WgmmaThreads, bytes, stream, s); };
      constexpr int k64 = kFc1WgmmaStages<64>, k128 = kFc1WgmmaStages<128>;
      if (s.fc1_forward_rows == 128)
        run(fc1_forward_wgmma_kernel<P, 128, k128, State>, Fc1WgmmaShared<128, k128>::kBytes);
      else
        run(fc1_forward_wgmma_kernel<P, 64, k64, State>, Fc1WgmmaShared<64, k64>::kBytes);
      return;
    }
  const auto run = [&](auto kernel, int bytes) { launch(kernel, grid, kThreads, bytes, stream, s); };
  constexpr int kMost = kFc1MostStages, kFew64 = kFc1FewStages<64>, kFew16 = kFc1FewStages<16>;
  const bool most = s.fc1_forward_stages == kMost;
  if (s.fc1_forward_rows == 16)
    most ? run(fc1_forward_kernel<P, 16, kMost, State>, kFc1ForwardBytes<16, kMost>)
         : run(fc1_forward_kernel<P, 16, kFew16, State>, kFc1ForwardBytes<16, kFew16>);
  else
    most ? run(fc1_forward_kernel<P, 64, kMost, State>, kFc1ForwardBytes<64, kMost>)
         : run(fc1_forward_kernel<P, 64, kFew64, State>, kFc1ForwardBytes<64, kFew64>);
}

template <Precision kPrecision>
void Launch<kPrecision>::head(const State& s, int graph_step, cudaStream_t stream) {
  launch(head_kernel<Policy<kPrecision>, State>, s.head_blocks, kThreads, 0, stream, s, graph_step);
}

template <Precision kPrecision>
void Launch<kPrecision>::fc1_backward(const State& s, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  const auto run = [&](auto kernel, int bytes) { launch(kernel, 2 * kCells2, kConvThreads, bytes, stream, s); };
  if constexpr (sizeof(typename P::T) == 2)
    if (s.fc1_backward_wgmma) return run(fc1_backward_wgmma_kernel<P, State>, Fc1BackwardWgmmaShared::kBytes);
  if (s.fc1_backward_stages == 3)
    run(fc1_backward_kernel<P, 3, State>, Fc1BackwardShared<P, 3>::kBytes);
  else
    run(fc1_backward_kernel<P, 2, State>, Fc1BackwardShared<P, 2>::kBytes);
}

template <Precision kPrecision>
void Launch<kPrecision>::conv2_backward(const State& s, int graph_step, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  const auto run = [&](auto kernel, int bytes) {
    launch(kernel, s.conv2_backward_blocks, kConvThreads, bytes, stream, s, graph_step);
  };
  constexpr int kStages = kWholeStages<P>;
  if constexpr (sizeof(typename P::T) == 2)
    if (s.conv2_backward_wgmma) return run(conv2_backward_whole_images_kernel<P, State>, WholeImagesShared<P>::kBytes);
  if constexpr (P::kFp16Terms > 0) {
    using Shared = Fp16HalvesShared<P>;
    if (s.conv2_backward_wgmma) return run(conv2_backward_fp16_halves_kernel<P, State>, Shared::kBytes);
  }
  if constexpr (sizeof(typename P::T) == 4)
    if (s.conv2_backward_parts == 2)
      return run(conv2_backward_kernel<P, 7, 1, 2, State>, Conv2BackwardShared<P, 7, 1, 2>::kBytes);
  if (s.conv2_backward_rows == 14)
    run(conv2_backward_kernel<P, 14, kStages, 1, State>, Conv2BackwardShared<P, 14, kStages>::kBytes);
  else
    run(conv2_backward_kernel<P, 7, 1, 1, State>, Conv2BackwardShared<P, 7, 1>::kBytes);
}

template <Precision kPrecision>
void Launch<kPrecision>::update(const State& s, int graph_step, cudaStream_t stream) {
  launch(update_kernel<Policy<kPrecision>, State>, kUpdateBlocks, kUpdateThreads, 0, stream, s, graph_step);
}

template <Precision kPrecision>
void Launch<kPrecision>::pack(const State& s, cudaStream_t stream) {
  if constexpr (Policy<kPrecision>::kScaled)
    launch(fc1_max_kernel<Policy<kPrecision>>, kFc1MaxThreads / 256, 256, 0, stream, s);
  launch(pack_kernel<Policy<kPrecision>>, kHidden * kFeatures / 256, 256, 0, stream, s);
}

template <Precision kPrecision>
void Launch<kPrecision>::prepare(const State& s, int graph_step, cudaStream_t stream) {
  launch(prepare_kernel<Policy<kPrecision>, State>, kConv1Blocks, kUpdateThreads, 0, stream, s, graph_step);
}

}  // namespace mnist::fused
