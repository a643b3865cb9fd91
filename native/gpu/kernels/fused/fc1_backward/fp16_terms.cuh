// fc1_backward in fp32 on Hopper, by wgmma of fp16 terms: see shared/scales.cuh.
//
// It computes what mma.cuh says, and its roles and operands are those of wgmma.cuh, but dgrad starts the copies: three
// roles would have too few registers. dh comes from head as terms, the weights lie in memory as terms, a2 becomes terms
// here. Neighbours in the weights' terms are features four apart (fc1_place()), and so they are in a2's.
//
// Each product is three: small terms by big ones, big by small, big by big. The tensor cores truncate as they add; so
// the small products come first, the big ones are cut into two sums of four k-steps, and both leave the tensor cores
// after each tile.
//
// A block's 32 columns of fc1.weight have a scale of their own. It is that of the weights as they have just been
// updated, so the terms that this kernel leaves are those that leave_fc1_terms() makes of the same weights.
#pragma once

#include "kernels/fused/fc1_backward/wgmma.cuh"

namespace mnist::fused {

// Two stages of 128 samples fill shared memory: a tile's copies start when the tile before the last is done.
struct Fc1BackwardTermsShared : Fc1WgmmaTile {
  static constexpr int kThreads = kConvThreads, kStages = 2;
  static constexpr int kRowPitch = kFc1Columns * 4 + 16;  // floats of a sample: rows next to each other in other banks
  struct Stage {
    unsigned char dh[2 * kDhTerm];
    unsigned char pooled_z2[kSamplesPerTile * kRowPitch];
    unsigned char a2[2 * kColumnTerm];
  };
  struct Memory {
    Stage stages[kStages];
    // A row a hidden unit, for dgrad, in such an order that a lane's sums are features 4t .. 4t + 3 and 16 more: each
    // four are 16 bytes of dy2.
    unsigned char weights[2 * kColumnTerm];
  };
  static_assert(sizeof(Stage) % 16 == 0);
  static constexpr int kDhBytes = sizeof(Stage::dh), kPooledZ2 = offsetof(Stage, pooled_z2), kA2 = offsetof(Stage, a2),
                       kWeights = offsetof(Memory, weights);
  static constexpr int kBytes = sizeof(Memory);
  using Arrived = Fc1Arrived<kStages>;
  static constexpr int kFixed = sizeof(Arrived) + kDgradFixed + sizeof(float[kRoleThreads / 32]);
  static __device__ __forceinline__ int stage(int tile) { return Ring<kStages>::stage(tile) * int(sizeof(Stage)); }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Sums of 8 k-steps as three products, the operands' second terms so many bytes behind the first; from one k-step to
// the next so many.
template <bool kMnMajorA, int kTermOfA, int kTermOfB, int kStepOfA, int kStepOfB>
__device__ __forceinline__ void multiply_terms(float (&sums)[2][16], std::uint64_t a, std::uint64_t b) {
  const auto product = [&](float (&to)[16], int step, int term_of_a, int term_of_b, bool adds) {
    wgmma_columns<__half, kMnMajorA>(to, a + (step * kStepOfA + term_of_a * kTermOfA) / 16,
                                     b + (step * kStepOfB + term_of_b * kTermOfB) / 16, adds);
  };
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 8; ++step) product(sums[0], step, 1, 0, step > 0);
#pragma unroll
  for (int step = 0; step < 8; ++step) product(sums[0], step, 0, 1, true);
#pragma unroll
  for (int step = 0; step < 8; ++step) product(sums[step / 4], step, 0, 0, step != 4);
  wgmma_commit();
}

template <class P>
__device__ __forceinline__ void fc1_weight_gradient_terms(const State& s, unsigned char* shared,
                                                          Fc1BackwardTermsShared::Arrived& arrived, int column0) {
  using Shared = Fc1BackwardTermsShared;
  __shared__ float largest_of_warps[kRoleThreads / 32];
  const int tid = threadIdx.x - kRoleThreads, lane = tid & 31, warp = uniform(tid >> 5);
  const auto [g, t] = fragment_place(lane);
  const std::uint32_t base = shared_address(shared);
  const int unit0 = warp * 16 + g;  // and unit0 + 8
  const std::size_t at0 = std::size_t(unit0) * kFeatures + column0 + t;
  // Sum 4 n + 2 u + k of a lane is unit unit0 + 8 u, column 8 n + 4 k + t.
  const auto at = [&](int n, int u, int k) { return at0 + std::size_t(u * 8) * kFeatures + n * 8 + k * 4; };
  float* const master = s.parameters + kParameters[kFc1Weight].offset;

  // A thread takes this chunk of a term's rows.
  constexpr int kRowChunks = 2 * Shared::kColumnChunks, kRowsAtOnce = kRoleThreads / kRowChunks;
  static_assert(kRowChunks == 8 && 4 * kRowsAtOnce == kHidden);
  const int term = tid % kRowChunks / Shared::kColumnChunks, chunk = tid % Shared::kColumnChunks;
  uint4 terms[4];
#pragma unroll
  for (int k = 0; k < 4; ++k)
    terms[k] =
        *reinterpret_cast<const uint4*>(static_cast<const __half*>(s.fc1_copy) +
                                        fc1_term_at(term, tid / kRowChunks + k * kRowsAtOnce, column0 + chunk * 8));
  const float a2_scale = a2_terms_scale(s, lane);
  float weights[16], scale[8], shift[8];
#pragma unroll
  for (int i = 0; i < 16; ++i) weights[i] = master[at(i / 4, i / 2 % 2, i % 2)];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int channel = column0 % kConv2Channels + chunk * 8 + i;
    scale[i] = s.bn2.scale(channel) * inverse_of(a2_scale);
    shift[i] = s.bn2.shift(channel) * inverse_of(a2_scale);
  }
  const float rate = *s.learning_rate;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const std::uint32_t words[4] = {terms[k].x, terms[k].y, terms[k].z, terms[k].w};  // two features each, four apart
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<std::uint32_t*>(shared + Shared::kWeights + term * Shared::kColumnTerm +
                                        (chunk / 2 * 2 + i / 2) * Shared::kColumnChunk +
                                        (tid / kRowChunks + k * kRowsAtOnce) * 16 + (chunk % 2 * 2 + i % 2) * 4) =
          __byte_perm(words[i / 2 * 2], words[i / 2 * 2 + 1], i % 2 == 0 ? 0x5410 : 0x7632);
  }

  const int tiles = (s.batch + Shared::kSamplesPerTile - 1) / Shared::kSamplesPerTile;
  const int first_units = warp / 4 * (kHidden / 16) * Shared::kDhChunk;  // of dh's chunks, this warpgroup's
  float dw[16] = {}, sums[2][16];
  const auto add = [&] {
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 2; ++i) wgmma_results(sums[i]);
#pragma unroll
    for (int i = 0; i < 16; ++i) dw[i] += sums[0][i] + sums[1][i];
  };
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = Shared::stage(tile);
    const TracedItem traced(s, Phase::kFc1Backward, {.first = 16, .points = 8, .from = 8, .to = 12}, tile, tid == 0);
    traced(0);
    arrived.pooled_z2.wait(tile);
    traced(1);
