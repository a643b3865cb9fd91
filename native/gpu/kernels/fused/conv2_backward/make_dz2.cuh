// dz2 in place of z2, from dy2 and bn2's backward, in shared memory by all threads of a role; also the pixel lists.
#pragma once

#include "kernels/fused/conv2_backward/bn2_backward.cuh"
#include "kernels/fused/shared/image.cuh"

namespace mnist::fused {

// Error-feedback rounding to 16 bits: `rest` holds the rounding errors of the values before, adds them to x and y, and
// gets the new ones, except from a value that does not count. So a long sum loses no more than one value does. (Where
// images are flat, dz2 and da1 are equal at many places and would all lose the same, while their sum nearly cancels.)
template <class P>
__device__ __forceinline__ std::uint32_t pack_carrying(float x, float y, float2& rest, bool x_counts = true,
                                                       bool y_counts = true) {
  x += rest.x, y += rest.y;
  const auto pair = P::pack_bounded(x, y);
  const float2 kept = P::unpack(pair);
  if (x_counts) rest.x = x - kept.x;
  if (y_counts) rest.y = y - kept.y;
  return reinterpret_cast<const std::uint32_t&>(pair);
}

// Two neighbouring slots of da1 as the routed taps multiply them. In tf32 it is scaled, and carries rounding errors
// from row to row, except from what `route`, the routing of these two, drops.
template <class P>
__device__ __forceinline__ std::uint32_t pack_da1(float x, float y, float2& rest, std::uint32_t route,
                                                  float to_stored) {
  if constexpr (P::kScaled) return pack_carrying<P>(to_stored * x, to_stored * y, rest, route & 0xffu, route & 0xff00u);
  const auto pair = P::pack(x, y);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

// For a probe: the position that each window's gradient goes to. Where the scale is 0 all positions tie and the first
// one wins.
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
    if constexpr (P::kScaled)  // as it was stored: tiny values became 0
      a2 = P::load(P::store(fmaf(s.bn2.scale(channel), best, s.bn2.shift(channel)) * inverse_of(s.scales[kA2Scale])));
    s.route2[(std::size_t(image) * kConv2Channels + channel) * kCells2 + cell] = a2 > 0.f ? where : Routing::kDead;
  }
}

// bn2's constants of a chunk of channels. In 16 bits a thread keeps them in registers for all its windows, because
// loads would compete with wgmma for shared memory.
template <class P>
struct Bn2OfChunk {
  static constexpr int kPairs = kChunk<P> / 2;
  float2 scale[kPairs], alpha[kPairs], kappa[kPairs];

  __device__ __forceinline__ Bn2OfChunk(const Bn2Backward& bn, int chunk) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const auto at = [&](const float (&values)[kConv2Channels]) {
        return reinterpret_cast<const float2*>(values + chunk * kChunk<P>)[pair];
      };
      scale[pair] = at(bn.scale), alpha[pair] = at(bn.alpha), kappa[pair] = at(bn.kappa);
    }
  }
};
template <class P>
  requires(sizeof(typename P::T) == 4)
struct Bn2OfChunk<P> {
  const Bn2Backward& of_all;
  int chunk;
};

