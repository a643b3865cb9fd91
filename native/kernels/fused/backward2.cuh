// B2: from g2 back to the weights of both convolutions. For each image: dz2, its dgrad through conv2 to conv1's pooled
// cells, and the two weight gradients.
//
// With D the gradient routed to each window's maximum, batch norm's backward is dz2 = s D + alpha + kappa z2 by
// channel; alpha and kappa come from B1's sums. conv1's layer needs no dense gradient at all: its weight gradient
// follows in closed form from G[c] = sum over windows of the gradient times the 9 pixels under the winning position
// and from the batch's pixel moments (see update.cuh), so only G leaves this kernel.
//
// A unit is a whole image (kRows = 14) or, so that small batches fill the GPU, half of one (kRows = 7 image rows, and
// the neighbouring row on either side). Row r of the shared image is image row y0 + r - 1. Hopper has other kernels:
// for whole images in bf16 backward2_wgmma.cuh, which uses much of this one, and in tf32 and fp32 backward2_parts.cuh.
//
// Two roles of 8 warps work side by side, so that the tensor cores are busy while dz2 is formed and G added up:
//   data role:   waits for a unit's copies, forms dz2 where z2 was, then the dgrad, then G
//   weight role: once dz2 is formed, conv2's weight gradient, which stays in registers over all units; then it starts
//                the copies of the unit that takes this one's place: with kStages = 2 the one after the next; with 1,
//                where shared memory holds no more, the next, which was fetched as far as the L2 cache meanwhile
#pragma once

#include <algorithm>

#include "kernels/fused/conv2_weight.cuh"
#include "kernels/fused/forward1.cuh"
#include "kernels/fused/parts.cuh"
#include "kernels/fused/routed_pixels.cuh"