#pragma unroll
    for (int k = 0; k < Shared::kSamplesPerTile * Shared::kColumnChunks / kRoleThreads; ++k) {
      const int row = (tid + k * kRoleThreads) / Shared::kColumnChunks;
      const auto* from =
          reinterpret_cast<const float4*>(shared + stage + Shared::kPooledZ2 + row * Shared::kRowPitch + chunk * 32);
      const float4 low = from[0], high = from[1];
      const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      std::uint32_t big[4], small[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto relu = [&](int i) { return relu_keep_nan(fmaf(scale[i], x[i], shift[i])); };
        split_bounded(relu(i), relu(i + 4), big[i], small[i]);
      }
      auto* const to = shared + stage + Shared::kA2 + chunk * Shared::kColumnChunk + row * 16;
      *reinterpret_cast<uint4*>(to) = make_uint4(big[0], big[1], big[2], big[3]);
      *reinterpret_cast<uint4*>(to + Shared::kColumnTerm) = make_uint4(small[0], small[1], small[2], small[3]);
    }
    traced(2);
    wgmma_publish();  // a2, and with the first tile the weights, which dgrad multiplies
    if (tile > 0) add();
    traced(3);
    Fc1Wgrad::sync();  // a2 is complete
    traced(4);
    Fc1TileReady<Shared>::arrive(tile & 1);
    if (tile == 0) {
      wait_for_predecessor();  // so that its successor may start
      trace(s, Phase::kFc1Backward, 3, tid == 0);
    }
    arrived.dh.wait(tile);
    multiply_terms<true, Shared::kDhTerm, Shared::kColumnTerm, 16 * 16, 16 * 16>(
        sums, wgmma_operand(base + stage + first_units, 8 * 16, Shared::kDhChunk),
        wgmma_operand(base + stage + Shared::kA2, 8 * 16, Shared::kColumnChunk));
  }
  add();

  const float scale_of_sums = a2_scale * s.scales[kDhScale];
  float largest = 0;  // weight
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const std::size_t here = at(i / 4, i / 2 % 2, i % 2);
    const float d = dw[i] * scale_of_sums;
    if (s.gradients) s.gradients[kParameters[kFc1Weight].offset + here] = d;
    weights[i] = sgd(weights[i], d, rate);
    master[here] = weights[i];
    largest = fmaxf(largest, fabsf(weights[i]));
  }
  largest = warp_max(largest);
  if (lane == 0) largest_of_warps[warp] = largest;
  Fc1Wgrad::sync();  // all warps' largest are there
  const float next_scale = scale_of(warp_max(largest_of_warps[lane % (kRoleThreads / 32)]));
  if (tid == 0) s.fc1_scales[blockIdx.x] = next_scale;
