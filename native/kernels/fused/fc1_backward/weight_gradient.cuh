// The weight gradient role of fc1_backward: fc1.weight -= lr * dh^T a2, in place.
#pragma once

#include "kernels/device/barriers.cuh"
#include "kernels/device/dependent_launch.cuh"
#include "kernels/device/lane.cuh"
#include "kernels/device/matrix.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/fused/fc1_backward/batch_tiles.cuh"
#include "kernels/fused/shared/fp16_scales.cuh"
#include "kernels/fused/shared/trace.cuh"
#include "kernels/fused/shared/values.cuh"

namespace mnist::fused {

// a2 = relu(bn2(pooled_z2)) and fc1.weight's gradient and update. A warp makes 32 hidden units by all 32 columns over
// every other k-step; the two warps of the same hidden units add up at the end, and each updates 16 of the 32.
template <class Shared>
__device__ __forceinline__ void fc1_weight_gradient(const State& s, unsigned char* shared, int column0) {
  using P = typename Shared::P;
  using T = typename P::T;
  constexpr int kRows = Shared::kRows, kRowChunks = 32 * Shared::kSize / 16, kRowsAtOnce = kRoleThreads / kRowChunks;
  constexpr int kSteps = kRows / kStep<P>, kUnroll = P::kDrainAccumulators ? 1 : kSteps / 2;  // as registers allow
  const int tid = threadIdx.x - kRoleThreads, lane = tid & 31, warp = tid >> 5;
  const auto [g, t] = fragment_place(lane);
  const int hidden = warp % 4 * 32, parity = warp / 4;
  const std::uint32_t base = shared_address(shared);
  const int tiles = (s.batch + kRows - 1) / kRows;
  float* const master = s.parameters + kParameters[kFc1Weight].offset;

  // What does not depend on head. After the last tile come the weights that the end will update.
  const auto fetch_rest = [&](int n) {
    const int first = n * kRows;
    if (n < tiles)
      fetch_rows<kRows, 32, Shared::kCellPitch, kRoleThreads>(
          base + Shared::pooled_z2(n), static_cast<const T*>(s.pooled_z2) + std::size_t(first) * kFeatures + column0,
          kFeatures, s.batch - first, tid);
    else if (n == tiles)
      fetch_rows<kHidden, 32, Shared::kMasterPitch, kRoleThreads>(base + Shared::dh(n), master + column0, kFeatures,
                                                                  kHidden, tid);
  };
  fetch_rest(0);
  if constexpr (Shared::kAhead == 2) fetch_rest(1);
  const int chunk = tid % kRowChunks;
  float scale[kChunk<P>], shift[kChunk<P>];
#pragma unroll
  for (int i = 0; i < kChunk<P>; ++i) {
    scale[i] = s.bn2.scale(column0 % kConv2Channels + chunk * kChunk<P> + i);
    shift[i] = s.bn2.shift(column0 % kConv2Channels + chunk * kChunk<P> + i);
  }
  float scale_of_sums = 1, to_stored = 1;
  if constexpr (P::kScaled) {
    scale_of_sums = s.scales[kA2Scale];
#pragma unroll
    for (int i = 0; i < kChunk<P>; ++i) scale[i] *= inverse_of(scale_of_sums), shift[i] *= inverse_of(scale_of_sums);
  }
  const float learning_rate = *s.learning_rate;
  wait_for_predecessor();  // head: dh
  fetch_dh<Shared>(s, base, 0);
  if constexpr (Shared::kAhead == 2) fetch_dh<Shared>(s, base, 1);
  if constexpr (P::kScaled) scale_of_sums *= s.scales[kDhScale], to_stored = inverse_of(s.scales[kNextFc1Scale]);

  float dw[2][4][4] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    copy_async_wait<Shared::kAhead - 1>();
    TileArrived::arrive();
    TileReleased::sync();  // this tile has arrived, and the last one's readers are done
    fetch_rest(tile + Shared::kAhead);
    fetch_dh<Shared>(s, base, tile + Shared::kAhead);
#pragma unroll
    for (int k = 0; k < kRows / kRowsAtOnce; ++k) {
      const int at = spread_row(tid / kRowChunks + k * kRowsAtOnce) * Shared::kCellPitch + chunk * 16;
      float x[kChunk<P>];
      unpack<P>(x, *reinterpret_cast<const uint4*>(shared + Shared::pooled_z2(tile) + at));
      *reinterpret_cast<uint4*>(shared + Shared::kA2 + at) = bn2_relu<P>(x, scale, shift);
    }
    A2Ready::arrive();
    WgradOnly::sync();

    const int steps = min((s.batch - tile * kRows + kStep<P> - 1) / kStep<P>, kSteps);  // that have a sample
    float sums[2][4][4] = {};
    const auto multiply = [&](int step) {
      if constexpr (Shared::kSize == 2) {
        std::uint32_t a[2][4], b[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m)
          load_matrix_x4_trans(a[m], base + Shared::dh(tile) +
                                         (step * 16 + (lane & 7) + (lane >> 4) * 8) * Shared::kDhPitch +
                                         (hidden + m * 16) * 2 + (lane >> 3 & 1) * 16);
#pragma unroll
        for (int n = 0; n < 2; ++n)
          load_matrix_x4_trans(b[n], base + Shared::kA2 + step * 16 * Shared::kCellPitch +
                                         a_lane_offset(lane, Shared::kCellPitch) + n * 32);
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int n = 0; n < 4; ++n) P::mma(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
      } else {
        // The product's k runs over samples 2t and 2t+1 instead of t and t+4: rows two apart hit distinct banks.
        std::uint32_t a[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            a[m][i] = load_shared_32(base + Shared::dh(tile) + (step * 8 + 2 * t + i / 2) * Shared::kDhPitch +
                                     (hidden + m * 16 + i % 2 * 8 + g) * 4);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const std::uint32_t at = base + Shared::kA2 + (step * 8 + 2 * t) * Shared::kCellPitch + (n * 8 + g) * 4;
          const std::uint32_t b[2] = {load_shared_32(at), load_shared_32(at + Shared::kCellPitch)};
#pragma unroll
          for (int m = 0; m < 2; ++m) P::mma(sums[m][n], a[m], b[0], b[1]);
        }
      }
    };
    if (steps == kSteps) {
#pragma unroll(kUnroll)
      for (int k = 0; k < kSteps / 2; ++k) multiply(2 * k + parity);
    } else {
#pragma unroll 1
      for (int step = parity; step < steps; step += 2) multiply(step);
    }
    add_accumulators(dw, sums);
  }