// dz2 of a window over its z2, of a chunk of channels. The gradient goes to the first of the positions that hold the
// maximum.
//
// In 16 bits, two channels at a time: at that position z2 is the maximum, so dz2 is made once and chosen by masks of 16
// bits. In tf32 a position's rounding error goes to the next one (see pack_carrying()). Pairs are words here: of others
// the compiler makes halves, and of these pairs again.
template <class P>
__device__ __forceinline__ void make_dz2_of_window(const Bn2OfChunk<P>& bn, typename P::T (&z)[4][kChunk<P>],
                                                   const typename P::T (&dy2)[kChunk<P>])
  requires(sizeof(typename P::T) == 2)
{
  using Pair = typename P::Pair;
  const auto bits = [](const Pair& pair) { return reinterpret_cast<const std::uint32_t&>(pair); };
  const auto pair_of = [](const std::uint32_t& word) { return reinterpret_cast<const Pair&>(word); };
#pragma unroll
  for (int k = 0; k < kChunk<P> / 2; ++k) {
    const float2 scale = bn.scale[k], alpha = bn.alpha[k], kappa = bn.kappa[k];
    const auto scaled = [&](float2 x) { return make_float2(fmaf(kappa.x, x.x, alpha.x), fmaf(kappa.y, x.y, alpha.y)); };
    std::uint32_t x[4];
#pragma unroll
    for (int position = 0; position < 4; ++position) x[position] = reinterpret_cast<std::uint32_t*>(z[position])[k];
    const std::uint32_t best = bits(P::max(P::max(pair_of(x[0]), pair_of(x[1])), P::max(pair_of(x[2]), pair_of(x[3]))));
    const float2 gradient = P::unpack_word(reinterpret_cast<const std::uint32_t*>(dy2)[k]),
                 top = scaled(P::unpack_word(best));
    const float2 routed = make_float2(fmaf(scale.x, gradient.x, top.x), fmaf(scale.y, gradient.y, top.y));
    const std::uint32_t stored = bits(P::pack(routed.x, routed.y));
    float2 rest = {};          // of the positions before
    std::uint32_t left = ~0u;  // channels whose position is not found yet
#pragma unroll
    for (int position = 0; position < 4; ++position) {
      const std::uint32_t here = position < 3 ? left & __heq2_mask(pair_of(x[position]), pair_of(best)) : left;
      left &= ~here;
      const float2 value = scaled(P::unpack_word(x[position]));
      auto& to = reinterpret_cast<std::uint32_t*>(z[position])[k];
      if constexpr (P::kScaled) {
        to = pack_carrying<P>(here & 0xffffu ? routed.x : value.x, here >> 16 ? routed.y : value.y, rest);
      } else {
        to = (stored & here) | (bits(P::pack(value.x, value.y)) & ~here);
      }
    }
  }
}
// In floats, a channel at a time.
template <class P>
__device__ __forceinline__ void make_dz2_of_window(const Bn2OfChunk<P>& of_chunk, float (&z)[4][4],
                                                   const float (&dy2)[4]) {
  const Bn2Backward& bn = of_chunk.of_all;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const int channel = 4 * of_chunk.chunk + c;
    const float alpha = bn.alpha[channel], kappa = bn.kappa[channel], routed = bn.scale[channel] * dy2[c];
    float value[4];
#pragma unroll
    for (int position = 0; position < 4; ++position) value[position] = z[position][c];
    const float best = fmaxf(fmaxf(value[0], value[1]), fmaxf(value[2], value[3]));
    const bool is0 = value[0] == best, is1 = value[1] == best && !is0, is2 = value[2] == best && !is0 && !is1;
#pragma unroll
    for (int position = 0; position < 4; ++position) value[position] = fmaf(kappa, value[position], alpha);
    if (is0) value[0] += routed;
    if (is1) value[1] += routed;
    if (is2) value[2] += routed;
    if (!is0 && !is1 && !is2) value[3] += routed;
#pragma unroll
    for (int position = 0; position < 4; ++position) z[position][c] = value[position];
  }
}

// Four neighbouring channels of dz2 as terms, which are kTerm bytes apart.
template <class P, int kTerm>
__device__ __forceinline__ void store_terms(unsigned char* to, const float (&x)[4]) {
  __half2 low[kTerms<P>], high[kTerms<P>];
  split(x[0], x[1], low);
  split(x[2], x[3], high);
#pragma unroll
  for (int term = 0; term < kTerms<P>; ++term) {
    const __half2 four[2] = {low[term], high[term]};
    *reinterpret_cast<uint2*>(to + term * kTerm) = *reinterpret_cast<const uint2*>(four);
  }
}

// dz2 of an item of the mma.sync or the whole images' kernel, and its pixel lists, by kThreads threads.
template <int kThreads, class Items>
__device__ __forceinline__ void make_dz2(const Items& items, int item, int stage, int tid) {
  using P = typename Items::P;
  using Shared = typename Items::Shared;
  using Item = typename Shared::Item;
  unsigned char* const here = items.shared + stage * Shared::kStage;
  const unsigned char* const image = items.shared + Shared::image_at(stage);
#pragma unroll
  for (int first = 0; first < kImageWords; first += kThreads) {
    const int i = first + kThreads - 1 - tid, y = i / 7, j = i % 7;  // the last threads have fewer cells below
    if (i >= kImageWords) continue;
    const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(image)[i];
    Shared::Pixels::store_word(items.shared + Shared::pixel_lists_at(stage), y + 1, j, word);
  }
  const int chunk = tid % Items::kCellChunks;
  const int chunk_of_all = items.first_channel() / kChunk<P> + chunk;
  const Bn2OfChunk<P> bn{items.bn, chunk_of_all};
  for (int i = tid / Items::kCellChunks; i < Shared::kCells; i += kThreads / Items::kCellChunks) {
    const int cell = items.first_cell() + i, cy = cell / kPool2Side, cx = cell % kPool2Side;
    unsigned char* corner = here + offsetof(Item, dz2) + (2 * cy - items.y0 + 1) * kSlots * Shared::kDzPitch;
    unsigned char* at[4];
    typename P::T z[4][kChunk<P>], dy2[kChunk<P>];
#pragma unroll
    for (int position = 0; position < 4; ++position) {
      at[position] = corner + ((position >> 1) * kSlots + slot_of(2 * cx + 1 + (position & 1))) * Shared::kDzPitch;
      *reinterpret_cast<uint4*>(z[position]) =
          *reinterpret_cast<const uint4*>(at[position] + chunk * Shared::kDzChunkPitch);
    }
    *reinterpret_cast<uint4*>(dy2) =
        *reinterpret_cast<const uint4*>(items.shared + Shared::dy2_at(stage) + (i * Items::kCellChunks + chunk) * 16);
    if (items.s.route2) report_routing<P>(items.s, items.bn, item, cell, chunk_of_all, z);
    make_dz2_of_window<P>(bn, z, dy2);
    if constexpr (kTerms<P> > 1) {  // a lane overwrites what others of 16 have read
      static_assert(Shared::kCells * Items::kCellChunks % 16 == 0);
      __syncwarp(tid & 16 ? 0xffff0000u : 0xffffu);
    }
#pragma unroll
    for (int position = 0; position < 4; ++position)
      if constexpr (kTerms<P> > 1)
        store_terms<P, kTermBytes>(at[position] + operand_at<P>(4 * chunk), z[position]);
      else
        *reinterpret_cast<uint4*>(at[position] + chunk * Shared::kDzChunkPitch) =
            *reinterpret_cast<const uint4*>(z[position]);
  }
}