#pragma unroll
  for (int i = 0; i < 16; i += 2) {  // neighbours in memory
    __half2 terms[2];
    split(weights[i] * inverse_of(next_scale), weights[i + 1] * inverse_of(next_scale), terms);
#pragma unroll
    for (int term = 0; term < 2; ++term)
      *reinterpret_cast<__half2*>(static_cast<__half*>(s.fc1_copy) +
                                  fc1_term_at(term, unit0 + i / 2 % 2 * 8, column0 + i / 4 * 8 + 2 * t)) = terms[term];
  }
  trace(s, Phase::kFc1Backward, 8, tid == 0);
}

template <class P>
__device__ __forceinline__ void fc1_dgrad_terms(const State& s, unsigned char* shared,
                                                Fc1BackwardTermsShared::Arrived& arrived, int column0,
                                                float fc1_scale) {
  using Shared = Fc1BackwardTermsShared;
  __shared__ float inv_sigma[32], warp_sums[kRoleThreads / 32][2][32];
  const int tid = threadIdx.x, lane = tid & 31, warp = uniform(tid >> 5);
  const auto [g, t] = fragment_place(lane);
  const std::uint32_t base = shared_address(shared);
  const int tiles = (s.batch + Shared::kSamplesPerTile - 1) / Shared::kSamplesPerTile;

  // pooled_z2 does not depend on head, dh does. A thread arrives once its own copies have.
  const auto fetch_pooled = [&](int tile) {
    const int first = tile * Shared::kSamplesPerTile;
    fetch_rows<Shared::kSamplesPerTile, kFc1Columns, Shared::kRowPitch, kRoleThreads>(
        base + Shared::stage(tile) + Shared::kPooledZ2, static_cast<const float*>(s.pooled_z2) + column0, kFeatures,
        s.batch, tid, first);
    arrived.pooled_z2[tile].arrive_after_copies();
  };
  const auto fetch_dh = [&](int tile) {
    if (tid == 0) fetch_dh_tile<Shared>(s, base, arrived, tile);
  };
  for (int tile = 0; tile < min(tiles, 2); ++tile) fetch_pooled(tile);
  const Bn2Operand bn2{s.bn2.values + column0 % kConv2Channels};
  const auto column = [&](int i) { return i / 4 * 16 + t * 4 + i % 4; };  // of a lane's 8 values of a row
  float scale[8], shift[8], mean[8], sum[8] = {}, sum_xhat[8] = {}, largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    scale[i] = bn2.scale(column(i));
    shift[i] = bn2.shift(column(i));
    mean[i] = bn2.mean(column(i));
  }
  if (tid < 32) inv_sigma[tid] = bn2.inv_sigma(tid);
  wait_for_predecessor();  // head: dh
  trace(s, Phase::kFc1Backward, 1, tid == 0);
  for (int tile = 0; tile < min(tiles, 2); ++tile) fetch_dh(tile);
  const float scale_of_sums = s.scales[kDhScale] * fc1_scale;

  const int row = warp * 16 + g;  // and row + 8
  float* to = static_cast<float*>(s.dy2) + std::size_t(row) * kFeatures + column0 + column(0);
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile, to += Shared::kSamplesPerTile * kFeatures) {
    const TracedItem traced(s, Phase::kFc1Backward, {.first = 48, .points = 8, .from = 8, .to = 10}, tile, tid == 0);
    traced(0);
    Fc1TileReady<Shared>::sync(tile & 1);  // a2 is made, and wgrad is done with the last tile
    traced(1);
    if (tile > 0 && tile + 1 < tiles) {
      fetch_pooled(tile + 1);
      fetch_dh(tile + 1);
    }
    arrived.dh.wait(tile);
    traced(2);
    const int stage = Shared::stage(tile);
    float sums[2][16];
    multiply_terms<false, Shared::kDhTerm, Shared::kColumnTerm, 2 * Shared::kDhChunk, 16 * 16>(
        sums, wgmma_operand(base + stage + warp / 4 * 64 * 16, Shared::kDhChunk, 8 * 16),
        wgmma_operand(base + Shared::kWeights, 8 * 16, Shared::kColumnChunk));
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 2; ++i) wgmma_results(sums[i]);
    traced(3);
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const auto* cells =
          reinterpret_cast<const float4*>(shared + stage + Shared::kPooledZ2 + (row + upper * 8) * Shared::kRowPitch);
      const float4 low = cells[column(0) / 4], high = cells[column(4) / 4];
      const float z[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int k = i / 2 * 4 + upper * 2 + i % 2;
        const float y = scale_of_sums * (sums[0][k] + sums[1][k]);
        x[i] = fmaf(scale[i], z[i], shift[i]) > 0.f ? y : 0.f;
        sum[i] += x[i];
        sum_xhat[i] = fmaf(x[i], z[i] - mean[i], sum_xhat[i]);
        largest = fmaxf(largest, fabsf(x[i]));
      }
      if (const int sample = tile * Shared::kSamplesPerTile + row + upper * 8; sample < s.batch)
