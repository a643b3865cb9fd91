// How naive sums over a batch: chunks of images first, then the chunks in order.
//
// One thread that walks a whole batch would leave most of the GPU idle: conv2's weight gradient has 18,432 elements,
// each a sum over B * 196 products. So a batch is cut into chunks; a block sums one chunk into `partial[chunk]`, and a
// second launch adds the chunks, one thread an output, first to last: privatisation, where each block has sums of its
// own. Both orders are fixed, so the same batch gives the same bits every time; atomicAdd would not.
#pragma once

#include <cstdint>

#include "mnist/ceil_div.h"

namespace mnist::kernels::naive {

inline constexpr std::int64_t kMaxChunks = 64;
inline constexpr std::int64_t kLeastImagesPerChunk = 8;

constexpr std::int64_t chunk_count(std::int64_t batch) {
  const std::int64_t chunks = ceil_div(batch, kLeastImagesPerChunk);
  return chunks < kMaxChunks ? chunks : kMaxChunks;
}

// Chunk k holds the images [chunk_begin(k), chunk_begin(k + 1)): sizes differ by one image at most.
constexpr std::int64_t chunk_begin(std::int64_t k, std::int64_t chunks, std::int64_t batch) {
  return k * batch / chunks;
}

}  // namespace mnist::kernels::naive
