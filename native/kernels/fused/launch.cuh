// Launch<>: grid sizes and launches of the fused kernels for one policy; included by the one .cu file of each.
#pragma once

#include <algorithm>

#include "cuda/check.h"
#include "kernels/fused/backward1.cuh"
#include "kernels/fused/backward2.cuh"
#include "kernels/fused/backward2_parts.cuh"
#include "kernels/fused/backward2_wgmma.cuh"
#include "kernels/fused/forward1.cuh"
#include "kernels/fused/forward1_wgmma.cuh"
#include "kernels/fused/forward2.cuh"
#include "kernels/fused/update.cuh"
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
inline constexpr int kWholeStages = sizeof(typename P::T) == 2 ? 2 : 1;  // of B2 on whole images
inline constexpr int kStaticShared =
    2304;  // more than F1, B1 and B2 declare statically; F2, which declares more, is smaller
inline constexpr int kHopperShared = 227 * 1024;  // bytes a block on any GPU that has wgmma

template <Precision kPrecision>
int Launch<kPrecision>::shared_needed() {
  using P = Policy<kPrecision>;
  return kStaticShared + std::max({Forward1RolesShared<P>::kBytes, kForward2Bytes<16>, Backward1Shared<P>::kBytes,
                                   Backward2Shared<P, 7, 1>::kBytes});
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
  s.f1_roles = s.batch > sms;
  s.f1_halves = s.batch > sms / 2 ? 2 : 1;
  s.f1_blocks = 2 / s.f1_halves * std::min(s.batch, sms);
  // F1 leaves what it makes of whole images accordingly: see kChunked.
  static_assert(Backward2WgmmaShared::kBytes + kStaticShared <= kHopperShared);
  s.b2_wgmma = s.wgmma && (P::kParts > 0 || (sizeof(typename P::T) == 2 && s.f1_halves == 2));
  if (s.f1_halves == 2 && (s.b2_wgmma || fits(Backward2Shared<P, 14, kWholeStages<P>>::kBytes)))
    s.b2_rows = 14, s.b2_blocks = std::min(s.batch, sms);
  else
    s.b2_rows = 7, s.b2_blocks = 2 * std::min(s.batch, sms / 2);
  s.f2_rows = s.batch > 128 && fits(kForward2Bytes<64> + 8 * 1024) ? 64 : 16;
  const int tiles = (s.batch + s.f2_rows - 1) / s.f2_rows;
  // A pair of slices, one a half of the channels, for every few cells; a single one where there are many samples. Hence
  // f2_slices * tiles is at most sms or f2_slices is 1.
  const int pairs_of_slices = sms / (2 * tiles);
  const int cells = std::max(2, pairs_of_slices == 0 ? kCells2 : (kCells2 + pairs_of_slices - 1) / pairs_of_slices);
  s.f2_slices = pairs_of_slices == 0 ? 1 : 2 * ((kCells2 + cells - 1) / cells);
  // Eight samples a block, a warp each; fewer where F2 leaves multiprocessors free, on which H's blocks start early.
  const int free = sms - tiles * s.f2_slices;
  s.head_blocks = std::min(sms, std::max((s.batch + 7) / 8, std::min((s.batch + 1) / 2, free)));
}

template <Precision kPrecision>
Schedule Launch<kPrecision>::schedule(const State& s) {
  using P = Policy<kPrecision>;
  const auto rounds = [](int items, int at_once) { return int(mnist::rounds(items, at_once)); };
  return {s.f1_roles,
          s.f1_halves,
          rounds(2 * s.batch / s.f1_halves, s.f1_blocks),
          s.f2_rows,
          s.f2_slices,
          rounds(s.batch, s.head_blocks * (kThreads / 32)),
          rounds(s.batch, s.head_blocks * (kThreads / 64)),  // the next batch's moments
          rounds(s.batch, Backward1Shared<P>::kRows),
          s.b2_wgmma,
          s.b2_rows,
          rounds(kPool1Side / s.b2_rows * s.batch, s.b2_blocks),
          rounds(s.b2_blocks, kConv2Groups * kLoadsInFlight),
          rounds(s.head_blocks, kUpdateGroups * kHeadLoadsInFlight)};
}

