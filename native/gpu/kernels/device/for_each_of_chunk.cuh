// for_each_of_chunk: which numbers of a (B,C,A) tensor a block of a batch-norm reduction goes through.
#pragma once

#include <cstdint>

#include "kernels/chunks.h"

namespace mnist::kernels::device {

// Calls visit(k) for every element k of channel blockIdx.x in the images of chunk blockIdx.y, each by one of the
// block's kBlock threads; gridDim = (channels, chunks).
template <int kBlock, class Visit>
__device__ void for_each_of_chunk(std::int64_t batch, int area, Visit visit) {
  const int channels = int(gridDim.x), c = int(blockIdx.x);
  const std::int64_t end = naive::chunk_begin(blockIdx.y + 1, gridDim.y, batch);
  for (std::int64_t b = naive::chunk_begin(blockIdx.y, gridDim.y, batch); b < end; ++b)
    for (int position = int(threadIdx.x); position < area; position += kBlock)
      visit((b * channels + c) * area + position);
}

}  // namespace mnist::kernels::device
