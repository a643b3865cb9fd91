// B1: fc1 backward. g2 = relu mask of (dh fc1), its channel sums for bn2, and fc1.weight -= lr * dh^T a2, in place.
//
// A block owns 32 columns of fc1.weight: half of the channels of one pooled cell. It alone reads or writes them in
// this phase, so the update needs no second pass. The batch is walked in chunks of kRows samples, fetched two chunks
// ahead. The two products of a chunk are made at the same time, each by half of the warps (dgrad: dh times the
// weights; wgrad: dh^T times a2), so that one half's matrix products cover the other's loads and arithmetic.
#pragma once

#include "kernels/fused/forward2.cuh"
#include "kernels/fused/parts.cuh"

namespace mnist::fused {

template <class P>
struct Backward1Shared {
  static constexpr int kSize = sizeof(typename P::T);
  static constexpr int kRows = kSize == 2 ? 128 : 64;    // of the batch in a chunk
  static constexpr int kStages = 3;                      // chunk n is in stage n % kStages
  static constexpr int kDhPitch = kHidden * kSize + 16;  // 128 values of a sample
  static constexpr int kCellPitch = 32 * kSize + 16;     // 32 values of a sample
  static constexpr int kDhBytes = kRows * kDhPitch, kCellBytes = kRows * kCellPitch;
  static constexpr int kDh = 0;
  static constexpr int kE2 = kDh + kStages * kDhBytes;
  static constexpr int kA2 = kE2 + kStages * kCellBytes;
  static constexpr int kBytes = kA2 + kCellBytes;

  static constexpr int kMasterPitch = 32 * 4 + 32;  // 32 floats of a hidden unit, when a stage of dh holds the weights
  static_assert(kHidden * kMasterPitch <= kDhBytes);

  static __device__ __forceinline__ int dh(int n) { return kDh + n % kStages * kDhBytes; }
  static __device__ __forceinline__ int e2(int n) { return kE2 + n % kStages * kCellBytes; }
};

// B1's barriers: kDgradOnly and kWgradOnly are of one role, at the others one role waits and the other only arrives.
// A chunk begins when both roles are at it: dgrad waits for wgrad at kArrived, then releases it at kReleased. As a role
// comes to the next chunk's first barrier through this chunk's second one, neither gets a phase ahead.
inline constexpr int kArrived = 0, kA2Formed = 1, kDgradOnly = 2, kWgradOnly = 3, kReleased = 4;

// A permutation of every 8 rows. Rows of e2 and a2 four apart lie in opposite halves of the banks, so this order makes
// a 16-byte access conflict-free when every four lanes share a row.
__device__ __forceinline__ int spread_row(int i) { return (i & ~7) | (i & 1) << 2 | (i >> 1 & 3); }

// 16 bytes of shared or device memory as kChunk values, and back.
template <class P>
__device__ __forceinline__ void unpack(float (&x)[kChunk<P>], uint4 packed) {
  const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if constexpr (sizeof(typename P::T) == 2) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    } else {
      x[i] = __uint_as_float(words[i]);
    }
}
template <class P>
__device__ __forceinline__ uint4 pack(const float (&x)[kChunk<P>]) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if constexpr (sizeof(typename P::T) == 2) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
      words[i] = reinterpret_cast<const std::uint32_t&>(pair);
    } else {
      words[i] = __float_as_uint(P::store(x[i]));
    }
  return make_uint4(words[0], words[1], words[2], words[3]);
}
// The values of x whose fellow in a is positive, 0 for the others: relu's gradient.
template <class P>
__device__ __forceinline__ uint4 where_positive(uint4 a, uint4 x) {
  const auto keep = [](std::uint32_t of, std::uint32_t word) -> std::uint32_t {
    if constexpr (sizeof(typename P::T) == 2) {
      const std::uint32_t zero = 0;
      return word &
             __hgt2_mask(reinterpret_cast<const __nv_bfloat162&>(of), reinterpret_cast<const __nv_bfloat162&>(zero));
    } else {
      return __uint_as_float(of) > 0.f ? word : 0;
    }
  };
  return make_uint4(keep(a.x, x.x), keep(a.y, x.y), keep(a.z, x.z), keep(a.w, x.w));
}

// Starts copying kRows rows of kColumns values, `stride` apart in `from`, by kThreadCount threads of which this is
// number `thread`. Rows from `count` on are beyond the batch and become zeros (their source is not read).
template <int kRows, int kColumns, int kPitch, int kThreadCount, class T>
__device__ __forceinline__ void fetch_rows(std::uint32_t to, const T* from, int stride, int count, int thread) {
  constexpr int kParts = kColumns * int(sizeof(T)) / 16, kRowsAtOnce = kThreadCount / kParts;
  const int part = thread % kParts, row0 = thread / kParts;
  from += std::size_t(row0) * stride + part * (16 / int(sizeof(T)));
#pragma unroll
  for (int row = 0; row < kRows; row += kRowsAtOnce)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + (row0 + row) * kPitch + part * 16),
                 "l"(from + std::size_t(row) * stride), "r"(row0 + row < count ? 16 : 0)
                 : "memory");
}