template <Precision kPrecision>
void Launch<kPrecision>::forward1(const State& s, int slot, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  const auto run = [&](auto kernel, int bytes) { launch(kernel, s.f1_blocks, kConvThreads, bytes, stream, s, slot); };
  if (s.wgmma) {
    using Shared = Forward1WgmmaShared<P>;
    static_assert(std::max(Shared::kRolesBytes, Shared::kBytes) + kStaticShared <= kHopperShared);
    if (s.f1_roles)
      run(forward1_wgmma_roles_kernel<P>, Shared::kRolesBytes);
    else if (s.f1_halves == 2)
      run(forward1_wgmma_kernel<P, 2>, Shared::kBytes);
    else
      run(forward1_wgmma_kernel<P, 1>, Shared::kBytes);
    return;
  }
  if (s.f1_roles)
    run(forward1_roles_kernel<P>, Forward1RolesShared<P>::kBytes);
  else if (s.f1_halves == 2)
    run(forward1_kernel<P, 2>, Forward1Shared<P>::kBytes);
  else
    run(forward1_kernel<P, 1>, Forward1Shared<P>::kBytes);
}

template <Precision kPrecision>
void Launch<kPrecision>::forward2(const State& s, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  const dim3 grid((s.batch + s.f2_rows - 1) / s.f2_rows, s.f2_slices);
  if (s.f2_rows == 16)
    launch(forward2_kernel<P, 16>, grid, kThreads, kForward2Bytes<16>, stream, s);
  else
    launch(forward2_kernel<P, 64>, grid, kThreads, kForward2Bytes<64>, stream, s);
}

template <Precision kPrecision>
void Launch<kPrecision>::head(const State& s, int slot, cudaStream_t stream) {
  launch(head_kernel<Policy<kPrecision>>, s.head_blocks, kThreads, 0, stream, s, slot);
}

template <Precision kPrecision>
void Launch<kPrecision>::backward1(const State& s, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  launch(backward1_kernel<P>, 2 * kCells2, kConvThreads, Backward1Shared<P>::kBytes, stream, s);
}

template <Precision kPrecision>
void Launch<kPrecision>::backward2(const State& s, int slot, cudaStream_t stream) {
  using P = Policy<kPrecision>;
  const auto run = [&](auto kernel, int bytes) { launch(kernel, s.b2_blocks, kConvThreads, bytes, stream, s, slot); };
  constexpr int kStages = kWholeStages<P>;
  if constexpr (kPrecision == Precision::kBf16)
    if (s.b2_wgmma) return run(backward2_wgmma_kernel<P>, Backward2WgmmaShared::kBytes);
  if constexpr (P::kParts > 0) {
    using Shared = Backward2PartsShared<P>;
    static_assert(Shared::kBytes + kStaticShared <= kHopperShared);
    if (s.b2_wgmma) return run(backward2_parts_kernel<P>, Shared::kBytes);
  }
  if (s.b2_rows == 14)
    run(backward2_kernel<P, 14, kStages>, Backward2Shared<P, 14, kStages>::kBytes);
  else
    run(backward2_kernel<P, 7, 1>, Backward2Shared<P, 7, 1>::kBytes);
}

template <Precision kPrecision>
void Launch<kPrecision>::update(const State& s, int slot, cudaStream_t stream) {
  launch(update_kernel<Policy<kPrecision>>, kUpdateBlocks, kUpdateThreads, 0, stream, s, slot);
}

template <Precision kPrecision>
void Launch<kPrecision>::pack(const State& s, cudaStream_t stream) {
  launch(pack_kernel<Policy<kPrecision>>, kHidden * kFeatures / 256, 256, 0, stream, s);
}

template <Precision kPrecision>
void Launch<kPrecision>::prepare(const State& s, int slot, cudaStream_t stream) {
  launch(prepare_kernel<Policy<kPrecision>>, kConv1Blocks, kUpdateThreads, 0, stream, s, slot);
}

}  // namespace mnist::fused
