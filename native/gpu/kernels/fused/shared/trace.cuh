// Trace points: when and where each block of a step passed a line of a kernel. Compiled in by the option MNIST_TRACE,
// for scripts/check trace; nothing is left of them without it.
//
// In every phase point 0 is the kernel's entry and 1 the end of the wait for its predecessor; 7 is the end of the first
// role and 8 of the second. Those from 16 on are of single items, far enough into the batch that the ring turns
// steadily.
#pragma once

#include "kernels/fused/state.h"

namespace mnist::fused {

// `when` holds for one thread of a block at a time.
__device__ __forceinline__ void trace([[maybe_unused]] const State& s, [[maybe_unused]] Phase phase,
                                      [[maybe_unused]] int point, [[maybe_unused]] bool when) {
#ifdef MNIST_TRACE
  if (!when || s.trace == nullptr || blockIdx.x >= kTraceBlocks) return;
  unsigned long long time, clock, multiprocessor;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock)::"memory");
  asm volatile("{ .reg .u32 id; mov.u32 id, %%smid; cvt.u64.u32 %0, id; }" : "=l"(multiprocessor));
  s.trace[(int(phase) * kTracePoints + point) * kTraceBlocks + blockIdx.x] =
      make_ulonglong2(time, (clock & ((1ull << kClockBits) - 1)) | multiprocessor << kClockBits);
#endif
}

// The points of a role within an item, for items `from` to `to` of those that the block works on: `points` each, the
// first one's from `first` on.
struct TracedItems {
  int first, points, from, to;
};
struct TracedItem {
  const State& s;
  Phase phase;
  int first;
  bool when;

  __device__ __forceinline__ TracedItem(const State& state, Phase of, const TracedItems& items, int nth, bool thread)
      : s(state),
        phase(of),
        first(items.first + (nth - items.from) * items.points),
        when(thread && nth >= items.from && nth < items.to) {}
  __device__ __forceinline__ void operator()(int point) const { trace(s, phase, first + point, when); }
};

}  // namespace mnist::fused
