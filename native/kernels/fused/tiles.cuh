// The sizes in which the kernels of one precision come, as rows for the plan of a batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/fused/conv2_backward/fp16_halves/kernel.cuh"
#include "kernels/fused/conv2_backward/mma/kernel.cuh"
#include "kernels/fused/conv2_backward/whole_images/kernel.cuh"
#include "kernels/fused/conv_forward/conv_forward.cuh"
#include "kernels/fused/conv_forward/conv_forward_halves.cuh"
#include "kernels/fused/conv_forward/conv_forward_wgmma.cuh"
#include "kernels/fused/fc1_backward/fc1_backward.cuh"
#include "kernels/fused/fc1_backward/fc1_backward_wgmma.cuh"
#include "kernels/fused/fc1_forward/fc1_forward.cuh"
#include "kernels/fused/fc1_forward/fc1_forward_wgmma.cuh"
#include "kernels/fused/head/head.cuh"
#include "kernels/fused/plan.h"
#include "kernels/fused/update/update.cuh"

namespace mnist::fused {

template <class P>
inline constexpr int kWholeStages = sizeof(typename P::T) == 2 ? 2 : 1;  // of conv2_backward on whole images

// Of each phase the preferred first. `declared` repeats what the kernel declares; test_fused_tiles asks the driver.
template <class P>
std::vector<Tile> tiles_of() {
  using enum Phase;
  constexpr std::size_t kBarrier = sizeof(MBarrier);
  constexpr int kWhole = kPool1Side, kHalf = kPool1Side / 2, kStages = kWholeStages<P>;
  constexpr bool kFloats = sizeof(typename P::T) == 4;  // which need smaller tiles than 16 bits do
  std::vector<Tile> rows;
  // The row with what is the same everywhere filled in.
  const auto add = [&](Tile row, auto* kernel, std::size_t declared, int dynamic) {
    row.kernel = reinterpret_cast<const void*>(kernel);
    row.declared = int(declared), row.dynamic = dynamic;
    rows.push_back(row);
  };

  {  // In bf16 half an image is left as mma.sync wants it.
    using Shared = ConvForwardWgmmaShared<P>;
    constexpr Layout kOfWhole = P::kFp16Terms > 0 ? Layout::kFp16Terms : Layout::kChunks;
    constexpr Layout kOfHalf = P::kFp16Terms > 0 ? Layout::kFp16Terms : Layout::kPixels;
    const Tile half{.phase = kConvForward, .rows = kHalf, .wgmma = true, .layout = kOfHalf};
    const Tile whole{.phase = kConvForward, .rows = kWhole, .wgmma = true, .layout = kOfWhole};
    Tile many = whole;
    many.many = true;
    add(half, conv_forward_wgmma_kernel<P, 1>, kBarrier, Shared::kBytes);
    add(whole, conv_forward_wgmma_kernel<P, 2>, kBarrier, Shared::kBytes);
    add(many, conv_forward_wgmma_roles_kernel<P, State>, kBarrier, Shared::kRolesBytes);
  }
  add({.phase = kConvForward, .rows = kHalf}, conv_forward_kernel<P, 1>, 0, ConvForwardShared<P>::kBytes);
  add({.phase = kConvForward, .rows = kWhole}, conv_forward_kernel<P, 2>, 0, ConvForwardShared<P>::kBytes);
  add({.phase = kConvForward, .rows = kWhole, .many = true}, conv_forward_roles_kernel<P, State>, 0,
      ConvForwardRolesShared<P>::kBytes);
  if constexpr (kFloats)
    add({.phase = kConvForward, .rows = kHalf, .many = true}, conv_forward_halves_kernel<P, State>, 0,
        ConvForwardHalvesShared<P>::kBytes);

  if constexpr (!kFloats) {
    constexpr int k64 = kFc1WgmmaStages<64>, k128 = kFc1WgmmaStages<128>;
    add({.phase = kFc1Forward, .rows = 128, .wgmma = true, .more_than = 2048, .stages = k128},
        fc1_forward_wgmma_kernel<P, 128, k128, State>, 0, Fc1WgmmaShared<128, k128>::kBytes);
    add({.phase = kFc1Forward, .rows = 64, .wgmma = true, .more_than = 256, .stages = k64},
        fc1_forward_wgmma_kernel<P, 64, k64, State>, 0, Fc1WgmmaShared<64, k64>::kBytes);
  }
  // Fewer stages hold the same tiles, so their sums are the same bits.
  constexpr int kMost = kFc1MostStages, kFew64 = kFc1FewStages<64>, kFew16 = kFc1FewStages<16>;
  add({.phase = kFc1Forward, .rows = 64, .more_than = 128, .fewer_than = 4, .stages = kMost},
      fc1_forward_kernel<P, 64, kMost, State>, sizeof(Bn2), kFc1ForwardBytes<64, kMost>);
  add({.phase = kFc1Forward, .rows = 64, .more_than = 128, .fewer_than = 4, .stages = kFew64},
      fc1_forward_kernel<P, 64, kFew64, State>, sizeof(Bn2), kFc1ForwardBytes<64, kFew64>);
  add({.phase = kFc1Forward, .rows = 16, .stages = kMost}, fc1_forward_kernel<P, 16, kMost, State>, sizeof(Bn2),
      kFc1ForwardBytes<16, kMost>);
  add({.phase = kFc1Forward, .rows = 16, .stages = kFew16}, fc1_forward_kernel<P, 16, kFew16, State>, sizeof(Bn2),
      kFc1ForwardBytes<16, kFew16>);

  add({.phase = kHead}, head_kernel<P, State>,
      sizeof(float[8][kHeadValues]) + sizeof(double[4][64]) + (P::kScaled ? sizeof(float[kThreads / 32]) : 0), 0);

  if constexpr (!kFloats)
    add({.phase = kFc1Backward, .rows = Fc1BackwardWgmmaShared::kRows, .wgmma = true, .more_than = 128, .stages = 3},
        fc1_backward_wgmma_kernel<P, State>, sizeof(float[32]) + sizeof(float[kRoleThreads / 32][2][32]) + 3 * kBarrier,
        Fc1BackwardWgmmaShared::kBytes);
  using Fc1 = Fc1BackwardShared<P, 3>;
  add({.phase = kFc1Backward, .rows = Fc1::kRows, .stages = 3}, fc1_backward_kernel<P, 3, State>,
      sizeof(float[Fc1::kRows / 16][2][32]) + sizeof(float[32]), Fc1::kBytes);
  add({.phase = kFc1Backward, .rows = Fc1::kRows, .stages = 2}, fc1_backward_kernel<P, 2, State>, sizeof(float[32]),
      Fc1BackwardShared<P, 2>::kBytes);

  if constexpr (P::kFp16Terms > 0) {
    using Shared = Fp16HalvesShared<P>;
    for (const int of_image : {kWhole, kHalf})
      add({.phase = kConv2Backward, .rows = of_image, .layout = Layout::kFp16Terms},
          conv2_backward_fp16_halves_kernel<P, State>, sizeof(Bn2Backward) + 7 * kBarrier, Shared::kBytes);
  } else {
    add({.phase = kConv2Backward, .rows = kWhole, .layout = Layout::kChunks},
        conv2_backward_whole_images_kernel<P, State>, sizeof(Bn2Backward) + 5 * kBarrier, WholeImagesShared<P>::kBytes);
  }
  add({.phase = kConv2Backward, .rows = kWhole}, conv2_backward_kernel<P, kWhole, kStages, 1, State>,
      sizeof(Bn2Backward) + (kStages + 1) * kBarrier, Conv2BackwardShared<P, kWhole, kStages>::kBytes);
  add({.phase = kConv2Backward, .rows = kHalf}, conv2_backward_kernel<P, kHalf, 1, 1, State>,
      sizeof(Bn2Backward) + 2 * kBarrier, Conv2BackwardShared<P, kHalf, 1>::kBytes);
  if constexpr (kFloats)
    add({.phase = kConv2Backward, .rows = kHalf, .parts = 2}, conv2_backward_kernel<P, kHalf, 1, 2, State>,
        sizeof(Bn2Backward) + 2 * kBarrier, Conv2BackwardShared<P, kHalf, 1, 2>::kBytes);

  constexpr std::size_t kPartial =
      std::max(sizeof(float4[kUpdateGroups][64]), sizeof(float4[kConv2Groups][kConv2Columns]));
  add({.phase = kUpdate}, update_kernel<P, State>, std::max(sizeof(Bn1Scratch), kPartial), 0);
  return rows;
}

}  // namespace mnist::fused