namespace mnist::fused {

template <class P, int kRows, int kStages>
struct Backward2Shared {
  using Pixels = Quads<P>;
  static constexpr int kA1Pitch = kSlotPitch<P, kConv1Channels>, kDzPitch = kSlotPitch<P, kConv2Channels>;
  static constexpr int kDzChunkPitch = 16;                   // from a 16-byte chunk of a pixel to the next
  static constexpr int kCells = kRows == 14 ? kCells2 : 28;  // windows that cover the rows and their neighbours
  // Of a stage. Pixels that are padding are set once, by the prologue.
  static constexpr int kA1 = 0;
  static constexpr int kDz = kA1 + ((kRows + 2) * kSlots + 1) * kA1Pitch;
  static constexpr int kQuads = kDz + ((kRows + 2) * kSlots + 1) * kDzPitch;
  static constexpr int kRoute = kQuads + Pixels::kBytes;
  static constexpr int kG2 = kRoute + kRows * kRoute1Words / kPool1Side * 4;
  static constexpr int kBytesOfImage = kG2 + kCells * kConv2Channels * int(sizeof(typename P::T));
  // load_bn2_backward()'s sums lie where the last stage's copies go later, or in a place of their own.
  static constexpr int kPartialBytes = kConvThreads / 64 * 2 * kConv2Channels * 8;
  static constexpr int kStage = std::max(kBytesOfImage + kImagePixels, kRoute + kPartialBytes);
  static constexpr int kFilter = kStages * kStage;
  static constexpr int kEnd = kFilter + 32 * kFilterPitch<P, kConv2Channels>;
  static constexpr int kPartial = kStages == 2 ? kStage + kRoute : kEnd;
  static constexpr int kBytes = kEnd + (kStages == 2 ? 0 : kPartialBytes);
  static_assert(kRoute % 16 == 0 && kG2 % 16 == 0 && kStage % 16 == 0);
};

// bn2's backward by channel, in shared memory: dz2 = scale * D + alpha + kappa * z2.
struct alignas(16) Bn2Backward {
  float scale[kConv2Channels], shift[kConv2Channels], alpha[kConv2Channels], kappa[kConv2Channels];
  float largest[kConvWarps];  // kBounds: of half of the channels each, what |dz2| cannot exceed
};

// Waits for B1 and for all copies. While its loads are on their way it calls meanwhile().
template <bool kBounds = false, class Meanwhile>
__device__ __forceinline__ void load_bn2_backward(const State& s, Bn2Backward& bn, double (*partial)[2][kConv2Channels],
                                                  Meanwhile meanwhile) {
  constexpr int kGroups = kConvThreads / 64, kCells = (kCells2 + kGroups - 1) / kGroups;
  constexpr auto gamma_at = kParameters[kBn2Weight].offset, beta_at = kParameters[kBn2Bias].offset;
  const int tid = threadIdx.x, channel = tid & 63, group = tid >> 6;
  const double scale = s.bn2[channel], mean = double(s.bn2[128 + channel]) + s.bn2[256 + channel],
               inv_sigma = s.bn2[192 + channel];
  const float shift = s.bn2[64 + channel], gamma = s.parameters[gamma_at + channel], learning_rate = *s.learning_rate;
  const float beta = s.parameters[beta_at + channel];
  wait_for_predecessor();  // B1: g2 and its sums
  float g2[kCells], g2_xhat[kCells];
#pragma unroll
  for (int k = 0; k < kCells; ++k) {
    const int cell = min(group + k * kGroups, kCells2 - 1);
    g2[k] = s.g2_sums[cell * 64 + channel];
    g2_xhat[k] = s.g2_sums[(kCells2 + cell) * 64 + channel];
  }
  float largest = 0;
  if constexpr (kBounds)
    for (int i = tid; i < 2 * kCells2 * kGradientWarps; i += kConvThreads) largest = fmaxf(largest, s.g2_max[i]);
  meanwhile();
  copy_async_commit();
  double sum = 0, sum_xhat = 0;
#pragma unroll
  for (int k = 0; k < kCells; ++k)
    if (group + k * kGroups < kCells2) {
      sum += g2[k];
      sum_xhat += g2_xhat[k];
    }
  partial[group][0][channel] = sum;
  partial[group][1][channel] = sum_xhat;
  if constexpr (kBounds) {
    largest = warp_max(largest);
    if ((tid & 31) == 0) bn.largest[tid >> 5] = largest;
  }
  __syncthreads();
  if (tid < kConv2Channels) {
    double dbeta = 0, dgamma = 0;
    for (int k = 0; k < kGroups; ++k) dbeta += partial[k][0][tid], dgamma += partial[k][1][tid];
    // An error of alpha or kappa repeats at every pixel, where dz2 itself sums up to 0: alpha goes with kappa as
    // rounded.
    const float kappa = float(-scale * dgamma * inv_sigma * s.inv_n2);
    bn.scale[tid] = float(scale);
    bn.shift[tid] = shift;
    bn.kappa[tid] = kappa;
    bn.alpha[tid] = float(-scale * dbeta * s.inv_n2 - double(kappa) * mean);
    if constexpr (kBounds) {  // |xhat| is at most the root of how many there are
#pragma unroll
      for (int k = 0; k < kConvWarps; ++k) largest = fmaxf(largest, bn.largest[k]);
      largest = warp_max(float(scale) *
                         (largest + fabsf(float(dbeta * s.inv_n2)) + fabsf(float(dgamma)) * sqrtf(float(s.inv_n2))));
    }
    if (blockIdx.x == 0) {  // nobody else reads bn2's parameters in this phase
      const float sign = gamma < 0 ? -1.f : 1.f;
      s.bn2_sign[tid] = sign;  // of the step that is ending: U folds it out of conv2's gradient
      s.parameters[gamma_at + tid] = gamma - learning_rate * float(sign * dgamma);
      s.parameters[beta_at + tid] = beta - learning_rate * float(dbeta);
      if (s.gradients) {
        s.gradients[gamma_at + tid] = float(sign * dgamma);
        s.gradients[beta_at + tid] = float(dbeta);
      }
    }
  }
  copy_async_wait<0>();
  __syncthreads();
  if constexpr (kBounds) {
    if (tid < kConv2Channels) bn.largest[tid >> 5] = largest;
    __syncthreads();
  }
}

// For a probe: where each window's gradient goes. Where the scale is 0 all positions tie and the first one wins.
template <class P>
__device__ __forceinline__ void tell_routing(const State& s, const Bn2Backward& bn, int image, int cell, int part,
                                             const typename P::T (&z)[4][kChunk<P>]) {
#pragma unroll
  for (int c = 0; c < kChunk<P>; ++c) {
    const int channel = part * kChunk<P> + c;
    float best = P::load(z[0][c]);
    int where = 0;
#pragma unroll
    for (int position = 1; position < 4; ++position)
      if (bn.scale[channel] != 0.f && P::load(z[position][c]) > best) best = P::load(z[position][c]), where = position;
    s.route2[(std::size_t(image) * kConv2Channels + channel) * kCells2 + cell] =
        fmaf(bn.scale[channel], best, bn.shift[channel]) > 0.f ? where : Routing::kDead;
  }
}

// The units that a block owns and their copies in shared memory, which Shared lays out.
template <class P, int kRows, int kStages, class Shared = Backward2Shared<P, kRows, kStages>>
struct Backward2 {
  using T = typename P::T;
  using Pixels = typename Shared::Pixels;
  static constexpr bool kHalfImage = kRows == 7;
  static constexpr int kParts = kConv2Channels / kChunk<P>;          // 16-byte chunks of a cell
  static constexpr int kPixelRows = kHalfImage ? 8 : kPool1Side;     // of a1 and z2, from first_pixel_row()
  static constexpr int kRouteBytes = kRoute1Words / kPool1Side * 4;  // of a row

