// Launch<>: grid sizes and launches of the fused kernels for one policy; included by the one .cu file of each.
#pragma once

#include <algorithm>

#include "cuda/check.h"
#include "kernels/fused/conv2_backward/fp16_halves/kernel.cuh"
#include "kernels/fused/conv2_backward/mma/kernel.cuh"
#include "kernels/fused/conv2_backward/whole_images/kernel.cuh"
#include "kernels/fused/conv_forward/conv_forward.cuh"
#include "kernels/fused/conv_forward/conv_forward_wgmma.cuh"
#include "kernels/fused/fc1_backward/fc1_backward.cuh"
#include "kernels/fused/fc1_forward/fc1_forward.cuh"
#include "kernels/fused/head/head.cuh"
#include "kernels/fused/update/prepare.cuh"
#include "kernels/fused/update/update.cuh"
#include "mnist/thresholds.h"

namespace mnist::fused {

// A launch that may begin before its predecessor has ended, where the GPU can do that: see wait_for_predecessor().
template <class Kernel, class... Arguments>
void launch(Kernel kernel, dim3 grid, int threads, int shared_bytes, cudaStream_t stream, const State& state,
            Arguments... arguments) {
  if (shared_bytes > 0)
    MNIST_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = state.overlap ? 1 : 0;
  kernels::device::seed_delays();
  cuda::random_delay();
  MNIST_CHECK(cudaLaunchKernelEx(&config, kernel, state, arguments...));
}

template <class P>
inline constexpr int kWholeStages = sizeof(typename P::T) == 2 ? 2 : 1;  // of conv2_backward on whole images
inline constexpr int kStaticShared = 2304;        // more than conv_forward, fc1_backward and conv2_backward declare
                                                  // statically; fc1_forward, which declares more, is smaller
inline constexpr int kHopperShared = 227 * 1024;  // bytes a block on any GPU that has wgmma

template <Precision kPrecision>
int Launch<kPrecision>::shared_needed() {
  using P = Policy<kPrecision>;
  return kStaticShared + std::max({ConvForwardRolesShared<P>::kBytes, kFc1ForwardBytes<16>,
                                   Fc1BackwardShared<P>::kBytes, Conv2BackwardShared<P, 7, 1>::kBytes});
}

// Not a property of the GPU: code compiled for an older one has an empty wait_for_predecessor().
template <Precision kPrecision>
bool Launch<kPrecision>::overlaps() {
  cudaFuncAttributes attributes{};
  MNIST_CHECK(cudaFuncGetAttributes(&attributes, update_kernel<Policy<kPrecision>>));
  return attributes.ptxVersion >= 90;
}

// Small batches are cut finer, so that every multiprocessor has work; large ones coarser, so that less is done twice.
template <Precision kPrecision>
void Launch<kPrecision>::configure(State& s, int multiprocessors, int shared_limit) {
  using P = Policy<kPrecision>;
  const auto fits = [&](int bytes) { return bytes + kStaticShared <= shared_limit; };
  s.inv_n1 = 1.0 / (double(s.batch) * kImagePixels);
  s.inv_n2 = 1.0 / (double(s.batch) * kCells1);
  const int sms = multiprocessors;
  s.conv_forward_roles = s.batch > sms;
  s.conv_forward_halves = s.batch > sms / 2 ? 2 : 1;
  s.conv_forward_blocks = 2 / s.conv_forward_halves * std::min(s.batch, sms);
  // conv_forward leaves what it makes of whole images accordingly: see kChunked.
  static_assert(WholeImagesShared::kBytes + kStaticShared <= kHopperShared);
  s.conv2_backward_wgmma = s.wgmma && (P::kFp16Terms > 0 || (sizeof(typename P::T) == 2 && s.conv_forward_halves == 2));
  if (s.conv_forward_halves == 2 &&
      (s.conv2_backward_wgmma || fits(Conv2BackwardShared<P, 14, kWholeStages<P>>::kBytes)))
    s.conv2_backward_rows = 14, s.conv2_backward_blocks = std::min(s.batch, sms);
  else
    s.conv2_backward_rows = 7, s.conv2_backward_blocks = 2 * std::min(s.batch, sms / 2);
  s.fc1_forward_rows = s.batch > 128 && fits(kFc1ForwardBytes<64> + 8 * 1024) ? 64 : 16;
  const int tiles = (s.batch + s.fc1_forward_rows - 1) / s.fc1_forward_rows;
  // A pair of slices, one a half of the channels, for every few cells; a single one where there are many samples. Hence
  // fc1_forward_slices * tiles is at most sms or fc1_forward_slices is 1.
  const int pairs_of_slices = sms / (2 * tiles);
  const int cells = std::max(2, pairs_of_slices == 0 ? kCells2 : (kCells2 + pairs_of_slices - 1) / pairs_of_slices);
  s.fc1_forward_slices = pairs_of_slices == 0 ? 1 : 2 * ((kCells2 + cells - 1) / cells);
  // Eight samples a block, a warp each; fewer where fc1_forward leaves multiprocessors free, on which head's blocks
  // start early.
  const int free = sms - tiles * s.fc1_forward_slices;
  s.head_blocks = std::min(sms, std::max((s.batch + 7) / 8, std::min((s.batch + 1) / 2, free)));
}

template <Precision kPrecision>
Schedule Launch<kPrecision>::schedule(const State& s) {
  using P = Policy<kPrecision>;
  const auto rounds = [](int items, int at_once) { return int(mnist::rounds(items, at_once)); };
  return {s.conv_forward_roles,
          s.conv_forward_halves,
          rounds(2 * s.batch / s.conv_forward_halves, s.conv_forward_blocks),
          s.fc1_forward_rows,
          s.fc1_forward_slices,
          rounds(s.batch, s.head_blocks * (kThreads / 32)),
          rounds(s.batch, s.head_blocks * (kThreads / 64)),  // the next batch's moments
          rounds(s.batch, Fc1BackwardShared<P>::kRows),
          s.conv2_backward_wgmma,
          s.conv2_backward_rows,
          rounds(kPool1Side / s.conv2_backward_rows * s.batch, s.conv2_backward_blocks),
          rounds(s.conv2_backward_blocks, kConv2Groups * kLoadsInFlight),
          rounds(s.head_blocks, kUpdateGroups * kHeadLoadsInFlight)};
}

template <Precision kPrecision>
void Launch<kPrecision>::conv_forward(const State& s, int graph_step, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  const auto run = [&](auto kernel, int bytes) {
    launch(kernel, s.conv_forward_blocks, kConvThreads, bytes, stream, s, graph_step);
  };
  if (s.wgmma) {
    using Shared = ConvForwardWgmmaShared<P>;
    static_assert(std::max(Shared::kRolesBytes, Shared::kBytes) + kStaticShared <= kHopperShared);
    if (s.conv_forward_roles)
      run(conv_forward_wgmma_roles_kernel<P>, Shared::kRolesBytes);
    else if (s.conv_forward_halves == 2)
      run(conv_forward_wgmma_kernel<P, 2>, Shared::kBytes);
    else
      run(conv_forward_wgmma_kernel<P, 1>, Shared::kBytes);
    return;
  }
  if (s.conv_forward_roles)
    run(conv_forward_roles_kernel<P>, ConvForwardRolesShared<P>::kBytes);
  else if (s.conv_forward_halves == 2)
    run(conv_forward_kernel<P, 2>, ConvForwardShared<P>::kBytes);
  else
    run(conv_forward_kernel<P, 1>, ConvForwardShared<P>::kBytes);
}

template <Precision kPrecision>
void Launch<kPrecision>::fc1_forward(const State& s, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  const dim3 grid((s.batch + s.fc1_forward_rows - 1) / s.fc1_forward_rows, s.fc1_forward_slices);
  if (s.fc1_forward_rows == 16)
    launch(fc1_forward_kernel<P, 16>, grid, kThreads, kFc1ForwardBytes<16>, stream, s);
  else
    launch(fc1_forward_kernel<P, 64>, grid, kThreads, kFc1ForwardBytes<64>, stream, s);
}

template <Precision kPrecision>
void Launch<kPrecision>::head(const State& s, int graph_step, cudaStream_t stream) {
  launch(head_kernel<Policy<kPrecision>>, s.head_blocks, kThreads, 0, stream, s, graph_step);
}

template <Precision kPrecision>
void Launch<kPrecision>::fc1_backward(const State& s, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  launch(fc1_backward_kernel<P>, 2 * kCells2, kConvThreads, Fc1BackwardShared<P>::kBytes, stream, s);
}

template <Precision kPrecision>
void Launch<kPrecision>::conv2_backward(const State& s, int graph_step, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  const auto run = [&](auto kernel, int bytes) {
    launch(kernel, s.conv2_backward_blocks, kConvThreads, bytes, stream, s, graph_step);
  };
  constexpr int kStages = kWholeStages<P>;
  if constexpr (kPrecision == Precision::kBf16)
    if (s.conv2_backward_wgmma) return run(conv2_backward_whole_images_kernel<P>, WholeImagesShared::kBytes);
  if constexpr (P::kFp16Terms > 0) {
    using Shared = Fp16HalvesShared<P>;
    static_assert(Shared::kBytes + kStaticShared <= kHopperShared);
    if (s.conv2_backward_wgmma) return run(conv2_backward_fp16_halves_kernel<P>, Shared::kBytes);
  }
  if (s.conv2_backward_rows == 14)
    run(conv2_backward_kernel<P, 14, kStages>, Conv2BackwardShared<P, 14, kStages>::kBytes);
  else
    run(conv2_backward_kernel<P, 7, 1>, Conv2BackwardShared<P, 7, 1>::kBytes);
}

template <Precision kPrecision>
void Launch<kPrecision>::update(const State& s, int graph_step, cudaStream_t stream) {
  launch(update_kernel<Policy<kPrecision>>, kUpdateBlocks, kUpdateThreads, 0, stream, s, graph_step);
}

template <Precision kPrecision>
void Launch<kPrecision>::pack(const State& s, cudaStream_t stream) {
  launch(pack_kernel<Policy<kPrecision>>, kHidden * kFeatures / 256, 256, 0, stream, s);
}

template <Precision kPrecision>
void Launch<kPrecision>::prepare(const State& s, int graph_step, cudaStream_t stream) {
  launch(prepare_kernel<Policy<kPrecision>>, kConv1Blocks, kUpdateThreads, 0, stream, s, graph_step);
}

}  // namespace mnist::fused
