// PackLaunch<>: launches of a step of several models for one policy; included by the one .cu file of each.
//
// The kernels for large batches, which a model has on its share of the multiprocessors; but not those for more than
// kLargestOfPack samples, of which a GPU has no two models.
#pragma once

#include "kernels/fused/launch.cuh"

namespace mnist::fused {

template <Precision kPrecision>
void PackLaunch<kPrecision>::conv_forward(const Pack& pack, int graph_step, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  const State& s = pack.first;
  const auto run = [&](auto kernel, int bytes) {
    launch(kernel, s.conv_forward_blocks, kConvThreads, bytes, stream, pack, graph_step);
  };
  if (s.wgmma) return run(conv_forward_wgmma_roles_kernel<P, Pack>, ConvForwardWgmmaShared<P>::kRolesBytes);
  if constexpr (sizeof(typename P::T) == 4)
    if (s.conv_forward_halves == 1) return run(conv_forward_halves_kernel<P, Pack>, ConvForwardHalvesShared<P>::kBytes);
  run(conv_forward_roles_kernel<P, Pack>, ConvForwardRolesShared<P>::kBytes);
}

template <Precision kPrecision>
void PackLaunch<kPrecision>::fc1_forward(const Pack& pack, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  const State& s = pack.first;
  const dim3 grid((s.batch + s.fc1_forward_rows - 1) / s.fc1_forward_rows, s.fc1_forward_slices);
  if constexpr (sizeof(typename P::T) == 2)
    if (s.fc1_forward_wgmma) {
      constexpr int k64 = kFc1WgmmaStages<64>;
      return launch(fc1_forward_wgmma_kernel<P, 64, k64, Pack>, grid, kFc1WgmmaThreads, Fc1WgmmaShared<64, k64>::kBytes,
                    stream, pack);
    }
  const auto run = [&](auto kernel, int bytes) { launch(kernel, grid, kThreads, bytes, stream, pack); };
  constexpr int kMost = kFc1MostStages, kFew64 = kFc1FewStages<64>, kFew16 = kFc1FewStages<16>;
  const bool most = s.fc1_forward_stages == kMost;
  if (s.fc1_forward_rows == 16)
    most ? run(fc1_forward_kernel<P, 16, kMost, Pack>, kFc1ForwardBytes<16, kMost>)
         : run(fc1_forward_kernel<P, 16, kFew16, Pack>, kFc1ForwardBytes<16, kFew16>);
  else
    most ? run(fc1_forward_kernel<P, 64, kMost, Pack>, kFc1ForwardBytes<64, kMost>)
         : run(fc1_forward_kernel<P, 64, kFew64, Pack>, kFc1ForwardBytes<64, kFew64>);
}

template <Precision kPrecision>
void PackLaunch<kPrecision>::head(const Pack& pack, int graph_step, cudaStream_t stream) {
  launch(head_kernel<Policy<kPrecision>, Pack>, pack.first.head_blocks, kThreads, 0, stream, pack, graph_step);
}

template <Precision kPrecision>
void PackLaunch<kPrecision>::fc1_backward(const Pack& pack, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  const auto run = [&](auto kernel, int bytes) { launch(kernel, 2 * kCells2, kConvThreads, bytes, stream, pack); };
  if constexpr (sizeof(typename P::T) == 2)
    if (pack.first.fc1_backward_wgmma) return run(fc1_backward_wgmma_kernel<P, Pack>, Fc1BackwardWgmmaShared::kBytes);
  if (pack.first.fc1_backward_stages == 3)
    run(fc1_backward_kernel<P, 3, Pack>, Fc1BackwardShared<P, 3>::kBytes);
  else
    run(fc1_backward_kernel<P, 2, Pack>, Fc1BackwardShared<P, 2>::kBytes);
}

template <Precision kPrecision>
void PackLaunch<kPrecision>::conv2_backward(const Pack& pack, int graph_step, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  const State& s = pack.first;
  const auto run = [&](auto kernel, int bytes) {
    launch(kernel, s.conv2_backward_blocks, kConvThreads, bytes, stream, pack, graph_step);
  };
  if constexpr (sizeof(typename P::T) == 2) {
    if (s.conv2_backward_wgmma) return run(conv2_backward_whole_images_kernel<P, Pack>, WholeImagesShared<P>::kBytes);
  } else {
    if (s.conv2_backward_wgmma) return run(conv2_backward_fp16_halves_kernel<P, Pack>, Fp16HalvesShared<P>::kBytes);
    if (s.conv2_backward_parts == 2)
      return run(conv2_backward_kernel<P, 7, 1, 2, Pack>, Conv2BackwardShared<P, 7, 1, 2>::kBytes);
  }
  constexpr int kStages = kWholeStages<P>;
  if (s.conv2_backward_rows == 14)
    run(conv2_backward_kernel<P, 14, kStages, 1, Pack>, Conv2BackwardShared<P, 14, kStages>::kBytes);
  else
    run(conv2_backward_kernel<P, 7, 1, 1, Pack>, Conv2BackwardShared<P, 7, 1>::kBytes);
}

template <Precision kPrecision>
void PackLaunch<kPrecision>::update(const Pack& pack, int graph_step, cudaStream_t stream) {
  launch(update_kernel<Policy<kPrecision>, Pack>, kUpdateBlocks, kUpdateThreads, 0, stream, pack, graph_step);
}

template <Precision kPrecision>
void PackLaunch<kPrecision>::prepare(const Pack& pack, int graph_step, cudaStream_t stream) {
  launch(prepare_kernel<Policy<kPrecision>, Pack>, kConv1Blocks, kUpdateThreads, 0, stream, pack, graph_step);
}

}  // namespace mnist::fused