  // Named barriers; those of the two stages are neighbours. Copies end at an mbarrier, `arrived`.
  enum Barrier { kDataRole = 1, kFormed = 2, kDone = 4 };
  static constexpr int kFilterCopies = kStages;  // the mbarrier behind those of the stages

  const State& s;
  const Bn2Backward& bn;
  unsigned char* shared;
  std::uint64_t* arrived;  // one a stage, one for the filter
  int slot, lane, y0;

  // The grid is even where an image is cut, so a block keeps its half. Later units lie lower in the batch: F1 wrote the
  // highest last, so they are the likeliest to be in the L2 cache still.
  __device__ __forceinline__ int first_unit() const {
    return s.batch - 1 - (kHalfImage ? int(blockIdx.x) / 2 : int(blockIdx.x));
  }
  __device__ __forceinline__ int stride() const { return kHalfImage ? int(gridDim.x) / 2 : int(gridDim.x); }
  __device__ __forceinline__ int first_cell() const { return kHalfImage && y0 > 0 ? 21 : 0; }
  __device__ __forceinline__ int first_pixel_row() const { return kHalfImage && y0 > 0 ? 6 : 0; }
  // Opaque to the compiler: where there is but one stage it would compute every address behind it once, before the loop
  // over the units, and spill them.
  __device__ __forceinline__ std::uint32_t stage_address(int stage) const {
    std::uint32_t address = shared_address(shared) + stage * Shared::kStage;
    asm volatile("" : "+r"(address));
    return address;
  }
  __device__ __forceinline__ const T* pixels_of(const void* tensor, int channels, int image) const {
    return static_cast<const T*>(tensor) + (std::size_t(image) * kCells1 + first_pixel_row() * kPool1Side) * channels;
  }
  __device__ __forceinline__ const T* gradient_of(int image) const {
    return static_cast<const T*>(s.g2) + (std::size_t(image) * kCells2 + first_cell()) * kConv2Channels;
  }
  __device__ __forceinline__ const std::uint32_t* route_of(int image) const {
    return s.route1 + std::size_t(image) * kRoute1Words + y0 * (kRouteBytes / 4);
  }

  // Zeros around the pixels of a stage: the two outer slots of every row, then what is left of the rows above and
  // below.
  __device__ __forceinline__ void clear_padding(int stage, int tid) const {
    constexpr int kChunks1 = kConv1Channels / kChunk<P>, kChunks = kChunks1 + kConv2Channels / kChunk<P>;
    constexpr int kSides = 2 * (kRows + 2), kSlotsLeft = (kRows + 2 - kPixelRows) * (kSlots - 2) + 1;
    for (int i = tid; i < (kSides + kSlotsLeft) * kChunks; i += kConvThreads) {
      const int chunk = i % kChunks, which = i / kChunks, left = which - kSides;
      const int row = kHalfImage ? (y0 > 0 ? kRows + 1 : 0) : left / (kSlots - 2) * (kRows + 1);
      const int at = left < 0                 ? which / 2 * kSlots + which % 2 * (kSlots - 1)
                     : left == kSlotsLeft - 1 ? (kRows + 2) * kSlots
                                              : row * kSlots + 1 + left % (kSlots - 2);
      const int to = chunk < kChunks1 ? Shared::kA1 + at * Shared::kA1Pitch + chunk * 16
                                      : Shared::kDz + at * Shared::kDzPitch + (chunk - kChunks1) * 16;
      *reinterpret_cast<uint4*>(shared + stage * Shared::kStage + to) = make_uint4(0, 0, 0, 0);
    }
    Pixels::clear(shared + stage * Shared::kStage + Shared::kQuads, tid);
  }