// dh of chunk n, by the whole block; H wrote it. A group of copies even where there is no such chunk: the waits count.
template <class P>
__device__ __forceinline__ void fetch_dh(const State& s, std::uint32_t base, int n) {
  using Shared = Backward1Shared<P>;
  const int first = n * Shared::kRows;
  if (first < s.batch)
    fetch_rows<Shared::kRows, kHidden, Shared::kDhPitch, kConvThreads>(
        base + Shared::dh(n), static_cast<const typename P::T*>(s.dh) + std::size_t(first) * kHidden, kHidden,
        s.batch - first, threadIdx.x);
  copy_async_commit();
}

// g2 and its channel sums. A warp makes 16 samples by 8 * kGroups columns. Its share of the weights stays in registers,
// so that a product needs one load, of dh.
//
// Column c of the product's group j is column c * kGroups + j of the warp. A lane's B operands are then neighbours in
// fc1's rows, and its results are 16 bytes of two samples: columns t * kChunk .. of rows g and g + 8.
template <class P>
__device__ __forceinline__ void backward1_dgrad(const State& s, unsigned char* shared, int column0) {
  using T = typename P::T;
  using Shared = Backward1Shared<P>;
  constexpr int kRows = Shared::kRows, kSteps = kHidden / kStep<P>;
  constexpr int kTiles = kRows / 16, kGroups = kTiles / 2, kValues = kChunk<P>;
  static_assert(kValues == 2 * kGroups && kGroups * sizeof(T) == sizeof(uint2));
  __shared__ float warp_sums[kTiles][2][32];
  __shared__ float inv_sigma[32];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int tile = warp % kTiles, column = warp / kTiles * 8 * kGroups, my_column = column + t * kValues;
  const float* bn2 = s.bn2 + column0 % 64;
  const std::uint32_t base = shared_address(shared);

  std::uint32_t weights[kSteps][kGroups][2];
  {
    const T* from = static_cast<const T*>(s.fc1) + column0 + column + g * kGroups;
    const auto load = [&](int hidden) {
      return *reinterpret_cast<const uint2*>(from + std::size_t(hidden) * kFeatures);
    };
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int k = 0; k < 2; ++k)
        if constexpr (Shared::kSize == 2) {
          const uint2 even = load(step * 16 + k * 8 + 2 * t), odd = load(step * 16 + k * 8 + 2 * t + 1);
          weights[step][0][k] = __byte_perm(even.x, odd.x, 0x5410);
          weights[step][1][k] = __byte_perm(even.x, odd.x, 0x7632);
          weights[step][2][k] = __byte_perm(even.y, odd.y, 0x5410);
          weights[step][3][k] = __byte_perm(even.y, odd.y, 0x7632);
        } else {
          const uint2 pair = load(step * 8 + k * 4 + t);
          weights[step][0][k] = pair.x;
          weights[step][1][k] = pair.y;
        }
  }
  float mean[kValues], sum[kValues] = {}, sum_xhat[kValues] = {}, largest = 0;
#pragma unroll
  for (int v = 0; v < kValues; ++v) mean[v] = bn2[128 + my_column + v];
  if (tid < 32) inv_sigma[tid] = bn2[192 + tid];
  wait_for_predecessor();  // H: dh
  fetch_dh<P>(s, base, 0);
  fetch_dh<P>(s, base, 1);

  const int row = tile * 16 + spread_row(g);  // of the chunk, and row + 8
  const int a_row = tile * 16 + spread_row(lane & 7) + (lane >> 3 & 1) * 8;
  const std::uint32_t a_at = base + a_row * Shared::kDhPitch + (lane >> 4) * 16;
  const int cell_at = row * Shared::kCellPitch + my_column * Shared::kSize;
  for (int chunk = 0, first = 0; first < s.batch; ++chunk, first += kRows) {
    copy_async_wait<1>();
    barrier_sync<kConvThreads>(kArrived);  // this chunk has arrived, and the last one's readers are done
    barrier_arrive<kConvThreads>(kReleased);
    fetch_dh<P>(s, base, chunk + 2);

    const bool has_samples = first + tile * 16 < s.batch;
    float acc[kGroups][4] = {}, drained[kGroups][4] = {};
    if (has_samples) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t a[4];
        load_matrix_x4(a, a_at + Shared::dh(chunk) + step * 32);
#pragma unroll
        for (int j = 0; j < kGroups; ++j) P::mma(acc[j], a, weights[step][j][0], weights[step][j][1]);
        if (P::kDrainAccumulators && step % 4 == 3)
#pragma unroll
          for (int i = 0; i < 4 * kGroups; ++i) {
            drained[i >> 2][i & 3] += acc[i >> 2][i & 3];
            acc[i >> 2][i & 3] = 0.f;
          }
      }
    }
    barrier_sync<kConvThreads>(kA2Formed);  // a2
    if (has_samples) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = cell_at + half * 8 * Shared::kCellPitch;
        const auto cells = [&](int offset) { return *reinterpret_cast<const uint4*>(shared + offset + at); };
        float x[kValues], e[kValues];
