// Cooperative groups: the thread block, tiles of a warp, and the lanes that are together now.
#pragma once

#include "cuda_runtime.h"

namespace cooperative_groups {

struct thread_block {
  static void sync() { __syncthreads(); }
  static unsigned thread_rank() {
    return (::emulator::threadIdx_z() * ::emulator::blockDim_y() + ::emulator::threadIdx_y()) *
               ::emulator::blockDim_x() +
           ::emulator::threadIdx_x();
  }
  static unsigned size() { return ::emulator::blockDim_x() * ::emulator::blockDim_y() * ::emulator::blockDim_z(); }
  static unsigned num_threads() { return size(); }
  static uint3 group_index() { return ::emulator::block_index(); }
  static uint3 thread_index() { return ::emulator::thread_index(); }
};
inline thread_block this_thread_block() { return {}; }
EMULATOR_INLINE void sync(const thread_block&) { __syncthreads(); }

// Lanes of one warp, `mask` of them; `rank` counts within it.
class lanes {
 public:
  explicit lanes(unsigned mask) : mask_(mask) {}
  unsigned size() const { return unsigned(__popc(mask_)); }
  unsigned num_threads() const { return size(); }
  unsigned thread_rank() const { return unsigned(__popc(mask_ & ((1u << ::emulator::lane()) - 1))); }
  EMULATOR_INLINE void sync() const { __syncwarp(mask_); }
  EMULATOR_INLINE bool any(int p) const { return __any_sync(mask_, p); }
  EMULATOR_INLINE bool all(int p) const { return __all_sync(mask_, p); }
  template <class T>
  EMULATOR_INLINE T shfl(T value, unsigned from) const {
    return __shfl_sync(mask_, value, lane_of(from));
  }
  template <class T>
  EMULATOR_INLINE T shfl_down(T value, unsigned by) const {
    const unsigned from = thread_rank() + by;
    return __shfl_sync(mask_, value, from < size() ? lane_of(from) : ::emulator::lane());
  }
  template <class T>
  EMULATOR_INLINE T shfl_xor(T value, unsigned with) const {
    const unsigned from = thread_rank() ^ with;
    return __shfl_sync(mask_, value, from < size() ? lane_of(from) : ::emulator::lane());
  }
  unsigned ballot(int p) const {
    const unsigned all = __ballot_sync(mask_, p);
    unsigned by_rank = 0;
    for (unsigned k = 0; k < size(); ++k) by_rank |= (all >> lane_of(k) & 1) << k;
    return by_rank;
  }

 protected:
  int lane_of(unsigned rank) const {
    for (int lane = 0; lane < 32; ++lane)
      if (mask_ >> lane & 1 && rank-- == 0) return lane;
    return 0;
  }
  unsigned mask_;
};

using coalesced_group = lanes;
EMULATOR_INLINE coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

template <unsigned kSize>
struct thread_block_tile : lanes {
  static_assert(kSize <= 32 && (kSize & (kSize - 1)) == 0);
  thread_block_tile()
      : lanes((kSize == 32 ? ~0u : (1u << kSize) - 1) << (unsigned(::emulator::lane()) / kSize * kSize)) {}
  unsigned meta_group_rank() const { return thread_block::thread_rank() / kSize; }
  unsigned meta_group_size() const { return (thread_block::size() + kSize - 1) / kSize; }
};
template <unsigned kSize>
thread_block_tile<kSize> tiled_partition(const thread_block&) {
  return {};
}

}  // namespace cooperative_groups
