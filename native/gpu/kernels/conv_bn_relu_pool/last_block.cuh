// last_block: the block of a grid that ends last, to which the results of all others are visible.
#pragma once

namespace mnist::kernels {

// Called once by all threads of all blocks after they wrote their results: true in the block that calls it last, which
// may read what the others wrote. Its sums have a fixed order, whichever block it is. *finished is 0 before the launch
// and again after it.
__device__ inline bool is_last_block(unsigned* finished) {
  __shared__ bool last;
  const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
  __threadfence();  // what this thread wrote is visible to the whole GPU before the block is counted
  __syncthreads();  // all threads of the block are here
  if (threadIdx.x == 0 && threadIdx.y == 0) last = atomicInc(finished, blocks - 1) == blocks - 1;
  __syncthreads();  // the answer is there
  __threadfence();  // nothing is read before it
  return last;
}

}  // namespace mnist::kernels