#pragma unroll
        for (int v = 0; v < kValues; ++v)
          x[v] = (P::kDrainAccumulators ? drained : acc)[v % kGroups][2 * half + v / kGroups];
        const uint4 g2 = where_positive<P>(cells(Shared::kA2), pack<P>(x));
        const int sample = first + row + half * 8;
        if (sample < s.batch)
          __stwb(
              reinterpret_cast<uint4*>(static_cast<T*>(s.g2) + std::size_t(sample) * kFeatures + column0 + my_column),
              g2);
        unpack<P>(x, g2);
        unpack<P>(e, cells(Shared::e2(chunk)));
#pragma unroll
        for (int v = 0; v < kValues; ++v) {
          sum[v] += x[v];
          sum_xhat[v] = fmaf(x[v], e[v] - mean[v], sum_xhat[v]);
          if constexpr (P::kParts > 0) largest = fmaxf(largest, fabsf(x[v]));
        }
      }
    }
  }

#pragma unroll
  for (int v = 0; v < kValues; ++v) {
#pragma unroll
    for (int mask = 4; mask < 32; mask <<= 1) {
      sum[v] += __shfl_xor_sync(0xffffffffu, sum[v], mask);
      sum_xhat[v] += __shfl_xor_sync(0xffffffffu, sum_xhat[v], mask);
    }
    if (g == 0) {
      warp_sums[tile][0][my_column + v] = sum[v];
      warp_sums[tile][1][my_column + v] = sum_xhat[v];
    }
  }
  if constexpr (P::kParts > 0) {
    static_assert(kGradientWarps == kRoleThreads / 32);
    largest = warp_max(largest);
    if (lane == 0) s.g2_max[blockIdx.x * kGradientWarps + warp] = largest;
  }
  barrier_sync<kRoleThreads>(kDgradOnly);
  if (tid < 64) {
    const int which = tid >> 5;
    float total = 0;
#pragma unroll
    for (int k = 0; k < kTiles; ++k) total += warp_sums[k][which][lane];
    s.g2_sums[which * kFeatures + column0 + lane] = which == 0 ? total : total * inv_sigma[lane];
  }
}