// dz2 of half an image in fp16 terms, and its pixel lists, by Halves::kMakeDz2Threads threads. The constants are
// divided by dz2's scale. half_images.cuh shows how the terms replace z2's floats.
template <class Halves>
__device__ __forceinline__ void make_dz2_terms(const Halves& halves, int item, int thread) {
  using P = typename Halves::P;
  using Shared = typename Halves::Shared;
  using Item = typename Shared::Item;
  unsigned char* const here = halves.stage(item);
  const int half = halves.half_of(item);
  if (thread < 16 * 7) {  // 16 rows of the padded image
    const int row = thread / 7, y = kPool1Side * half + row - 1;
    if (y >= 0 && y < kImageSide)
      Shared::Pixels::store_word(
          here + offsetof(Item, pixel_lists), row, thread % 7,
          reinterpret_cast<const std::uint32_t*>(here + offsetof(Item, image))[y * 7 + thread % 7]);
  }
  constexpr int kQuads = kConv2Channels / 4;  // of neighbouring channels
#pragma unroll 1
  for (int i = thread; i < Shared::kCells * kQuads; i += Halves::kMakeDz2Threads) {  // whole warps
    const int quad = i % kQuads, cell = i / kQuads, cy = cell / kPool2Side, cx = cell % kPool2Side;
    unsigned char* const corner =
        here + offsetof(Item, dz2) + (quad >> 1) * Shared::kChunkPitch + (2 * cy + 1 - half) * Shared::kRowBytes;
    const auto at = [&](int position) {
      return (position >> 1) * Shared::kRowBytes + slot_of(2 * cx + 1 + (position & 1)) * 16;
    };
    float z[4][4], dy2[4];
#pragma unroll
    for (int position = 0; position < 4; ++position)
      *reinterpret_cast<float4*>(z[position]) =
          *reinterpret_cast<const float4*>(corner + (quad & 1) * Shared::kDzTerm + at(position));
    *reinterpret_cast<float4*>(dy2) =
        *reinterpret_cast<const float4*>(here + offsetof(Item, dy2) + (cell * kQuads + quad) * 16);
    if (halves.s.route2)
      report_routing<P>(halves.s, halves.bn, halves.image_of(item), half * 3 * kPool2Side + cell, quad, z);
    __syncwarp();  // a lane overwrites what another one has read
#pragma unroll
    for (int c = 0; c < 4; ++c) {  // as make_dz2_of_window(), with selections instead of branches
      const int channel = 4 * quad + c;
      const float alpha = halves.bn.alpha[channel], kappa = halves.bn.kappa[channel],
                  routed = halves.bn.scale[channel] * dy2[c];
      const float best = fmaxf(fmaxf(z[0][c], z[1][c]), fmaxf(z[2][c], z[3][c]));
      bool found = false;
#pragma unroll
      for (int position = 0; position < 4; ++position) {
        const bool here = !found && (position == 3 || z[position][c] == best);  // the first of equals wins
        found |= here;
        z[position][c] = fmaf(kappa, z[position][c], alpha) + (here ? routed : 0.f);
      }
    }
#pragma unroll
    for (int position = 0; position < 4; ++position)
      store_terms<P, Shared::kDzTerm>(corner + at(position) + (quad & 1) * 8, z[position]);
  }
}

}  // namespace mnist::fused
