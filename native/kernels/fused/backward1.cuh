// B1: fc1 backward. g2 = relu mask of (dh fc1), its channel sums for bn2, and fc1.weight -= lr * dh^T a2, in place.
//
// A block owns 32 columns of fc1.weight: half of the channels of one pooled cell. It alone reads or writes them in
// this phase, so the update needs no second pass. The batch is walked in chunks of kRows samples.
#pragma once

#include "kernels/fused/forward2.cuh"

namespace mnist::fused {

template <class P>
struct Backward1Shared {
  static constexpr int kSize = sizeof(typename P::T);
  static constexpr int kRows = kSize == 2 ? 128 : 64;         // of the batch in a chunk
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
__device__ __forceinline__ float2 load_pair(const unsigned char* row, int column) {
  if constexpr (sizeof(typename P::T) == 2)
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(row)[column / 2]);
  else
    return reinterpret_cast<const float2*>(row)[column / 2];
}
template <class P>
__device__ __forceinline__ void store_pair(typename P::T* to, float2 pair) {
  if constexpr (sizeof(typename P::T) == 2)
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(pair.x, pair.y);
  else
    *reinterpret_cast<float2*>(to) = make_float2(P::store(pair.x), P::store(pair.y));
}

template <class P>
__global__ void __launch_bounds__(kConvThreads) backward1_kernel(State s) {
  using T = typename P::T;
  using Shared = Backward1Shared<P>;
  constexpr int kRows = Shared::kRows;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float bn[4][32];
  __shared__ float warp_sums[Shared::kRows / 16][2][32];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int cell = blockIdx.x >> 1, channel0 = (blockIdx.x & 1) * 32, column0 = cell * 64 + channel0;
  const std::uint32_t base = shared_address(shared);

  const auto zero = [&](int offset) { *reinterpret_cast<uint4*>(shared + offset) = make_uint4(0, 0, 0, 0); };
  // 16-byte chunk `tid % chunks of a row` of every row that this thread's number reaches.
  const auto fetch_dh = [&](int chunk, int buffer) {
    constexpr int kChunks = kHidden * Shared::kSize / 16;
    const int part = tid % kChunks;
#pragma unroll
    for (int row = tid / kChunks; row < kRows; row += kConvThreads / kChunks) {
      const int to = Shared::kDh + (buffer * kRows + row) * Shared::kDhPitch + part * 16;
      const int sample = chunk * kRows + row;
      if (sample < s.batch)
        copy_async_16(base + to, static_cast<const T*>(s.dh) + std::size_t(sample) * kHidden + part * kChunk<P>);
      else
        zero(to);
    }
    copy_async_commit();
  };
  const auto fetch_e2 = [&](int chunk, int buffer) {
    constexpr int kChunks = 32 * Shared::kSize / 16;
    const int part = tid % kChunks;
#pragma unroll
    for (int row = tid / kChunks; row < kRows; row += kConvThreads / kChunks) {
      const int to = Shared::kE2 + (buffer * kRows + row) * Shared::kCellPitch + part * 16;
      const int sample = chunk * kRows + row;
      if (sample < s.batch)
        copy_async_16(base + to, static_cast<const T*>(s.e2) + (std::size_t(sample) * kCells2 + cell) * 64 + channel0 +
                                     part * kChunk<P>);
      else
        zero(to);
    }
  };

  constexpr int kWeightChunks = 32 * Shared::kSize / 16;
  for (int i = tid; i < kHidden * kWeightChunks; i += kConvThreads)
    copy_async_16(base + Shared::kWeight + i / kWeightChunks * Shared::kWeightPitch + i % kWeightChunks * 16,
                  static_cast<const T*>(s.fc1) + std::size_t(i / kWeightChunks) * kFeatures + column0 +
                      i % kWeightChunks * kChunk<P>);
  fetch_e2(0, 0);
  if (tid < 128) bn[tid >> 5][tid & 31] = s.bn2[(tid >> 5) * 64 + channel0 + (tid & 31)];
  const float learning_rate = s.scalars[0];
  wait_for_predecessor();  // H: dh
  fetch_dh(0, 0);
  __syncthreads();

  // In the dgrad product a warp makes 16 samples by kGroups * 8 columns, in the wgrad product 16 hidden units by 16.
  constexpr int kTiles = kRows / 16, kGroups = 4 * kTiles / 16;
  const int tile = warp % kTiles, columns = warp / kTiles * kGroups * 8;
  const int hidden = warp % 8 * 16, half = warp / 8 * 16;
  const int eight = tid & 3;
  float scale[8], shift[8], mean[kGroups][2], inv_sigma[kGroups][2];
#pragma unroll
  for (int i = 0; i < 8; ++i) scale[i] = bn[0][eight * 8 + i], shift[i] = bn[1][eight * 8 + i];
#pragma unroll
  for (int i = 0; i < 2 * kGroups; ++i) {
    mean[i >> 1][i & 1] = bn[2][columns + (i >> 1) * 8 + 2 * t + (i & 1)];
    inv_sigma[i >> 1][i & 1] = bn[3][columns + (i >> 1) * 8 + 2 * t + (i & 1)];
  }
  float sum[kGroups][2] = {}, sum_xhat[kGroups][2] = {};
  float dw[2][4] = {};
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
    if (tid < 4 * kRows) {
      const int row = tid >> 2;
      Eight<P> e;
      e.load(reinterpret_cast<const T*>(shared + e2_offset + row * Shared::kCellPitch) + eight * 8);
      float a[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) a[i] = relu_keep_nan(fmaf(scale[i], e[i], shift[i]));
      store_8<P>(reinterpret_cast<T*>(shared + Shared::kA2 + row * Shared::kCellPitch) + eight * 8, a);
    }
    __syncthreads();

    float acc[kGroups][4] = {}, dgrad[kGroups][4] = {};
#pragma unroll
    for (int step = 0; step < kHidden / kStep<P>; ++step) {
      std::uint32_t a[4];
      load_matrix_x4(
          a, base + dh_offset + tile * 16 * Shared::kDhPitch + a_lane_offset(lane, Shared::kDhPitch) + step * 32);
      if constexpr (Shared::kSize == 2) {
        std::uint32_t w[4];
        load_matrix_x4_trans(w, base + Shared::kWeight + step * 16 * Shared::kWeightPitch +
                                    a_lane_offset(lane, Shared::kWeightPitch) + columns * 2);
        P::mma(dgrad[0], a, w[0], w[1]);
        P::mma(dgrad[kGroups - 1], a, w[2], w[3]);
      } else {
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
          const std::uint32_t at =
              base + Shared::kWeight + (step * 8 + t) * Shared::kWeightPitch + (columns + n * 8 + g) * 4;
          P::mma(dgrad[n], a, load_shared_32(at), load_shared_32(at + 4 * Shared::kWeightPitch));
        }
      }
      if (step + 1 == kHidden / kStep<P> || (P::kDrainAccumulators && step % 4 == 3))
#pragma unroll
        for (int i = 0; i < 4 * kGroups; ++i) {
          acc[i >> 2][i & 3] += dgrad[i >> 2][i & 3];
          dgrad[i >> 2][i & 3] = 0.f;
        }
    }
#pragma unroll
    for (int n = 0; n < kGroups; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = tile * 16 + g + i * 8, sample = chunk * kRows + row, column = columns + n * 8 + 2 * t;
        const float2 e = load_pair<P>(shared + e2_offset + row * Shared::kCellPitch, column);
        const float2 a2 = load_pair<P>(shared + Shared::kA2 + row * Shared::kCellPitch, column);
        const float2 g2 = P::round(a2.x > 0.f ? acc[n][2 * i] : 0.f, a2.y > 0.f ? acc[n][2 * i + 1] : 0.f);
        sum[n][0] += g2.x;
        sum[n][1] += g2.y;
        sum_xhat[n][0] = fmaf(g2.x, (e.x - mean[n][0]) * inv_sigma[n][0], sum_xhat[n][0]);
        sum_xhat[n][1] = fmaf(g2.y, (e.y - mean[n][1]) * inv_sigma[n][1], sum_xhat[n][1]);
        if (sample < s.batch)
          store_pair<P>(static_cast<T*>(s.g2) + (std::size_t(sample) * kCells2 + cell) * 64 + channel0 + column, g2);
      }