// a2 = relu(bn2(e2)) and fc1.weight's gradient and update. A warp makes 32 hidden units by all 32 columns over every
// other k-step; the two warps of the same hidden units add up at the end, and each updates 16 of the 32.
template <class P>
__device__ __forceinline__ void backward1_wgrad(const State& s, unsigned char* shared, int column0) {
  using T = typename P::T;
  using Shared = Backward1Shared<P>;
  constexpr int kRows = Shared::kRows, kParts = 32 * Shared::kSize / 16, kRowsAtOnce = kRoleThreads / kParts;
  constexpr int kSteps = kRows / kStep<P>, kUnroll = P::kDrainAccumulators ? 1 : kSteps / 2;  // as registers allow
  const int tid = threadIdx.x - kRoleThreads, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int hidden = warp % 4 * 32, parity = warp / 4;
  const std::uint32_t base = shared_address(shared);
  const int chunks = (s.batch + kRows - 1) / kRows;
  float* const master = s.parameters + kParameters[kFc1Weight].offset;

  // What does not depend on H. After the last chunk come the weights that the end will update.
  const auto fetch_rest = [&](int n) {
    const int first = n * kRows;
    if (n < chunks)
      fetch_rows<kRows, 32, Shared::kCellPitch, kRoleThreads>(
          base + Shared::e2(n), static_cast<const T*>(s.e2) + std::size_t(first) * kFeatures + column0, kFeatures,
          s.batch - first, tid);
    else if (n == chunks)
      fetch_rows<kHidden, 32, Shared::kMasterPitch, kRoleThreads>(base + Shared::dh(n), master + column0, kFeatures,
                                                                  kHidden, tid);
  };
  fetch_rest(0);
  fetch_rest(1);
  const int part = tid % kParts;
  float scale[kChunk<P>], shift[kChunk<P>];
#pragma unroll
  for (int i = 0; i < kChunk<P>; ++i) {
    scale[i] = s.bn2[column0 % 64 + part * kChunk<P> + i];
    shift[i] = s.bn2[64 + column0 % 64 + part * kChunk<P> + i];
  }
  const float learning_rate = *s.learning_rate;
  wait_for_predecessor();  // H: dh
  fetch_dh<P>(s, base, 0);
  fetch_dh<P>(s, base, 1);

  float dw[2][4][4] = {};
  for (int chunk = 0; chunk < chunks; ++chunk) {
    copy_async_wait<1>();
    barrier_arrive<kConvThreads>(kArrived);
    barrier_sync<kConvThreads>(kReleased);  // this chunk has arrived, and the last one's readers are done
    fetch_rest(chunk + 2);
    fetch_dh<P>(s, base, chunk + 2);
#pragma unroll
    for (int k = 0; k < kRows / kRowsAtOnce; ++k) {
      const int at = spread_row(tid / kParts + k * kRowsAtOnce) * Shared::kCellPitch + part * 16;
      float x[kChunk<P>];
      unpack<P>(x, *reinterpret_cast<const uint4*>(shared + Shared::e2(chunk) + at));
#pragma unroll
      for (int i = 0; i < kChunk<P>; ++i) x[i] = relu_keep_nan(fmaf(scale[i], x[i], shift[i]));
      *reinterpret_cast<uint4*>(shared + Shared::kA2 + at) = pack<P>(x);
    }
    barrier_arrive<kConvThreads>(kA2Formed);
    barrier_sync<kRoleThreads>(kWgradOnly);

    const int steps = min((s.batch - chunk * kRows + kStep<P> - 1) / kStep<P>, kSteps);  // that have a sample
    float sums[2][4][4] = {};
    const auto multiply = [&](int step) {
      if constexpr (Shared::kSize == 2) {
        std::uint32_t a[2][4], b[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m)
          load_matrix_x4_trans(a[m], base + Shared::dh(chunk) +
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
            a[m][i] = load_shared_32(base + Shared::dh(chunk) + (step * 8 + 2 * t + i / 2) * Shared::kDhPitch +
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
#pragma unroll
    for (int i = 0; i < 32; ++i) dw[i >> 4][i >> 2 & 3][i & 3] += sums[i >> 4][i >> 2 & 3][i & 3];
  }

  // dw[0] becomes the 16 units that this warp updates, dw[1] its fellow's.
  if (parity == 1)
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float other = dw[0][i >> 2][i & 3];
      dw[0][i >> 2][i & 3] = dw[1][i >> 2][i & 3];
      dw[1][i >> 2][i & 3] = other;
    }
  // The stage after the weights' is free: its chunk, if there was one, came before the last.
  auto* halves = reinterpret_cast<float4*>(shared + Shared::dh(chunks + 1)) + lane;
#pragma unroll
  for (int n = 0; n < 4; ++n)
    halves[(warp * 4 + n) * 32] = make_float4(dw[1][n][0], dw[1][n][1], dw[1][n][2], dw[1][n][3]);
  copy_async_wait<0>();
  barrier_sync<kRoleThreads>(kWgradOnly);
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float4 other = halves[((warp ^ 4) * 4 + n) * 32];
    const float2 d[2] = {make_float2(dw[0][n][0] + other.x, dw[0][n][1] + other.y),
                         make_float2(dw[0][n][2] + other.z, dw[0][n][3] + other.w)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int unit = hidden + parity * 16 + g + i * 8, column = n * 8 + 2 * t;
      const std::size_t at = std::size_t(unit) * kFeatures + column0 + column;
      if (s.gradients) *reinterpret_cast<float2*>(s.gradients + kParameters[kFc1Weight].offset + at) = d[i];
      float2 value =
          *reinterpret_cast<const float2*>(shared + Shared::dh(chunks) + unit * Shared::kMasterPitch + column * 4);
      value.x -= learning_rate * d[i].x;
      value.y -= learning_rate * d[i].y;
      *reinterpret_cast<float2*>(master + at) = value;
      auto* stored = static_cast<T*>(s.fc1) + at;
      if constexpr (Shared::kSize == 2)
        *reinterpret_cast<__nv_bfloat162*>(stored) = __floats2bfloat162_rn(value.x, value.y);
      else
        *reinterpret_cast<float2*>(stored) = P::unpack(P::pack(value.x, value.y));
    }
  }
}

template <class P>
__global__ void __launch_bounds__(kConvThreads) backward1_kernel(State s) {
  extern __shared__ __align__(128) unsigned char shared[];
  if (threadIdx.x < kRoleThreads)
    backward1_dgrad<P>(s, shared, blockIdx.x * 32);
  else
    backward1_wgrad<P>(s, shared, blockIdx.x * 32);
}

}  // namespace mnist::fused
