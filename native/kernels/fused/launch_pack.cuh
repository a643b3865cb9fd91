// PackLaunch<>: launches of a step of several models for one policy; included by the one .cu file of each.
//
// Hopper's kernels for large batches, which a model has on its share of the multiprocessors; but not those for more
// than kLargestOfPack samples, of which a GPU has no two models.
#pragma once

#include "kernels/fused/launch.cuh"

namespace mnist::fused {

template <Precision kPrecision>
void PackLaunch<kPrecision>::conv_forward(const Pack& pack, int graph_step, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  launch(conv_forward_wgmma_roles_kernel<P, Pack>, pack.first.conv_forward_blocks, kConvThreads,
         ConvForwardWgmmaShared<P>::kRolesBytes, stream, pack, graph_step);
}

template <Precision kPrecision>
void PackLaunch<kPrecision>::fc1_forward(const Pack& pack, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  constexpr int kStages = kFc1MostStages;
  const State& s = pack.first;
  const dim3 grid((s.batch + s.fc1_forward_rows - 1) / s.fc1_forward_rows, s.fc1_forward_slices);
  if constexpr (kPrecision == Precision::kBf16)
    if (s.fc1_forward_wgmma) {
      constexpr int k64 = kFc1WgmmaStages<64>;
      return launch(fc1_forward_wgmma_kernel<P, 64, k64, Pack>, grid, kFc1WgmmaThreads, Fc1WgmmaShared<64, k64>::kBytes,
                    stream, pack);
    }
  if (s.fc1_forward_rows == 16)
    launch(fc1_forward_kernel<P, 16, kStages, Pack>, grid, kThreads, kFc1ForwardBytes<16, kStages>, stream, pack);
  else
    launch(fc1_forward_kernel<P, 64, kStages, Pack>, grid, kThreads, kFc1ForwardBytes<64, kStages>, stream, pack);
}

template <Precision kPrecision>
void PackLaunch<kPrecision>::head(const Pack& pack, int graph_step, cudaStream_t stream) {
  launch(head_kernel<Policy<kPrecision>, Pack>, pack.first.head_blocks, kThreads, 0, stream, pack, graph_step);
}

template <Precision kPrecision>
void PackLaunch<kPrecision>::fc1_backward(const Pack& pack, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  const auto run = [&](auto kernel, int bytes) { launch(kernel, 2 * kCells2, kConvThreads, bytes, stream, pack); };
  if constexpr (kPrecision == Precision::kBf16)
    if (pack.first.fc1_backward_wgmma) return run(fc1_backward_wgmma_kernel<P, Pack>, Fc1BackwardWgmmaShared::kBytes);
  run(fc1_backward_kernel<P, 3, Pack>, Fc1BackwardShared<P, 3>::kBytes);
}

template <Precision kPrecision>
void PackLaunch<kPrecision>::conv2_backward(const Pack& pack, int graph_step, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  const auto run = [&](auto kernel, int bytes) {
    launch(kernel, pack.first.conv2_backward_blocks, kConvThreads, bytes, stream, pack, graph_step);
  };
  if constexpr (kPrecision == Precision::kBf16)
    run(conv2_backward_whole_images_kernel<P, Pack>, WholeImagesShared::kBytes);
  else
    run(conv2_backward_fp16_halves_kernel<P, Pack>, Fp16HalvesShared<P>::kBytes);
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