  // ---- copies, by kThreads threads, `tid` of them ------------------------------------------------------------------

  // The rows of an image that a unit needs of a (B, 196, C) tensor, each pixel to its slot.
  template <int C, int kPitch, int kThreads>
  __device__ __forceinline__ void copy_pixels(std::uint32_t to, const void* tensor, int image, int tid) const {
    constexpr int kChunks = C / kChunk<P>;
    to += (first_pixel_row() - y0 + 1) * kSlots * kPitch + tid % kChunks * 16;
    const T* from = pixels_of(tensor, C, image) + tid % kChunks * kChunk<P>;
    for (int pixel = tid / kChunks; pixel < kPixelRows * kPool1Side; pixel += kThreads / kChunks) {
      const int y = pixel / kPool1Side, x = pixel % kPool1Side;
      copy_async_16(to + (y * kSlots + slot_of(x + 1)) * kPitch, from + std::size_t(pixel) * C);
    }
  }
  // Which sample a unit is; asked for one unit ahead, so that nobody waits for the answer.
  __device__ __forceinline__ int sample(int unit, int tid) const {
    return unit >= 0 && tid < kImagePixels / 16 ? s.samples.order[std::size_t(slot) * s.batch + unit] : 0;
  }
  // What is known before B1 has run.
  template <int kThreads>
  __device__ __forceinline__ void copy_forward(int unit, int sample, int stage, int tid) const {
    const std::uint32_t to = stage_address(stage);
    copy_pixels<kConv2Channels, Shared::kDzPitch, kThreads>(to + Shared::kDz, s.z2, unit, tid);
    copy_pixels<kConv1Channels, Shared::kA1Pitch, kThreads>(to + Shared::kA1, s.a1, unit, tid);
    copy_route_and_bytes<kThreads>(unit, sample, stage, tid);
  }
  template <int kThreads>
  __device__ __forceinline__ void copy_route_and_bytes(int unit, int sample, int stage, int tid) const {
    const std::uint32_t to = stage_address(stage);
    for (int i = tid; i < kRows * kRouteBytes / 16; i += kThreads)
      copy_async_16(to + Shared::kRoute + i * 16, route_of(unit) + i * 4);
    if (tid < kImagePixels / 16)
      copy_async_16(to + Shared::kBytesOfImage + tid * 16,
                    s.samples.images + std::size_t(sample) * kImagePixels + tid * 16);
  }
  template <int kThreads>
  __device__ __forceinline__ void copy_gradient(int unit, int stage, int tid) const {
    for (int i = tid; i < Shared::kCells * kParts; i += kThreads)
      copy_async_16(stage_address(stage) + Shared::kG2 + i * 16, gradient_of(unit) + i * kChunk<P>);
  }
  __device__ __forceinline__ void announce_copies(int stage) const {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(arrived + stage)) : "memory");
  }
  __device__ __forceinline__ void wait_for_copies(int stage, int parity) const {
    mbarrier_wait(arrived + stage, parity);
  }
  // All of a unit but the image, towards the L2 cache.
  __device__ __forceinline__ void fetch(int unit, int tid) const {
    const auto lines = [&](const void* from, int bytes) {
      for (int i = tid * 128; i < bytes; i += kRoleThreads * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(from) + i));
    };
    constexpr int kPixels = kPixelRows * kPool1Side, kSize = sizeof(T);
    lines(pixels_of(s.z2, kConv2Channels, unit), kPixels * kConv2Channels * kSize);
    lines(pixels_of(s.a1, kConv1Channels, unit), kPixels * kConv1Channels * kSize);
    lines(gradient_of(unit), Shared::kCells * kConv2Channels * kSize);
    lines(route_of(unit), kRows * kRouteBytes);
  }

  // ---- the data role -----------------------------------------------------------------------------------------------

  // dz2 over a window's z2, two channels at a time. The position that the gradient goes to holds the maximum, so its
  // value is made once and chosen by masks of 16 bits.
  __device__ __forceinline__ void form_pairs(T (&z)[4][kChunk<P>], const T (&g2)[kChunk<P>], int part) const {
    const auto bits = [](const auto& pair) { return *reinterpret_cast<const std::uint32_t*>(&pair); };
#pragma unroll
    for (int c = 0; c < kChunk<P>; c += 2) {
      const int channel = part * kChunk<P> + c;
      const auto at = [&](const float (&values)[kConv2Channels]) {
        return *reinterpret_cast<const float2*>(values + channel);
      };
      const float2 scale = at(bn.scale), alpha = at(bn.alpha), kappa = at(bn.kappa);
      const auto scaled = [&](float2 x) {
        return make_float2(fmaf(kappa.x, x.x, alpha.x), fmaf(kappa.y, x.y, alpha.y));
      };
      typename P::Pair x[4];
#pragma unroll
      for (int position = 0; position < 4; ++position)
        x[position] = *reinterpret_cast<const typename P::Pair*>(z[position] + c);
      const auto best = P::max(P::max(x[0], x[1]), P::max(x[2], x[3]));
      const float2 gradient = P::unpack(*reinterpret_cast<const typename P::Pair*>(g2 + c)),
                   top = scaled(P::unpack(best));
      const std::uint32_t routed = bits(P::pack(fmaf(scale.x, gradient.x, top.x), fmaf(scale.y, gradient.y, top.y)));
      std::uint32_t left = ~0u;  // channels whose position is not found yet
#pragma unroll
      for (int position = 0; position < 4; ++position) {
        const std::uint32_t here = position < 3 ? left & __heq2_mask(x[position], best) : left;
        left &= ~here;
        const float2 value = scaled(P::unpack(x[position]));
        *reinterpret_cast<std::uint32_t*>(z[position] + c) =
            (routed & here) | (bits(P::pack(value.x, value.y)) & ~here);
      }
    }
  }

  // dz2 over z2, and the image's pixels from its bytes, by kThreads threads.
  template <int kThreads>
  __device__ __forceinline__ void form(int unit, int stage, int tid) const {
    unsigned char* const here = shared + stage * Shared::kStage;
#pragma unroll
    for (int first = 0; first < kImageWords; first += kThreads) {
      const int i = first + kThreads - 1 - tid, y = i / 7, j = i % 7;  // by those who have the least to do below
      if (i >= kImageWords) continue;
      const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(here + Shared::kBytesOfImage)[i];
      Pixels::store_word(here + Shared::kQuads, y + 1, j, word);
    }
    const int part = tid % kParts;
    for (int i = tid / kParts; i < Shared::kCells; i += kThreads / kParts) {
      const int cell = first_cell() + i, cy = cell / kPool2Side, cx = cell % kPool2Side;
      unsigned char* corner =
          here + Shared::kDz + (2 * cy - y0 + 1) * kSlots * Shared::kDzPitch + part * Shared::kDzChunkPitch;
      unsigned char* at[4];
      T z[4][kChunk<P>], g2[kChunk<P>];
#pragma unroll
      for (int position = 0; position < 4; ++position) {
        at[position] = corner + ((position >> 1) * kSlots + slot_of(2 * cx + 1 + (position & 1))) * Shared::kDzPitch;
        *reinterpret_cast<uint4*>(z[position]) = *reinterpret_cast<const uint4*>(at[position]);
      }
      *reinterpret_cast<uint4*>(g2) = *reinterpret_cast<const uint4*>(here + Shared::kG2 + (i * kParts + part) * 16);
      if (s.route2) tell_routing<P>(s, bn, unit, cell, part, z);
      if constexpr (sizeof(T) == 2) {
        form_pairs(z, g2, part);
      } else {
#pragma unroll
        for (int c = 0; c < kChunk<P>; ++c) {
          const int channel = part * kChunk<P> + c;
          const float alpha = bn.alpha[channel], kappa = bn.kappa[channel], routed = bn.scale[channel] * P::load(g2[c]);
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

  template <int kSums>
  static __device__ __forceinline__ float sum_of(const float (&g1)[kSums][2][4], int n, int i) {
    if constexpr (kSums == 1)
      return g1[0][n][i];
    else
      return (g1[0][n][i] + g1[1][n][i]) + (g1[2][n][i] + g1[3][n][i]);
  }

  // G from the sums of 8 warps, each of the half of the channels that its lowest bit says.
  template <int kSums>
  __device__ __forceinline__ void store_g1(const float (&g1)[kSums][2][4], int tid) const {
    constexpr int kValues = kConv1Channels * kG1Columns;
    const int warp = tid >> 5, channel0 = (warp & 1) * 16, g = lane >> 2, t = lane & 3;
    auto* parts = reinterpret_cast<float*>(shared + Shared::kFilter);
    barrier_sync<kRoleThreads>(kDataRole);  // nobody reads the filter any more
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int n = k >> 2, i = k & 3;
      parts[(warp >> 1) * kValues + (channel0 + (i >> 1) * 8 + g) * kG1Columns + n * 8 + 2 * t + (i & 1)] =
          sum_of(g1, n, i);
    }
    barrier_sync<kRoleThreads>(kDataRole);
    for (int i = tid; i < kValues; i += kRoleThreads)
      s.g1_sums[std::size_t(blockIdx.x) * kValues + i] =
          (parts[i] + parts[kValues + i]) + (parts[2 * kValues + i] + parts[3 * kValues + i]);
  }

  // da1, the gradient of conv1's pooled cells, and from it G: a warp makes 4 or 3 rows of 16 channels. Of half an
  // image, over half of conv2's channels: G is linear in da1, so its parts need not be added up before.
  __device__ __forceinline__ void data_role(int tid) const {
    const int warp = tid >> 5;
    constexpr int kKParts = kHalfImage ? 2 : 1, kSteps = kConv2Channels / kStep<P> / kKParts;
    const int channel0 = (warp & 1) * 16, k_part = kHalfImage ? warp >> 2 : 0;
    // Warps w and w + 4 share a scheduler; together they have 7 rows.
    const int member = kHalfImage ? (warp >> 1 ^ warp >> 2) & 1 : warp >> 1;
    const bool four = member == 0 || member == 3;
    const int first_row = 1 + 3 * member + (member > 0 ? 1 : 0);
    const std::uint32_t filter =
        shared_address(shared) + Shared::kFilter + channel0 * kFilterPitch<P, kConv2Channels> + k_part * kSteps * 32;
    constexpr int kSums = kHalfImage ? 1 : 4;  // as measured: of half an image there are too few rows to gain by it
    float g1[kSums][2][4] = {};
    int stage = 0, parity = 0;
    for (int unit = first_unit(); unit >= 0; unit -= stride()) {
      if (unit != first_unit()) {
        wait_for_copies(stage, parity);
        if (stage == 0) parity ^= 1;
      }
      form<kRoleThreads>(unit, stage, tid);
      barrier_sync<kRoleThreads>(kDataRole);
      barrier_arrive<kConvThreads>(kFormed + stage);
      if (unit == first_unit()) wait_for_copies(kFilterCopies, 0);
      const std::uint32_t here = stage_address(stage);
      float acc[4][2][4] = {};
      const std::uint32_t dz = here + Shared::kDz + (first_row - 1) * kSlots * Shared::kDzPitch + k_part * kSteps * 32;
      if (four)
        conv3x3_rows<P, kConv2Channels, 4, AlignedShift, false, kSteps>(acc, dz, filter, lane);
      else
        conv3x3_rows<P, kConv2Channels, 3, AlignedShift, false, kSteps>(acc, dz, filter, lane);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (r == 3 && !four) break;
        const int row = first_row - 1 + r;
        const std::uint32_t words = here + Shared::kRoute + ((row * 2 + (warp & 1)) * 64 + lane) * 4;
        const std::uint32_t route[2] = {load_shared_32(words), load_shared_32(words + 128)};
        const std::uint32_t quads = here + Shared::kQuads + 2 * (y0 + row) * Quads<P>::kRowBytes;
        if constexpr (P::kDrainAccumulators) {
          float row_g1[kSums][2][4] = {};
          accumulate_g1<P>(row_g1, acc[r], route, quads, lane);
#pragma unroll
          for (int i = 0; i < 8; ++i) g1[0][i >> 2][i & 3] += sum_of(row_g1, i >> 2, i & 3);
        } else {
          accumulate_g1<P>(g1, acc[r], route, quads, lane);
        }
      }
      barrier_arrive<kConvThreads>(kDone + stage);
      stage = kStages == 2 ? stage ^ 1 : 0;
    }
    store_g1(g1, tid);
  }

  // ---- the weight role ---------------------------------------------------------------------------------------------

  // A warp makes 16 of conv2's channels by 16 of conv1's, all taps.
  __device__ __forceinline__ void weight_role(int tid) const {
    const int warp = tid >> 5, out = (warp & 3) * 16, in = (warp >> 2) * 16, ahead = kStages * stride();
    const auto copy = [&](int unit, int sample, int stage) {
      copy_gradient<kRoleThreads>(unit, stage, tid);
      copy_forward<kRoleThreads>(unit, sample, stage, tid);
      announce_copies(stage);
    };
    float dw[kTaps][2][4] = {};
    int stage = 0, unit = first_unit();
    // Here, while this role has nothing to do yet: the data role needs the filter last. A small batch waits for it, a
    // large one rather has the registers.
#pragma unroll(kHalfImage ? 4 : 1)
    for (int i = tid; i < 32 * kFilterChunks<P, kConv2Channels>; i += kRoleThreads)
      copy_filter_chunk<P, kConv2Channels>(shared + Shared::kFilter, s.conv2_data, i);
    announce_copies(kFilterCopies);
    if (kStages == 2 && unit >= stride()) copy(unit - stride(), sample(unit - stride(), tid), 1);
    for (; unit >= 0; unit -= stride()) {
      const int next_sample = sample(unit - ahead, tid);
      if (kStages == 1 && unit >= ahead) fetch(unit - ahead, tid);
      barrier_sync<kConvThreads>(kFormed + stage);
      const std::uint32_t here = stage_address(stage);
      weight_gradient<P, kRows>(dw, here + Shared::kDz + out * int(sizeof(T)), here + Shared::kA1 + in * int(sizeof(T)),
                                lane);
      barrier_sync<kConvThreads>(kDone + stage);  // nobody reads the stage any more
      if (unit >= ahead) copy(unit - ahead, next_sample, stage);
      stage = kStages == 2 ? stage ^ 1 : 0;
    }
    // Whole stores: as 16 warps with tiles of 16 by 8 would hold it. update_conv2() knows which value lies where.
    auto* to = reinterpret_cast<float4*>(s.conv2_sums + std::size_t(blockIdx.x) * kConv2Values);
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap)
#pragma unroll
      for (int n = 0; n < 2; ++n)
        to[tap * kConvThreads + (out / 16 + 4 * (in / 8 + n)) * 32 + lane] =
            make_float4(dw[tap][n][0], dw[tap][n][1], dw[tap][n][2], dw[tap][n][3]);
  }
};

