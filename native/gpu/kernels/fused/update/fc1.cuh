// update behind fc: its first blocks make fc1's weight gradient and the step with it, 32 columns each. They need what
// fc left and nothing of conv2_backward, so they run beside it on multiprocessors that have no image, or fewer than
// others.
#pragma once

#include "kernels/device/matrix.cuh"
#include "kernels/fused/fc1_backward/columns.cuh"
#include "kernels/fused/update/update.cuh"

namespace mnist::fused {

struct Fc1Scratch {
  static constexpr int kFetched = kUpdateThreads * 8 / kHidden;  // samples of dh at a time
  static constexpr int kRows = (kFcMostSamples + kFetched - 1) / kFetched * kFetched;
  static constexpr int kDhPitch = kHidden * 2 + 16, kA2Pitch = kFc1Columns * 2 + 16;
  alignas(16) unsigned char dh[kRows * kDhPitch], a2[kRows * kA2Pitch];
  float largest[kUpdateThreads / 32];
};

// A warp makes 16 hidden units by 16 columns.
template <class P>
__device__ __forceinline__ void update_fc1_columns(const State& s, Fc1Scratch& scratch, int block) {
  using T = typename P::T;
  using Scratch = Fc1Scratch;
  constexpr int kRowsAtOnce = kUpdateThreads * 8 / kFc1Columns, kPieces = (Scratch::kRows - 1) / kRowsAtOnce + 1;
  static_assert(kUpdateThreads == 512 && kGradientWarps == 8);
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, column0 = block * kFc1Columns;
  const auto [g, t] = fragment_place(lane);
  const int hidden = warp % 8 * 16, column = warp / 8 * 16;
  // fc ended before conv2_backward began its work, which it had when this kernel started.
  for (int first = 0; first < s.batch; first += Scratch::kFetched)
    fetch_rows<Scratch::kFetched, kHidden, Scratch::kDhPitch, kUpdateThreads>(
        shared_address(scratch.dh) + first * Scratch::kDhPitch, static_cast<const T*>(s.dh), kHidden, s.batch, tid,
        first);
  const int chunk = tid % 4;
  const auto row = [&](int k) { return tid / 4 + k * kRowsAtOnce; };
  uint4 z2[kPieces] = {};
#pragma unroll
  for (int k = 0; k < kPieces; ++k)
    if (row(k) < s.batch)
      z2[k] = *reinterpret_cast<const uint4*>(static_cast<const T*>(s.pooled_z2) + std::size_t(row(k)) * kFeatures +
                                              column0 + chunk * 8);
  copy_async_commit();
  float* const master = s.parameters + kParameters[kFc1Weight].offset;
  const auto at = [&](int i, int n) {
    return std::size_t(hidden + g + 8 * i) * kFeatures + column0 + column + n * 8 + 2 * t;
  };
  float2 weights[2][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) weights[i / 2][i % 2] = *reinterpret_cast<const float2*>(master + at(i / 2, i % 2));
  float scale[8], shift[8], x[8], to_stored = 1;
  float scale_of_sums = load_a2_operand<P>(s, column0, chunk, scale, shift);
  if constexpr (P::kScaled) scale_of_sums *= s.scales[kDhScale], to_stored = inverse_of(s.scales[kNextFc1Scale]);
  const float rate = *s.learning_rate;
#pragma unroll
  for (int k = 0; k < kPieces; ++k)
    if (row(k) < (s.batch + 15) / 16 * 16) {
      unpack<P>(x, z2[k]);
      *reinterpret_cast<uint4*>(scratch.a2 + row(k) * Scratch::kA2Pitch + chunk * 16) = bn2_relu<P>(x, scale, shift);
    }
  copy_async_wait<0>();
  __syncthreads();  // dh and a2 are complete

  float dw[2][4] = {};
  const std::uint32_t a_at = shared_address(scratch.dh) + ((lane & 7) + (lane >> 4) * 8) * Scratch::kDhPitch +
                             hidden * 2 + (lane >> 3 & 1) * 16;
  const std::uint32_t b_at = shared_address(scratch.a2) + a_lane_offset(lane, Scratch::kA2Pitch) + column * 2;
#pragma unroll 4
  for (int first = 0; first < s.batch; first += 16) {
    std::uint32_t a[4], b[4];
    load_matrix_x4_trans(a, a_at + first * Scratch::kDhPitch);
    load_matrix_x4_trans(b, b_at + first * Scratch::kA2Pitch);
    P::mma(dw[0], a, b[0], b[1]);
    P::mma(dw[1], a, b[2], b[3]);
  }
  float largest = 0;
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float2 d = make_float2(dw[n][2 * i], dw[n][2 * i + 1]);
      if constexpr (P::kScaled) d.x *= scale_of_sums, d.y *= scale_of_sums;
      const auto pair = update_fc1<P>(s, master, at(i, n), [&] { return weights[i][n]; }, d, rate, to_stored, largest);
      *reinterpret_cast<typename P::Pair*>(static_cast<T*>(s.fc1_copy) +
                                           fc1_chunk_at(hidden + g + 8 * i, column0 + column + n * 8 + 2 * t)) = pair;
    }
  if constexpr (P::kScaled) {
    largest = warp_max(largest);
    if (lane == 0) scratch.largest[warp] = largest;
    __syncthreads();  // the warps' maxima are complete
    if (tid < kGradientWarps)
      s.fc1_max()[block * kGradientWarps + tid] = fmaxf(scratch.largest[tid], scratch.largest[tid + kGradientWarps]);
  }
}

// A block of fc1 ends without a wait for conv2_backward, so that others take its place. It may, because the other
// blocks do wait: the next kernel starts when every block has ended or passed its wait.
template <class P>
__global__ void __launch_bounds__(kUpdateThreads) update_with_fc1_kernel(State s, int graph_step) {
  extern __shared__ __align__(16) unsigned char shared[];
  if (const int block = blockIdx.x; block < kFc1Groups)
    update_fc1_columns<P>(s, *reinterpret_cast<Fc1Scratch*>(shared), block);
  else
    update<P, State>(s, *reinterpret_cast<UpdateScratch*>(shared), graph_step, block - kFc1Groups);
}

}  // namespace mnist::fused
