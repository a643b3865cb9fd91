// The table of kernels: what each phase has, when a plan takes it, and how it is launched. Included by one .cu file for
// each precision, and for one model or several.
#pragma once

#include "kernels/fused/conv2_backward/half_images.cuh"
#include "kernels/fused/conv2_backward/mma.cuh"
#include "kernels/fused/conv2_backward/whole_images.cuh"
#include "kernels/fused/conv_forward/mma.cuh"
#include "kernels/fused/conv_forward/wgmma.cuh"
#include "kernels/fused/fc.cuh"
#include "kernels/fused/fc1_backward/fp16_terms.cuh"
#include "kernels/fused/fc1_backward/mma.cuh"
#include "kernels/fused/fc1_backward/wgmma.cuh"
#include "kernels/fused/fc1_forward/wgmma.cuh"
#include "kernels/fused/head.cuh"
#include "kernels/fused/kernels.h"
#include "kernels/fused/update/fc1.cuh"
#include "kernels/fused/update/prepare.cuh"

namespace mnist::fused {

// Of each phase the preferred first. `fixed` repeats what the kernel declares; test_fused_rows asks the driver.
// Several models have the kernels for large batches, which each has on its share of the multiprocessors; but not that
// for more than kLargestOfPack samples, of which a GPU has no two models.
template <Precision kPrecision, class Models>
std::vector<KernelRow> KernelTable<kPrecision, Models>::rows() {
  using enum Phase;
  using P = Policy<kPrecision>;
  constexpr bool kOne = std::is_same_v<Models, State>;
  constexpr std::size_t kBarrier = sizeof(MBarrier);
  constexpr int kWhole = kPool1Side, kHalf = kPool1Side / 2;
  constexpr bool kFloats = sizeof(typename P::T) == 4;  // which need smaller tiles than 16 bits do
  std::vector<KernelRow> rows;
  // The row with what is the same everywhere filled in.
  const auto add = [&](KernelRow row, int threads, auto* kernel, std::size_t fixed, int dynamic) {
    row.one = {reinterpret_cast<const void*>(kernel), [] { kernels::device::seed_delays(); }};
    row.threads = threads;
    row.fixed = int(fixed), row.dynamic = dynamic;
    rows.push_back(row);
  };

  {
    using Shared = ConvForwardWgmmaShared<P>;
    constexpr Layout kLayout = P::kFp16Terms > 0 ? Layout::kFp16Terms : Layout::kChunks;
    const KernelRow persistent{
        .phase = kConvForward, .rows = kWhole, .layout = kLayout, .wgmma = true, .persistent = true};
    KernelRow whole = persistent;
    whole.persistent = false, whole.beside_fc = !kFloats;
    KernelRow half = whole;
    half.rows = kHalf;
    if constexpr (kOne) {
      add(half, kConvThreads, conv_forward_wgmma_kernel<P, 1>, kBarrier, sizeof(typename Shared::Memory));
      add(whole, kConvThreads, conv_forward_wgmma_kernel<P, 2>, kBarrier, sizeof(typename Shared::Memory));
    }
    add(persistent, kConvThreads, conv_forward_wgmma_roles_kernel<P, Models>, kBarrier, Shared::kRolesBytes);
  }
  if constexpr (kOne) {
    constexpr int kBytes = sizeof(ConvForwardMemory<P>);
    add({.phase = kConvForward, .rows = kHalf}, kConvThreads, conv_forward_kernel<P, 1>, 0, kBytes);
    add({.phase = kConvForward, .rows = kWhole}, kConvThreads, conv_forward_kernel<P, 2>, 0, kBytes);
  }
  add({.phase = kConvForward, .rows = kWhole, .persistent = true}, kConvThreads, conv_forward_roles_kernel<P, Models>,
      0, sizeof(ConvForwardMemory<P, 2>));
  if constexpr (kFloats)
    add({.phase = kConvForward, .rows = kHalf, .persistent = true}, kConvThreads, conv_forward_halves_kernel<P, Models>,
        0, sizeof(ConvForwardHalvesMemory<P>));

  constexpr int k64 = kFc1WgmmaStages<64>, k128 = kFc1WgmmaStages<128>;
  if constexpr (kOne)
    add({.phase = kFc1Forward, .rows = 128, .stages = k128, .wgmma = true, .min_batch = kLargestOfPack + 1},
        kFc1WgmmaThreads, fc1_forward_wgmma_kernel<P, 128, k128, Models>, 0, Fc1WgmmaShared<128, k128>::kBytes);
  add({.phase = kFc1Forward, .rows = 64, .stages = k64, .wgmma = true, .min_batch = 257}, kFc1WgmmaThreads,
      fc1_forward_wgmma_kernel<P, 64, k64, Models>, 0, Fc1WgmmaShared<64, k64>::kBytes);
  // Fewer stages hold the same tiles, so their sums are the same bits.
  const auto add_fc1_forward = [&]<int kRows, int kStages>(int min_batch, int below_sms_per_16_samples) {
    KernelRow row{.phase = kFc1Forward, .rows = kRows, .stages = kStages, .min_batch = min_batch};
    row.below_sms_per_16_samples = below_sms_per_16_samples;
    add(row, kThreads, fc1_forward_kernel<P, kRows, kStages, Models>, sizeof(Bn2), kFc1ForwardBytes<kRows, kStages>);
  };
  add_fc1_forward.template operator()<64, kFc1MostStages>(129, 4);
  add_fc1_forward.template operator()<64, kFc1FewStages<64>>(129, 4);
  add_fc1_forward.template operator()<16, kFc1MostStages>(0, 0);
  add_fc1_forward.template operator()<16, kFc1FewStages<16>>(0, 0);

  add({.phase = kHead, .rows = kThreads / 32, .other_rows = kThreads / 64}, kThreads, head_kernel<P, Models>,
      sizeof(float[8][kHeadValues]) + sizeof(double[4][64]) + (P::kScaled ? sizeof(float[kThreads / 32]) : 0), 0);

  const auto add_fc1_backward = [&]<class Shared>(auto* kernel, bool wgmma) {
    constexpr int kRows = Shared::kSamplesPerTile;
    KernelRow row{.phase = kFc1Backward, .rows = kRows, .stages = Shared::kStages, .wgmma = wgmma};
    row.min_batch = wgmma ? 129 : 0, row.blocks = kFc1Groups;
    add(row, Shared::kThreads, kernel, Shared::kFixed, Shared::kBytes);
  };
  if constexpr (P::kFp16Terms > 0)
    add_fc1_backward.template operator()<Fc1BackwardTermsShared>(fc1_backward_terms_kernel<P, Models>, true);
  else
    add_fc1_backward.template operator()<Fc1BackwardWgmmaShared>(fc1_backward_wgmma_kernel<P, Models>, true);
  add_fc1_backward.template operator()<Fc1BackwardShared<P, 3>>(fc1_backward_kernel<P, 3, Models>, false);
  add_fc1_backward.template operator()<Fc1BackwardShared<P, 2>>(fc1_backward_kernel<P, 2, Models>, false);

  if constexpr (P::kFp16Terms > 0) {
    for (const int of_image : {kWhole, kHalf})
      add({.phase = kConv2Backward, .rows = of_image, .layout = Layout::kFp16Terms}, kConvThreads,
          conv2_backward_half_images_kernel<P, Models>, sizeof(Bn2Backward) + 7 * kBarrier,
          HalfImagesShared<P>::kBytes);
  } else {
    add({.phase = kConv2Backward, .rows = kWhole, .layout = Layout::kChunks, .wgmma = true}, kConvThreads,
        conv2_backward_whole_images_kernel<P, Models>, sizeof(Bn2Backward) + 5 * kBarrier,
        WholeImagesShared<P>::kBytes);
  }
  const auto add_conv2_backward = [&]<int kRows, int kStages, int kSplits>() {
    add({.phase = kConv2Backward, .rows = kRows, .channel_splits = kSplits}, kConvThreads,
        conv2_backward_kernel<P, kRows, kStages, kSplits, Models>, sizeof(Bn2Backward) + (kStages + 1) * kBarrier,
        Conv2BackwardShared<P, kRows, kStages, kSplits>::kBytes);
  };
  add_conv2_backward.template operator()<kFloats ? kHalf : kWhole, 2, 1>();
  if constexpr (kFloats) add_conv2_backward.template operator()<kHalf, 2, 2>();
  add_conv2_backward.template operator()<kHalf, 1, 1>();  // in fp32 for shares of two or three multiprocessors
  if constexpr (kFloats) add_conv2_backward.template operator()<kHalf, 1, 2>();

  constexpr UpdateLoads kLoads = kUpdateLoads<State>;
  KernelRow update{.phase = kUpdate, .rows = kConv2Groups * kLoads.conv2};
  update.other_rows = kUpdateGroups * kLoads.head, update.blocks = kUpdateBlocks;
  add(update, kUpdateThreads, update_kernel<P, Models>, sizeof(UpdateScratch), 0);
  if constexpr (kOne && !kFloats) {
    add({.phase = kFc,
         .rows = kFcRows,
         .other_rows = kFcSumRows,
         .wgmma = true,
         .max_batch = kFcMostSamples,
         .beside_fc = true,
         .cluster = kFcRanks,
         .blocks = kFcLeastClusters * kFcRanks},
        kFcThreads, fc_kernel<P>, sizeof(FcSums), sizeof(FcMemory));
    update.phase = kUpdateWithFc1, update.blocks += kFc1Groups, update.beside_fc = true;
    add(update, kUpdateThreads, update_with_fc1_kernel<P>, 0, int(std::max(sizeof(Fc1Scratch), sizeof(UpdateScratch))));
  }

  if constexpr (kOne) {
    if constexpr (P::kScaled) add({.phase = kLargestFc1, .blocks = kFc1MaxThreads / 256}, 256, fc1_max_kernel<P>, 0, 0);
    add({.phase = kRepackWeights, .blocks = kHidden * kFeatures / 256}, 256, repack_weights_kernel<P>, 0, 0);
  }
  if constexpr (P::kFp16Terms > 0)
    add({.phase = kCopyFc1, .wgmma = true, .blocks = kFc1Groups}, kConvThreads, fc1_terms_kernel<Models>,
        sizeof(float[kConvThreads / 32]), 0);
  else
    add({.phase = kCopyFc1, .wgmma = true, .blocks = kHidden * kFeatures / 8 / 256}, 256, fc1_chunks_kernel<P, Models>,
        0, 0);
  add({.phase = kStartBatchNorm, .blocks = kConv1Blocks}, kUpdateThreads, start_bn1_kernel<P, Models>,
      sizeof(Bn1Scratch), 0);
  return rows;
}

}  // namespace mnist::fused