    float part[2][4] = {};
#pragma unroll
    for (int step = 0; step < kRows / kStep<P>; ++step) {
      if constexpr (Shared::kSize == 2) {
        std::uint32_t a[4];
        load_matrix_x4_trans(a, base + dh_offset + (step * 16 + (lane & 7) + (lane >> 4) * 8) * Shared::kDhPitch +
                                    hidden * 2 + (lane >> 3 & 1) * 16);
        std::uint32_t b[4];
        load_matrix_x4_trans(b, base + Shared::kA2 + step * 16 * Shared::kCellPitch +
                                    a_lane_offset(lane, Shared::kCellPitch) + half * 2);
        P::mma(part[0], a, b[0], b[1]);
        P::mma(part[1], a, b[2], b[3]);
      } else {
        // The product's k runs over samples 2t and 2t+1 instead of t and t+4: rows two apart hit distinct banks.
        const std::uint32_t at = base + dh_offset + (step * 8 + 2 * t) * Shared::kDhPitch + (hidden + g) * 4;
        const std::uint32_t a[4] = {load_shared_32(at), load_shared_32(at + 32), load_shared_32(at + Shared::kDhPitch),
                                    load_shared_32(at + Shared::kDhPitch + 32)};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const std::uint32_t bt =
              base + Shared::kA2 + (step * 8 + 2 * t) * Shared::kCellPitch + (half + n * 8 + g) * 4;
          P::mma(part[n], a, load_shared_32(bt), load_shared_32(bt + Shared::kCellPitch));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) dw[i >> 2][i & 3] += part[i >> 2][i & 3];
  }

#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::size_t at = std::size_t(hidden + g + i * 8) * kFeatures + column0 + half + n * 8 + 2 * t;
      auto* w = reinterpret_cast<float2*>(s.parameters + kParameters[kFc1Weight].offset + at);
      const float2 d = make_float2(dw[n][2 * i], dw[n][2 * i + 1]);
      if (s.gradients) *reinterpret_cast<float2*>(s.gradients + kParameters[kFc1Weight].offset + at) = d;
      float2 value = *w;
      value.x -= learning_rate * d.x;
      value.y -= learning_rate * d.y;
      *w = value;
      store_pair<P>(static_cast<T*>(s.fc1) + at, value);
    }
#pragma unroll
  for (int n = 0; n < kGroups; ++n)
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
    float total = 0;
#pragma unroll
    for (int k = 0; k < kTiles; ++k) total += warp_sums[k][which][column];
    s.g2_sums[(which * kCells2 + cell) * 64 + channel0 + column] = total;
  }
}

}  // namespace mnist::fused
