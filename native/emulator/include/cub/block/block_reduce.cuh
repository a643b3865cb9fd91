// Stands in for CUB's BlockReduce, whose own code is inline PTX: sums of warps by shuffles, then the warps first to
// last, as CUB's default does it; of one-dimensional blocks.
#pragma once

#include <cuda_runtime.h>

namespace cub {

template <class T, int kThreads>
class BlockReduce {
  static constexpr int kWarps = (kThreads + 31) / 32;

 public:
  struct TempStorage {
    T of_warp[kWarps];
  };
  explicit BlockReduce(TempStorage& storage) : storage_(storage) {}

  // The sum in thread 0.
  T Sum(T value) {
    const int lane = int(::emulator::threadIdx_x()) % 32, warp = int(::emulator::threadIdx_x()) / 32;
    for (int step = 1; step < 32; step *= 2) {
      const T other = __shfl_down_sync(0xffffffff, value, step);
      if (lane + step < 32) value += other;
    }
    if (lane == 0) storage_.of_warp[warp] = value;
    __syncthreads();  // the sums of all warps are there
    if (::emulator::threadIdx_x() == 0)
      for (int k = 1; k < kWarps; ++k) value += storage_.of_warp[k];
    return value;
  }

 private:
  TempStorage& storage_;
};

}  // namespace cub
