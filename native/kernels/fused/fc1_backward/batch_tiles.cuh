// What the two roles of fc1_backward share: tiles of the batch in shared memory, their copies and their barriers.
#pragma once

#include <cstddef>

#include "kernels/device/barriers.cuh"
#include "kernels/device/copies.cuh"
#include "kernels/fused/shared/blocks.h"
#include "kernels/fused/shared/policy.cuh"
#include "kernels/fused/state.h"

namespace mnist::fused {

// Tile n is in stage n % kStages, and its copies start kStages - 1 tiles ahead: 3 stages take 145 KiB of shared memory,
// 2 of them 99.
template <class Policy, int kStageCount>
struct Fc1BackwardShared {
  using P = Policy;
  static constexpr int kSize = sizeof(typename P::T);
  static constexpr int kRows = kSize == 2 ? 128 : 64;  // of the batch in a tile
  static constexpr int kStages = kStageCount, kAhead = kStages - 1;
  static constexpr int kDhPitch = kHidden * kSize + 16;  // 128 values of a sample
  static constexpr int kCellPitch = 32 * kSize + 16;     // 32 values of a sample
  static constexpr int kDhBytes = kRows * kDhPitch, kCellBytes = kRows * kCellPitch;
  struct Memory {
    unsigned char dh[kStages][kDhBytes];
    unsigned char pooled_z2[kStages][kCellBytes];
    unsigned char a2[kCellBytes];
  };
  static constexpr int kDh = offsetof(Memory, dh), kPooledZ2 = offsetof(Memory, pooled_z2), kA2 = offsetof(Memory, a2);
  static constexpr int kBytes = sizeof(Memory);

  static constexpr int kMasterPitch = 32 * 4 + 32;  // 32 floats of a hidden unit, when a stage of dh holds the weights
  static_assert(kHidden * kMasterPitch <= kDhBytes);

  static __device__ __forceinline__ int dh(int n) { return kDh + n % kStages * kDhBytes; }
  static __device__ __forceinline__ int pooled_z2(int n) { return kPooledZ2 + n % kStages * kCellBytes; }
};

// fc1_backward's barriers: DgradOnly and WgradOnly are of one role, at the others one role waits and the other only
// arrives. A tile begins when both roles are at it: dgrad waits for wgrad at TileArrived, then releases it at
// TileReleased. As a role comes to the next tile's first barrier through this tile's second one, neither gets a
// phase ahead.
using TileArrived = NamedBarrier<0, kConvThreads>;
using A2Ready = NamedBarrier<1, kConvThreads>;
using DgradOnly = NamedBarrier<2, kRoleThreads>;
using WgradOnly = NamedBarrier<3, kRoleThreads>;
using TileReleased = NamedBarrier<4, kConvThreads>;

// A permutation of every 8 rows. Rows of pooled_z2 and a2 four apart lie in opposite halves of the banks, so this order
// makes a 16-byte access conflict-free when every four lanes share a row.
__device__ __forceinline__ int spread_row(int i) { return (i & ~7) | (i & 1) << 2 | (i >> 1 & 3); }

// Starts copying kRows rows of kColumns values, `stride` apart in `from`, by kThreadCount threads of which this is
// number `thread`. Rows from `count` on are beyond the batch and become zeros (their source is not read).
template <int kRows, int kColumns, int kPitch, int kThreadCount, class T>
__device__ __forceinline__ void fetch_rows(std::uint32_t to, const T* from, int stride, int count, int thread) {
  constexpr int kRowChunks = kColumns * int(sizeof(T)) / 16, kRowsAtOnce = kThreadCount / kRowChunks;
  const int chunk = thread % kRowChunks, row0 = thread / kRowChunks;
  from += std::size_t(row0) * stride + chunk * (16 / int(sizeof(T)));
#pragma unroll
  for (int row = 0; row < kRows; row += kRowsAtOnce)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + (row0 + row) * kPitch + chunk * 16),
                 "l"(from + std::size_t(row) * stride), "r"(row0 + row < count ? 16 : 0)
                 : "memory");
}

// dh of tile n, by the whole block; head wrote it. A group of copies even where there is no such tile: the waits
// count.
template <class Shared>
__device__ __forceinline__ void fetch_dh(const State& s, std::uint32_t base, int n) {
  using P = typename Shared::P;
  const int first = n * Shared::kRows;
  if (first < s.batch)
    fetch_rows<Shared::kRows, kHidden, Shared::kDhPitch, kConvThreads>(
        base + Shared::dh(n), static_cast<const typename P::T*>(s.dh) + std::size_t(first) * kHidden, kHidden,
        s.batch - first, threadIdx.x);
  copy_async_commit();
}

}  // namespace mnist::fused
