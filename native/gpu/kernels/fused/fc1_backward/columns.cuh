// What the kernels of fc1_backward do for their block's 32 columns of fc1.weight besides the products: the copies, the
// constants of a2, the sums of dy2 and the update.
#pragma once

#include "kernels/fused/shared/phase.cuh"

namespace mnist::fused {

// Starts copying kRows rows of kColumns values, `stride` apart in `from`, by kThreadCount threads of which this is
// number `thread`: rows from `first` on, to places kPitch bytes apart, their chunks of 16 bytes kChunkPitch. Rows from
// `count` on are beyond the batch and become zeros (their source is not read).
template <int kRows, int kColumns, int kPitch, int kThreadCount, int kChunkPitch = 16, class T>
__device__ __forceinline__ void fetch_rows(std::uint32_t to, const T* from, int stride, int count, int thread,
                                           int first = 0) {
  constexpr int kRowChunks = kColumns * int(sizeof(T)) / 16, kRowsAtOnce = kThreadCount / kRowChunks;
  const int chunk = thread % kRowChunks, line = thread / kRowChunks, row0 = first + line;
  from += std::size_t(row0) * stride + chunk * (16 / int(sizeof(T)));
  to += chunk * kChunkPitch + line * kPitch;
#pragma unroll
  for (int row = 0; row < kRows; row += kRowsAtOnce)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + row * kPitch),
                 "l"(from + std::size_t(row) * stride), "r"(row0 + row < count ? 16 : 0)
                 : "memory");
}

// bn2's scale and shift for the wgrad role's chunk of a2, divided by a2's scale, which is returned.
template <class P>
__device__ __forceinline__ float load_a2_operand(const State& s, int column0, int chunk, float (&scale)[kChunk<P>],
                                                 float (&shift)[kChunk<P>]) {
#pragma unroll
  for (int i = 0; i < kChunk<P>; ++i) {
    scale[i] = s.bn2.scale(column0 % kConv2Channels + chunk * kChunk<P> + i);
    shift[i] = s.bn2.shift(column0 % kConv2Channels + chunk * kChunk<P> + i);
  }
  if constexpr (!P::kScaled) return 1;
  const float a2_scale = s.scales[kA2Scale];
#pragma unroll
  for (int i = 0; i < kChunk<P>; ++i) scale[i] *= inverse_of(a2_scale), shift[i] *= inverse_of(a2_scale);
  return a2_scale;
}

// The update of two neighbours of fc1.weight, load() and in memory at `at`, and of their copies in T; `largest` weight
// where these have a scale. Returns the copy.
template <class P, class Load>
__device__ __forceinline__ typename P::Pair update_fc1(const State& s, float* master, std::size_t at, Load load,
                                                       float2 d, float rate, float to_stored, float& largest) {
  if (s.gradients) *reinterpret_cast<float2*>(s.gradients + kParameters[kFc1Weight].offset + at) = d;
  float2 value = load();
  value.x = sgd(value.x, d.x, rate);
  value.y = sgd(value.y, d.y, rate);
  *reinterpret_cast<float2*>(master + at) = value;
  const auto pair = P::kScaled ? P::pack(to_stored * value.x, to_stored * value.y) : P::pack(value.x, value.y);
  *reinterpret_cast<typename P::Pair*>(static_cast<typename P::T*>(s.fc1) + at) = pair;
  if constexpr (P::kScaled) largest = fmaxf(largest, fmaxf(fabsf(value.x), fabsf(value.y)));
  return pair;
}

// The end of the wgrad role: a lane's largest weight.
template <class P>
__device__ __forceinline__ void store_largest_fc1(const State& s, float largest, int warp, int lane) {
  if constexpr (P::kScaled) {
    largest = warp_max(largest);
    if (lane == 0) s.fc1_max()[blockIdx.x * kGradientWarps + warp] = largest;
  }
}

// The end of the dgrad role: a lane's sums of dy2 and dy2 * (z2 - mean) in the columns column(i), the same for the
// lanes of equal t, and its largest |dy2|. A warp leaves its sums in warp_sums[group]; `Role` is the barrier of the
// role.
template <class P, class Role, int kValues, int kGroups, class Column>
__device__ __forceinline__ void store_dy2_sums(const State& s, float (&warp_sums)[kGroups][2][32], int group,
                                               float (&sum)[kValues], float (&sum_xhat)[kValues], Column column,
                                               float largest, float dy2_scale, const float (&inv_sigma)[32],
                                               int column0, int warp, int lane) {
  const int tid = threadIdx.x, g = fragment_place(lane).g;
  // The lanes of equal t add up. With each step a lane keeps half of its values, adds another lane's to them, and gives
  // that one the other half.
  static_assert(kValues % 4 == 0);
  const auto keep_half = [lane](auto& values, int n, int mask) {
    const bool upper = lane & mask;
#pragma unroll
    for (int i = 0; i < kValues; ++i)
      if (i < n) {
        const float low = values[i], high = values[i + n];
        values[i] = (upper ? high : low) + __shfl_xor_sync(0xffffffffu, upper ? low : high, mask);
      }
  };
  float values[2 * kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) values[i] = sum[i], values[kValues + i] = sum_xhat[i];
  keep_half(values, kValues, 4);
  keep_half(values, kValues / 2, 8);
  keep_half(values, kValues / 4, 16);
#pragma unroll
  for (int i = 0; i < kValues / 4; ++i)
    warp_sums[group][g & 1][column((g >> 1 & 1) * (kValues / 2) + (g >> 2) * (kValues / 4) + i)] = values[i];
  if constexpr (kHasScales<P>) {
    static_assert(kGradientWarps == kRoleThreads / 32);
    largest = warp_max(largest);
    if constexpr (P::kScaled) largest *= dy2_scale;
    if (lane == 0) s.dy2_max[blockIdx.x * kGradientWarps + warp] = largest;
  }
  Role::sync();  // the warps' sums are complete
  if (tid < 64) {
    const int which = tid >> 5;
    float total = 0;
#pragma unroll
    for (int k = 0; k < kGroups; ++k) total += warp_sums[k][which][lane];
    if constexpr (P::kScaled) total *= dy2_scale;
    s.dy2_sums[which * kFeatures + column0 + lane] = which == 0 ? total : total * inv_sigma[lane];
  }
}

}  // namespace mnist::fused
