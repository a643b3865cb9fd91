// B1: fc1 backward. g2 = relu mask of (dh fc1), its channel sums for bn2, and fc1.weight -= lr * dh^T a2, in place.
//
// A block owns 32 columns of fc1.weight: half of the channels of one pooled cell. It alone reads or writes them in
// this phase, so the update needs no second pass. The batch is walked in chunks of 64 rows.
#pragma once

#include "kernels/fused/forward2.cuh"

namespace mnist::fused {

template <class P>
struct Backward1Shared {
  static constexpr int kSize = sizeof(typename P::T);
  static constexpr int kRows = 64;                            // of the batch in a chunk
  static constexpr int kWeightPitch = kSize == 2 ? 80 : 160;  // 32 values of a hidden unit
  static constexpr int kDhPitch = kHidden * kSize + 16;       // 128 values of a sample
  static constexpr int kCellPitch = 32 * kSize + 16;          // 32 values of a sample
  static constexpr int kWeight = 0;
  static constexpr int kDh = kWeight + kHidden * kWeightPitch;  // two buffers
  static constexpr int kE2 = kDh + 2 * kRows * kDhPitch;        // two buffers
  static constexpr int kA2 = kE2 + 2 * kRows * kCellPitch;
  static constexpr int kBytes = kA2 + kRows * kCellPitch;
};

template <class P>
__global__ void __launch_bounds__(kThreads) backward1_kernel(State s) {
  using T = typename P::T;
  using Shared = Backward1Shared<P>;
  constexpr int kRows = Shared::kRows;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float bn[4][32];
  __shared__ float warp_sums[4][2][32];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int cell = blockIdx.x >> 1, channel0 = (blockIdx.x & 1) * 32, column0 = cell * 64 + channel0;
  const std::uint32_t base = shared_address(shared);

  const auto zero = [&](int offset) { *reinterpret_cast<uint4*>(shared + offset) = make_uint4(0, 0, 0, 0); };
  const auto fetch_dh = [&](int chunk, int buffer) {
    constexpr int kDhChunks = kHidden * Shared::kSize / 16;
    for (int i = tid; i < kRows * kDhChunks; i += kThreads) {
      const int row = chunk * kRows + i / kDhChunks;
      const int to = Shared::kDh + (buffer * kRows + i / kDhChunks) * Shared::kDhPitch + i % kDhChunks * 16;
      if (row < s.batch)
        copy_async_16(base + to, static_cast<const T*>(s.dh) + std::size_t(row) * kHidden + i % kDhChunks * kChunk<P>);
      else
        zero(to);
    }
    copy_async_commit();
  };
  const auto fetch_e2 = [&](int chunk, int buffer) {
    constexpr int kCellChunks = 32 * Shared::kSize / 16;
    for (int i = tid; i < kRows * kCellChunks; i += kThreads) {
      const int row = chunk * kRows + i / kCellChunks;
      const int to = Shared::kE2 + (buffer * kRows + i / kCellChunks) * Shared::kCellPitch + i % kCellChunks * 16;
      if (row < s.batch)
        copy_async_16(base + to, static_cast<const T*>(s.e2) + (std::size_t(row) * kCells2 + cell) * 64 + channel0 +
                                     i % kCellChunks * kChunk<P>);
      else
        zero(to);
    }
  };

  constexpr int kWeightChunks = 32 * Shared::kSize / 16;
  for (int i = tid; i < kHidden * kWeightChunks; i += kThreads)
    copy_async_16(base + Shared::kWeight + i / kWeightChunks * Shared::kWeightPitch + i % kWeightChunks * 16,
                  static_cast<const T*>(s.fc1) + std::size_t(i / kWeightChunks) * kFeatures + column0 +
                      i % kWeightChunks * kChunk<P>);
  fetch_e2(0, 0);
  if (tid < 128) bn[tid >> 5][tid & 31] = s.bn2[(tid >> 5) * 64 + channel0 + (tid & 31)];
  const float learning_rate = s.scalars[0];
  wait_for_predecessor();  // H: dh
  fetch_dh(0, 0);

  const int tile = warp & 3, columns = (warp >> 2) * 16;  // of this warp in the dgrad product: 16 samples, 16 columns
  float sum[2][2] = {}, sum_xhat[2][2] = {};
  float dw[4][4] = {};  // hidden units 16 * warp .., all 32 columns
  const int chunks = (s.batch + kRows - 1) / kRows;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int buffer = chunk & 1;
    const int dh_offset = Shared::kDh + buffer * kRows * Shared::kDhPitch;
    const int e2_offset = Shared::kE2 + buffer * kRows * Shared::kCellPitch;
    copy_async_wait<0>();
    __syncthreads();  // this chunk has arrived, and the last one's readers are done
    if (chunk + 1 < chunks) {
      fetch_e2(chunk + 1, buffer ^ 1);
      fetch_dh(chunk + 1, buffer ^ 1);
    }
    {
      const int row = tid >> 2, eight = tid & 3;
      Eight<P> e;
      e.load(reinterpret_cast<const T*>(shared + e2_offset + row * Shared::kCellPitch) + eight * 8);
      float a[8];
#pragma unroll
      for (int i = 0; i < 8; ++i)
        a[i] = P::load(P::store(relu_keep_nan(fmaf(bn[0][eight * 8 + i], e[i], bn[1][eight * 8 + i]))));
      store_8<P>(reinterpret_cast<T*>(shared + Shared::kA2 + row * Shared::kCellPitch) + eight * 8, a);
    }
    __syncthreads();

    float acc[2][4] = {};
#pragma unroll
    for (int step = 0; step < kHidden / kStep<P>; ++step) {
      std::uint32_t a[4];
      load_matrix_x4(
          a, base + dh_offset + tile * 16 * Shared::kDhPitch + a_lane_offset(lane, Shared::kDhPitch) + step * 32);
      if constexpr (Shared::kSize == 2) {
        std::uint32_t w[4];
        load_matrix_x4_trans(w, base + Shared::kWeight + step * 16 * Shared::kWeightPitch +
                                    a_lane_offset(lane, Shared::kWeightPitch) + columns * 2);
        P::mma(acc[0], a, w[0], w[1]);
        P::mma(acc[1], a, w[2], w[3]);
      } else {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const std::uint32_t at =
              base + Shared::kWeight + (step * 8 + t) * Shared::kWeightPitch + (columns + n * 8 + g) * 4;
          P::mma(acc[n], a, load_shared_32(at), load_shared_32(at + 4 * Shared::kWeightPitch));
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile * 16 + g + half * 8, sample = chunk * kRows + row, column = columns + n * 8 + 2 * t;
        const auto* e = reinterpret_cast<const T*>(shared + e2_offset + row * Shared::kCellPitch) + column;
        const auto* a2 = reinterpret_cast<const T*>(shared + Shared::kA2 + row * Shared::kCellPitch) + column;
        T g2[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          g2[k] = P::store(P::load(a2[k]) > 0.f ? acc[n][2 * half + k] : 0.f);
          const float value = P::load(g2[k]);
          sum[n][k] += value;
          sum_xhat[n][k] = fmaf(value, (P::load(e[k]) - bn[2][column + k]) * bn[3][column + k], sum_xhat[n][k]);
        }
        if (sample < s.batch) {
          auto* out = static_cast<T*>(s.g2) + (std::size_t(sample) * kCells2 + cell) * 64 + channel0 + column;
          if constexpr (Shared::kSize == 2)
            *reinterpret_cast<__nv_bfloat162*>(out) = __nv_bfloat162(g2[0], g2[1]);
          else
            *reinterpret_cast<float2*>(out) = make_float2(g2[0], g2[1]);
        }
      }

    float part[4][4] = {};
#pragma unroll
    for (int step = 0; step < kRows / kStep<P>; ++step) {
      if constexpr (Shared::kSize == 2) {
        std::uint32_t a[4];
        load_matrix_x4_trans(a, base + dh_offset + (step * 16 + (lane & 7) + (lane >> 4) * 8) * Shared::kDhPitch +
                                    warp * 32 + (lane >> 3 & 1) * 16);
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          std::uint32_t b[4];
          load_matrix_x4_trans(b, base + Shared::kA2 + step * 16 * Shared::kCellPitch +
                                      a_lane_offset(lane, Shared::kCellPitch) + pair * 32);
          P::mma(part[2 * pair], a, b[0], b[1]);
          P::mma(part[2 * pair + 1], a, b[2], b[3]);
        }
      } else {
        // The product's k runs over samples 2t and 2t+1 instead of t and t+4: rows two apart hit distinct banks.
        const std::uint32_t at = base + dh_offset + (step * 8 + 2 * t) * Shared::kDhPitch + (warp * 16 + g) * 4;
        const std::uint32_t a[4] = {load_shared_32(at), load_shared_32(at + 32), load_shared_32(at + Shared::kDhPitch),
                                    load_shared_32(at + Shared::kDhPitch + 32)};
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const std::uint32_t bt = base + Shared::kA2 + (step * 8 + 2 * t) * Shared::kCellPitch + (n * 8 + g) * 4;
          P::mma(part[n], a, load_shared_32(bt), load_shared_32(bt + Shared::kCellPitch));
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) dw[n][i] += part[n][i];
  }

#pragma unroll
  for (int n = 0; n < 4; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::size_t at = std::size_t(warp * 16 + g + half * 8) * kFeatures + column0 + n * 8 + 2 * t;
      auto* w = reinterpret_cast<float2*>(s.parameters + kParameters[kFc1Weight].offset + at);
      const float2 d = make_float2(dw[n][2 * half], dw[n][2 * half + 1]);
      if (s.gradients) *reinterpret_cast<float2*>(s.gradients + kParameters[kFc1Weight].offset + at) = d;
      float2 value = *w;
      value.x -= learning_rate * d.x;
      value.y -= learning_rate * d.y;
      *w = value;
      auto* copy = static_cast<T*>(s.fc1) + at;
      if constexpr (Shared::kSize == 2)
        *reinterpret_cast<__nv_bfloat162*>(copy) = __floats2bfloat162_rn(value.x, value.y);
      else
        *reinterpret_cast<float2*>(copy) = make_float2(P::store(value.x), P::store(value.y));
    }
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int mask = 4; mask < 32; mask <<= 1) {
        sum[n][k] += __shfl_xor_sync(0xffffffffu, sum[n][k], mask);
        sum_xhat[n][k] += __shfl_xor_sync(0xffffffffu, sum_xhat[n][k], mask);
      }
      if (g == 0) {
        warp_sums[tile][0][columns + n * 8 + 2 * t + k] = sum[n][k];
        warp_sums[tile][1][columns + n * 8 + 2 * t + k] = sum_xhat[n][k];
      }
    }
  __syncthreads();
  if (tid < 64) {
    const int which = tid >> 5, column = tid & 31;
    s.g2_sums[(which * kCells2 + cell) * 64 + channel0 + column] =
        (warp_sums[0][which][column] + warp_sums[1][which][column]) +
        (warp_sums[2][which][column] + warp_sums[3][which][column]);
  }
}

}  // namespace mnist::fused