  trace(s, Phase::kFc1Backward, 9, tid == 0);
  // dw[0] becomes the 16 units that this warp updates, dw[1] the other warp's.
  if (parity == 1)
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float other = dw[0][i >> 2][i & 3];
      dw[0][i >> 2][i & 3] = dw[1][i >> 2][i & 3];
      dw[1][i >> 2][i & 3] = other;
    }
  // The stage after the weights' is free: its tile, if there was one, came before the last. Of 2 stages it is the last.
  if constexpr (Shared::kStages == 2) TileReleased::sync();
  auto* halves = reinterpret_cast<float4*>(shared + Shared::dh(tiles + 1)) + lane;
#pragma unroll
  for (int n = 0; n < 4; ++n)
    halves[(warp * 4 + n) * 32] = make_float4(dw[1][n][0], dw[1][n][1], dw[1][n][2], dw[1][n][3]);
  copy_async_wait<0>();
  WgradOnly::sync();
  float largest = 0;  // weight
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float4 other = halves[((warp ^ 4) * 4 + n) * 32];
    float2 d[2] = {make_float2(dw[0][n][0] + other.x, dw[0][n][1] + other.y),
                   make_float2(dw[0][n][2] + other.z, dw[0][n][3] + other.w)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int unit = hidden + parity * 16 + g + i * 8, column = n * 8 + 2 * t;
      const std::size_t at = std::size_t(unit) * kFeatures + column0 + column;
      if constexpr (P::kScaled) d[i].x *= scale_of_sums, d[i].y *= scale_of_sums;
      if (s.gradients) *reinterpret_cast<float2*>(s.gradients + kParameters[kFc1Weight].offset + at) = d[i];
      float2 value =
          *reinterpret_cast<const float2*>(shared + Shared::dh(tiles) + unit * Shared::kMasterPitch + column * 4);
      value.x -= learning_rate * d[i].x;
      value.y -= learning_rate * d[i].y;
      *reinterpret_cast<float2*>(master + at) = value;
      auto* stored = static_cast<T*>(s.fc1) + at;
      if constexpr (P::kScaled) {
        *reinterpret_cast<typename P::Pair*>(stored) = P::pack(to_stored * value.x, to_stored * value.y);
        largest = fmaxf(largest, fmaxf(fabsf(value.x), fabsf(value.y)));
      } else if constexpr (Shared::kSize == 2) {
        *reinterpret_cast<typename P::Pair*>(stored) = P::pack(value.x, value.y);
      } else {
        *reinterpret_cast<float2*>(stored) = P::unpack(P::pack(value.x, value.y));
      }
    }
  }
  if constexpr (P::kScaled) {
    largest = warp_max(largest);
    if (lane == 0) s.fc1_max()[blockIdx.x * kGradientWarps + warp] = largest;
  }
  trace(s, Phase::kFc1Backward, 8, tid == 0);
}

}  // namespace mnist::fused
