// The roles of whole images in 16 bits: dgrad with the routed taps, and the making of dz2.
#pragma once

#include "kernels/device/barriers.cuh"
#include "kernels/device/lane.cuh"
#include "kernels/device/wgmma.cuh"
#include "kernels/fused/conv2_backward/make_dz2.cuh"
#include "kernels/fused/conv2_backward/store_wgmma.cuh"
#include "kernels/fused/conv2_backward/whole_images/dgrad.cuh"
#include "kernels/fused/conv2_backward/whole_images/routed_taps.cuh"
#include "kernels/fused/shared/trace.cuh"

namespace mnist::fused {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <class P>
__device__ __forceinline__ void dgrad_role(const WholeImages<P>& images, int tid) {
  using Shared = WholeImagesShared<P>;
  const int lane = images.block.lane, warp = uniform(tid >> 5);
  const int half = warp & 1, plane = warp >> 1 & 1, first_row = (warp >> 2) * 7;
  images.filter_arrived->wait(0);
  float routed_taps[2][12] = {};
  int stage = 0, parity = 0;
  for (int item = images.block.first_item(); item >= 0; item -= images.block.stride()) {
    images.wait_for_dz2(item, stage, parity);
    const std::uint32_t here = images.address_of(stage);
    const std::uint32_t words = here + Shared::kRoute + ((first_row * 2 + half) * 64 + plane * 32 + lane) * 4;
    std::uint32_t route[7];
#pragma unroll
    for (int row = 0; row < 7; ++row) route[row] = load_shared_32(words + row * (kRoute1Words / kPool1Side * 4));
    const TracedItem traced(images.block.s, Phase::kConv2Backward, {.first = 16, .points = 4, .from = 8, .to = 12},
                            (images.block.first_item() - item) / images.block.stride(), tid == 0);
    traced(0);
    float da1[28];
    dgrad(images, da1, here + Shared::kDz + first_row * WholeImages<P>::kRowBytes);
    traced(1);
    accumulate_routed_taps(images, routed_taps, da1, route,
                           here + Shared::kPixelLists + first_row * Shared::Pixels::kCellsBytes);
    traced(2);
    images.release(item, stage);
    stage ^= 1;
  }
  trace(images.block.s, Phase::kConv2Backward, 4, tid == 0);
  WholeImages<P>::Block::DgradRole::sync();  // no warp reads the filter any more
  store_routed_tap_sums<2>(images.block.s, reinterpret_cast<float*>(images.block.shared + Shared::kFilter), routed_taps,
                           P::kScaled ? images.block.scales.routed_taps : 1.f);
  trace(images.block.s, Phase::kConv2Backward, 7, tid == 0);
}

// dz2 of the first item is made already.
template <class P>
__device__ __forceinline__ void make_dz2_role(const WholeImages<P>& images, int tid, int second_sample) {
  const int second = images.block.first_item() - images.block.stride();
  if (tid == 0 && second >= 0) {
    images.copy(second, second_sample, 1);
    images.fetch(second - images.block.stride());
  }
  int stage = 1, parity = 0;
  for (int item = second; item >= 0; item -= images.block.stride()) {
    // Opaque to the compiler, which would compute all addresses once, before the loop, and spill them.
    int thread = tid;
    asm volatile("" : "+r"(thread));
    const int next = item - images.block.stride(),
              next_sample = images.block.sample(next, thread);  // thread 0's counts
    const TracedItem traced(images.block.s, Phase::kConv2Backward, {.first = 32, .points = 4, .from = 8, .to = 12},
                            (images.block.first_item() - item) / images.block.stride(), tid == 0);
    traced(0);
    images.block.wait_for_copies(stage, parity);
    traced(1);
    if (stage == 1) parity ^= 1;
    make_dz2<kGroupThreads>(images.block, item, stage, thread);
    wgmma_publish();
    __syncwarp();
    if (images.block.lane == 0) images.dz2_ready[stage].arrive();
    traced(2);
    stage ^= 1;
    if (next >= 0) {
      WholeImages<P>::Block::Done::sync(stage);
      traced(3);
      if (thread == 0) {
        images.copy(next, next_sample, stage);
        images.fetch(next - images.block.stride());
      }
    }
  }
}

#endif

}  // namespace mnist::fused
