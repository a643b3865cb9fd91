// Part of conv_forward by wgmma: conv1, bn1, relu and pooling.
#pragma once

#include "kernels/device/lane.cuh"
#include "kernels/device/matrix.cuh"
#include "kernels/fused/conv_forward/conv1.cuh"
#include "kernels/fused/conv_forward/wgmma_layout.cuh"
#include "kernels/fused/shared/fp16_terms.cuh"

namespace mnist::fused {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A place for store_a1() in a row of an image in chunks.
template <class P>
struct A1ChunkPlace {
  using Operands = WgmmaOperands<P>;
  unsigned char* row;
  int plane;
  __device__ __forceinline__ unsigned char* operator()(int slot, unsigned channel) const {
    return row + channel / Operands::kOfChunk * Operands::kPlane + (2 * slot + plane) * 16 +
           channel % Operands::kOfChunk * 2;
  }
};

// store_a1() of fp16 terms.
template <class P>
__device__ __forceinline__ void store_a1_terms(const float (&a)[4], int channel0, int plane, int lane,
                                               A1ChunkPlace<P> place) {
  const auto [g, t] = fragment_place(lane);
  const int padding = plane == 0 ? 0 : 7;
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    __half2 terms[P::kFp16Terms];
    split(a[2 * upper], a[2 * upper + 1], terms);
#pragma unroll
    for (int term = 0; term < P::kFp16Terms; ++term) {
      const __half2 pair = transposed(terms[term]);
      if (g != padding)
        *reinterpret_cast<__half2*>(place(g, channel0 + upper * 8 + 2 * t) + term * WgmmaOperands<P>::kA1Term) = pair;
    }
  }
}

// conv1 by wgmma: rows of a product are channels, two positions of the pooling window each, columns are the slots of
// planes. So warp w of a warpgroup makes channels 8w .., and lane (g, t) has all positions of slots 2t and 2t + 1 of
// channel g. (mma.sync would come to stand in line between the products of conv2.)
//
// In bf16 the sums are fp16: pixels are integers up to 222 and weights are divided to be below 2, so that no sum
// exceeds 4000, where fp16 tells integers apart by 2. Two neighbouring slots are then a register, and pooling takes
// both at once. Elsewhere sums are float, and half of the rows come at a time.
template <class P>
struct Conv1Columns {
  static constexpr int kTerms = P::kConv1Terms;
  static constexpr bool kPairs = kTerms == 1;
  static constexpr int kRows = kPairs ? kPool1Side : kPool1Side / 2;  // patch rows at a time
  using Pair = std::conditional_t<(P::kFp16Terms > 0), __half2, typename P::Pair>;
  using Sums = std::conditional_t<kPairs, std::uint32_t[2 * kRows], float[4 * kRows]>;  // of positions 0, 1 or 2, 3
  std::uint32_t weight[kTerms][2][4];  // A operands: of a term, of positions 0 and 1 or of 2 and 3
  float scale, shift;
  int warp, lane;

  __device__ __forceinline__ Conv1Columns(const State& s, int warp, int lane) : warp(warp), lane(lane) {
    const int t = lane & 3, channel = 8 * warp + (lane >> 2);
    const auto* words = static_cast<const std::uint32_t*>(s.conv1);
#pragma unroll
    for (int i = 0; i < 2 * kTerms; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        weight[i / 2][i % 2][r] = words[((2 * i + (r & 1)) * kConv1Channels + channel) * 8 + t + (r >> 1) * 4];
    scale = s.bn1.scale(channel) * s.bn1.filter_scale(channel);
    shift = s.bn1.shift(channel);
    if constexpr (P::kFp16Terms > 0 || P::kScaled) {
      const float inverse_scale = inverse_of(a1_scale(s, lane));
      scale *= inverse_scale, shift *= inverse_scale;
    }
  }

  __device__ __forceinline__ void start(Sums (&acc)[2], std::uint32_t patches, int row) const {
    const std::uint64_t pixels = wgmma_operand(patches + row * 128, kPatchHalf, 128);
    wgmma_fence();
#pragma unroll
    for (int term = kTerms - 1; term >= 0; --term)
#pragma unroll
      for (int pair = 0; pair < 2; ++pair)
        if constexpr (kPairs)
          wgmma_fp16_sums(acc[pair], weight[term][pair], pixels);
        else
          wgmma_fp16(acc[pair], weight[term][pair], pixels, term < kTerms - 1);
    wgmma_commit();
  }

  // bn1, relu and pooling of patch row `row` + n, whose slots 2t and 2t + 1 this lane has; the terms and two bytes.
  __device__ __forceinline__ std::uint16_t pool(const Sums (&acc)[2], int n, int plane,
                                                Pair (&terms)[WgmmaOperands<P>::kFp16Terms]) const {
    const int t = lane & 3;
    if constexpr (kPairs) {
      const std::uint32_t inside = plane == 0 ? (t == 0 ? 0xffff0000u : ~0u) : t == 3 ? 0x0000ffffu : ~0u;
      const std::uint32_t bits[4] = {acc[0][2 * n], acc[0][2 * n + 1], acc[1][2 * n], acc[1][2 * n + 1]};
      std::uint16_t route;
      terms[0] = pooled_pair<P>(reinterpret_cast<const __half2(&)[4]>(bits), scale, shift, inside, route);
      return route;
    } else {
      float cell[2];
      std::uint32_t route = 0;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float z[4] = {acc[0][4 * n + e], acc[0][4 * n + 2 + e], acc[1][4 * n + e], acc[1][4 * n + 2 + e]};
        const bool padding = plane == 0 ? t == 0 && e == 0 : t == 3 && e == 1;
        cell[e] = pooled(z, scale, shift, padding, e, route);
      }
      split(cell[0], cell[1], terms);
      return std::uint16_t(route);
    }
  }