#pragma unroll
        for (int i = 0; i < 8; i += 4)
          __stwb(reinterpret_cast<float4*>(to + upper * 8 * kFeatures + i * 4),
                 make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]));
    }
  }

  store_dy2_sums<P, Fc1Dgrad>(s, warp_sums, warp, sum, sum_xhat, column, largest, 1.f, inv_sigma, column0, warp, lane);
  trace(s, Phase::kFc1Backward, 7, tid == 0);
}

#endif

template <class P, class Models>
__global__ void __launch_bounds__(Fc1BackwardTermsShared::kThreads, 1) fc1_backward_terms_kernel(Models models) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const auto& s = state_of_block(models);
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Fc1BackwardTermsShared::Arrived arrived;
  trace(s, Phase::kFc1Backward, 0, threadIdx.x == 0);
  if (threadIdx.x < Fc1BackwardTermsShared::kStages) arrived.init(threadIdx.x, kRoleThreads);
  const float fc1_scale = s.fc1_scales[blockIdx.x];
  __syncthreads();  // the barriers are ready, and no thread reads the scale any more, which wgrad overwrites
  if (uniform(threadIdx.x / kRoleThreads) == 0)
    fc1_dgrad_terms<P>(s, shared, arrived, blockIdx.x * kFc1Columns, fc1_scale);
  else
    fc1_weight_gradient_terms<P>(s, shared, arrived, blockIdx.x * kFc1Columns);
#endif
}

}  // namespace mnist::fused
