// block_sum: the sum of one value a thread over a block, in an order that never changes.
#pragma once

namespace mnist::kernels::device {

// Returns the sum over the block in thread 0, something else in the others; `shared` has kBlock elements and is free
// again on return. kBlock, a power of two, is the number of threads. All threads call it.
template <int kBlock, class T>
__device__ T block_sum(T value, T* shared) {
  static_assert((kBlock & (kBlock - 1)) == 0);
  const int t = int(threadIdx.x);
  shared[t] = value;
  for (int half = kBlock / 2; half > 0; half /= 2) {
    __syncthreads();  // the upper half is complete before the lower half reads it
    if (t < half) shared[t] += shared[t + half];
  }
  const T sum = shared[t];  // each its own: thread 0 may still be writing shared[0]
  __syncthreads();          // thread 0 has read shared[1] before the next sum overwrites it
  return sum;
}

}  // namespace mnist::kernels::device