  // Patch rows kRow .. of those that lie from `row` on, pooled, to a stage; `row` is even.
  template <int kRow>
  __device__ __forceinline__ void finish(const Sums (&acc)[2], unsigned char* stage, int row) const {
    using Shared = ConvForwardWgmmaShared<P>;
    using Operands = WgmmaOperands<P>;
#pragma unroll
    for (int n = 0; n < kRows; n += 4) {
      Pair matrices[Operands::kFp16Terms][4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        if (n + m >= kRows) {  // the last may come twice
#pragma unroll
          for (int term = 0; term < Operands::kFp16Terms; ++term) matrices[term][m] = matrices[term][m - 1];
          continue;
        }
        const int plane = (kRow + n + m) & 1, cy = row / 2 + (kRow + n + m) / 2;
        Pair terms[Operands::kFp16Terms];
        const std::uint16_t route = pool(acc, n + m, plane, terms);
#pragma unroll
        for (int term = 0; term < Operands::kFp16Terms; ++term) matrices[term][m] = terms[term];
        // Word (cy, half of the channels, plane, lane), of which this is the lower or the upper half.
        reinterpret_cast<std::uint16_t*>(
            stage + Shared::kRoute)[(((cy * 2 + (warp >> 1)) * 2 + plane) * 32 + lane) * 2 + (warp & 1)] = route;
      }
      const int slot = lane & 7, patch_row = row + kRow + min(n + (lane >> 3), kRows - 1);
      const int column = 2 * slot + (patch_row & 1);
      const std::uint32_t to = shared_address(stage);
#pragma unroll
      for (int term = 0; term < Operands::kFp16Terms; ++term) {
        store_columns_x4(to + term * Operands::kA1Term + warp * Operands::kPlane +
                             (patch_row / 2 + 1) * Operands::kRow + column * 16,
                         matrices[term]);
        if constexpr (Shared::kCopies)
          store_columns_x4(to + Shared::kStage + warp * kChunkedImage + patch_row * 128 + slot * 16, matrices[term]);
      }
    }
  }
};

// The patches of an image, by kThreads threads. Slots that are padding repeat a neighbour.
template <int kThreads = kRoleThreads>
__device__ __forceinline__ void gather_patches(unsigned char* patches, const unsigned char* image, int tid) {
#pragma unroll
  for (int i = tid; i < 2 * kPatchRows * 8; i += kThreads) {
    const int lower = i / (kPatchRows * 8), row = i / 8 % kPatchRows, slot = i % 8, cy = row / 2, plane = row % 2;
    const int cx = plane == 0 ? (slot == 0 ? 1 : 2 * slot - 1) : (slot == 7 ? 12 : 2 * slot);
    const auto* from =
        reinterpret_cast<const std::uint32_t*>(image + ((2 * cy + 2 * lower) * kImagePitch + 2 * cx) * 2);
    reinterpret_cast<uint4*>(patches)[i] =
        make_uint4(from[0], from[1], from[kImagePitch / 2], from[kImagePitch / 2 + 1]);
  }
}

#endif

}  // namespace mnist::fused