template <class P, int kRows, int kStages>
__global__ void __launch_bounds__(kConvThreads, 1) backward2_kernel(State s, int slot) {
  using Shared = Backward2Shared<P, kRows, kStages>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Bn2Backward bn;
  __shared__ std::uint64_t arrived[kStages + 1];
  const int tid = threadIdx.x;
  const Backward2<P, kRows, kStages> block{
      s, bn, shared, arrived, slot, tid & 31, kRows == 7 ? int(blockIdx.x & 1) * 7 : 0};

  // The first unit, by all threads.
  const int unit = block.first_unit(), sample = block.sample(unit, tid);
  block.template copy_forward<kConvThreads>(unit, sample, 0, tid);
  const auto meanwhile = [&] {
    block.template copy_gradient<kConvThreads>(unit, 0, tid);
    if (tid < kStages + 1) mbarrier_init(arrived + tid, kRoleThreads);
    for (int stage = 0; stage < kStages; ++stage)
      if (unit >= stage * block.stride()) block.clear_padding(stage, tid);
  };
  load_bn2_backward(s, bn, reinterpret_cast<double (*)[2][kConv2Channels]>(shared + Shared::kPartial), meanwhile);

  if (tid < kRoleThreads)
    block.data_role(tid);
  else
    block.weight_role(tid - kRoleThreads);
}

}  // namespace mnist::fused
