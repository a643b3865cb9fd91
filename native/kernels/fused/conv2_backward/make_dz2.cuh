// dz2 from z2 and dy2, in shared memory, by all threads of a role.
#pragma once

#include "kernels/device/shared_memory.cuh"
#include "kernels/fused/conv2_backward/bn2_backward.cuh"
#include "kernels/fused/conv2_backward/carry.cuh"
#include "kernels/fused/shared/image.cuh"
#include "kernels/fused/shared/layout.cuh"
#include "kernels/fused/shared/numbers.cuh"

namespace mnist::fused {

// For a probe: where each window's gradient goes. Where the scale is 0 all positions tie and the first one wins.
template <class P>
__device__ __forceinline__ void report_routing(const State& s, const Bn2Backward& bn, int image, int cell, int chunk,
                                               const typename P::T (&z)[4][kChunk<P>]) {
#pragma unroll
  for (int c = 0; c < kChunk<P>; ++c) {
    const int channel = chunk * kChunk<P> + c;
    float best = P::load(z[0][c]);
    int where = 0;
#pragma unroll
    for (int position = 1; position < 4; ++position)
      if (bn.scale[channel] != 0.f && P::load(z[position][c]) > best) best = P::load(z[position][c]), where = position;
    float a2 = fmaf(bn.scale[channel], best, bn.shift[channel]);
    if constexpr (P::kScaled)  // as it was stored: what is tiny became 0
      a2 = P::load(P::store(fmaf(s.bn2.scale(channel), best, s.bn2.shift(channel)) * inverse_of(s.scales[kA2Scale])));
    s.route2[(std::size_t(image) * kConv2Channels + channel) * kCells2 + cell] = a2 > 0.f ? where : Routing::kDead;
  }
}

// dz2 over a window's z2, two channels at a time. The position that the gradient goes to holds the maximum, so its
// value is made once and chosen by masks of 16 bits. In tf32 what rounding takes from a position goes to the next:
// where images are flat dz2 is the same at many positions, and so would be what each loses, while dz2 itself sums up to
// 0.
template <class P>
__device__ __forceinline__ void make_dz2_pairs(const Bn2Backward& bn, typename P::T (&z)[4][kChunk<P>],
                                               const typename P::T (&dy2)[kChunk<P>], int chunk) {
  const auto bits = [](const auto& pair) { return *reinterpret_cast<const std::uint32_t*>(&pair); };
#pragma unroll
  for (int c = 0; c < kChunk<P>; c += 2) {
    const int channel = chunk * kChunk<P> + c;
    const auto at = [&](const float (&values)[kConv2Channels]) {
      return *reinterpret_cast<const float2*>(values + channel);
    };
    const float2 scale = at(bn.scale), alpha = at(bn.alpha), kappa = at(bn.kappa);
    const auto scaled = [&](float2 x) { return make_float2(fmaf(kappa.x, x.x, alpha.x), fmaf(kappa.y, x.y, alpha.y)); };
    typename P::Pair x[4];
#pragma unroll
    for (int position = 0; position < 4; ++position)
      x[position] = *reinterpret_cast<const typename P::Pair*>(z[position] + c);
    const auto best = P::max(P::max(x[0], x[1]), P::max(x[2], x[3]));
    const float2 gradient = P::unpack(*reinterpret_cast<const typename P::Pair*>(dy2 + c)),
                 top = scaled(P::unpack(best));
    const float2 routed = make_float2(fmaf(scale.x, gradient.x, top.x), fmaf(scale.y, gradient.y, top.y));
    const std::uint32_t stored = bits(P::pack(routed.x, routed.y));
    float2 rest = {};          // of the positions before
    std::uint32_t left = ~0u;  // channels whose position is not found yet
#pragma unroll
    for (int position = 0; position < 4; ++position) {
      const std::uint32_t here = position < 3 ? left & __heq2_mask(x[position], best) : left;
      left &= ~here;
      const float2 value = scaled(P::unpack(x[position]));
      auto& to = *reinterpret_cast<std::uint32_t*>(z[position] + c);
      if constexpr (P::kScaled) {
        to = pack_carrying<P>(here & 0xffffu ? routed.x : value.x, here >> 16 ? routed.y : value.y, rest);
      } else {
        to = (stored & here) | (bits(P::pack(value.x, value.y)) & ~here);
      }
    }
  }
}

// dz2 over z2, and the image's pixels from its bytes, by kThreads threads.
template <int kThreads, class Block>
__device__ __forceinline__ void make_dz2(const Block& block, int item, int stage, int tid) {
  using P = typename Block::P;
  using T = typename P::T;
  using Shared = typename Block::Shared;
  unsigned char* const here = block.shared + stage * Shared::kStage;
#pragma unroll
  for (int first = 0; first < kImageWords; first += kThreads) {
    const int i = first + kThreads - 1 - tid, y = i / 7, j = i % 7;  // by those who have the least to do below
    if (i >= kImageWords) continue;
    const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(here + Shared::kImageBytesAt)[i];
    Shared::Pixels::store_word(here + Shared::kPixelLists, y + 1, j, word);
  }
  const int chunk = tid % Block::kCellChunks;
  const int chunk_of_all = block.first_channel() / kChunk<P> + chunk;
  for (int i = tid / Block::kCellChunks; i < Shared::kCells; i += kThreads / Block::kCellChunks) {
    const int cell = block.first_cell() + i, cy = cell / kPool2Side, cx = cell % kPool2Side;
    unsigned char* corner =
        here + Shared::kDz + (2 * cy - block.y0 + 1) * kSlots * Shared::kDzPitch + chunk * Shared::kDzChunkPitch;
    unsigned char* at[4];
    T z[4][kChunk<P>], dy2[kChunk<P>];
#pragma unroll
    for (int position = 0; position < 4; ++position) {
      at[position] = corner + ((position >> 1) * kSlots + slot_of(2 * cx + 1 + (position & 1))) * Shared::kDzPitch;
      *reinterpret_cast<uint4*>(z[position]) = *reinterpret_cast<const uint4*>(at[position]);
    }
    *reinterpret_cast<uint4*>(dy2) =
        *reinterpret_cast<const uint4*>(here + Shared::kDy2 + (i * Block::kCellChunks + chunk) * 16);
    if (block.s.route2) report_routing<P>(block.s, block.bn, item, cell, chunk_of_all, z);
    if constexpr (sizeof(T) == 2) {
      make_dz2_pairs<P>(block.bn, z, dy2, chunk_of_all);
    } else {
#pragma unroll
      for (int c = 0; c < kChunk<P>; ++c) {
        const int channel = chunk_of_all * kChunk<P> + c;
        const float alpha = block.bn.alpha[channel], kappa = block.bn.kappa[channel],
                    routed = block.bn.scale[channel] * P::load(dy2[c]);
        float value[4];
#pragma unroll
        for (int position = 0; position < 4; ++position) value[position] = P::load(z[position][c]);
        const float best = fmaxf(fmaxf(value[0], value[1]), fmaxf(value[2], value[3]));
        const bool is0 = value[0] == best, is1 = value[1] == best && !is0, is2 = value[2] == best && !is0 && !is1;
#pragma unroll
        for (int position = 0; position < 4; ++position) value[position] = fmaf(kappa, value[position], alpha);
        if (is0) value[0] += routed;
        if (is1) value[1] += routed;
        if (is2) value[2] += routed;
        if (!is0 && !is1 && !is2) value[3] += routed;
#pragma unroll
        for (int position = 0; position < 4; ++position) z[position][c] = P::store(value[position]);
      }
    }
#pragma unroll
    for (int position = 0; position < 4; ++position)
      *reinterpret_cast<uint4*>(at[position]) = *reinterpret_cast<const uint4*>(z[position]);
  }
}

}  // namespace mnist::fused
