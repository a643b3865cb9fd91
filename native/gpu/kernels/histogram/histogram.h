// The ladder of the histogram: count[v] = how many pixels have the value v; sets.
//
//   shapes   count (256) of int32 <- pixels, uint8; fewer than 2^31 of them, at least 1
//   cost     histogram_cost (profile/cost.h); memory bound, unless the counters are
//   numerics exact, and the same in every run: integers may be added in any order. float32 counters would agree up to
//            2^24, float32 sums would not (batch_norm's `atomics`)
// Four of five pixels of a digit are 0, so one counter gets most of the additions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/variant.h"

namespace mnist::kernels {

inline constexpr int kHistogramBins = 256;

using Histogram = void (*)(int* count, const std::uint8_t* pixels, std::int64_t pixel_count, cudaStream_t stream);
std::span<const Variant<Histogram>> histogram_variants();

// histogram_naive: one addition to global memory per pixel.
//   launch   one thread per pixel; block 256
//   why      the plainest: additions to one address wait for each other, and the whole GPU adds to 256 of them
void histogram_naive(int* count, const std::uint8_t* pixels, std::int64_t pixel_count, cudaStream_t stream);

// histogram_privatised: each block has counters of its own, in shared memory.
//   launch   one thread per 16 pixels; block 256; at the end a thread adds one counter of the block to that of all
//   why      privatisation: the threads of a block only meet each other, and additions to shared memory are faster;
//            coarsening: a thread takes 16 pixels, so that a block has 4096 for its 256 additions to global memory
void histogram_privatised(int* count, const std::uint8_t* pixels, std::int64_t pixel_count, cudaStream_t stream);

// histogram_voted: privatised, and the background is counted by votes.
//   launch   as privatised
//   why      the lanes of a warp that see a 0 would wait for each other at one counter; a vote counts them by one
//            instruction, and one lane adds the sum at the end
void histogram_voted(int* count, const std::uint8_t* pixels, std::int64_t pixel_count, cudaStream_t stream);

// histogram_cluster: privatised, and the blocks of a cluster add up their counters before they go to global memory.
//   launch   clusters of 8 blocks; a thread as privatised; then each block sums 32 of the counters over the cluster
//   needs    compute capability 9.0
//   why      distributed shared memory: a block reads the counters of the other seven where they are. An eighth of the
//            additions to global memory, for two barriers of the cluster
void histogram_cluster(int* count, const std::uint8_t* pixels, std::int64_t pixel_count, cudaStream_t stream);

}  // namespace mnist::kernels
