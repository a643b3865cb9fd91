// How the blocks of update share out the sums, and how a block adds up its share in a fixed order.
#pragma once

#include "kernels/device/loads.cuh"
#include "kernels/fused/state.h"

namespace mnist::fused {

inline constexpr int kUpdateThreads = 512;
inline constexpr int kUpdateGroups = kUpdateThreads / 64;
inline constexpr int kConv1Share = kConv1Channels / kConv1Blocks;  // channels of a block, a warp each
inline constexpr int kRoutedTapGroups = kUpdateThreads / (kConv1Share * kRoutedTapColumns / 4);
// A block adds up 48 float4 columns: then 96 blocks, nearly as many as there are multiprocessors, read conv2_backward's
// sums.
inline constexpr int kConv2Columns = 48, kConv2Groups = kUpdateThreads / kConv2Columns;
inline constexpr int kConv2Blocks = kConv2Values / (4 * kConv2Columns);
// Loads in flight of a thread, in rows that other phases' blocks left; and how many blocks a multiprocessor has to
// hold.
struct UpdateLoads {
  int conv2, conv1, head, resident_blocks;
};
// conv2's groups cover a block an SM in one round; head's sums are few, or complete long before they are needed.
// (nvcc 12.4 cannot compile designated initializers here.)
template <class Models>
inline constexpr UpdateLoads kUpdateLoads = {14, 9, 6, 1};
// Each of several models leaves few rows, and has all the blocks that a single one has.
template <>
inline constexpr UpdateLoads kUpdateLoads<Pack> = {2, 2, 2, 2};
inline constexpr int kHeadBlocks = (kHeadValues / 4 + 63) / 64;
inline constexpr int kUpdateBlocks = kConv1Blocks + kHeadBlocks + kConv2Blocks;

// Sum over `blocks` rows of `width` values at `from`, for the four columns of float4 column4; this thread takes rows
// group, group + kGroups, ...
template <int kGroups, int kLoads>
__device__ __forceinline__ float4 sum_rows(const float* from, int blocks, int width, int column4, int group) {
  float4 total = {};
  for_rows<kGroups, kLoads>(
      blocks, group, [&](int b) { return reinterpret_cast<const float4*>(from + std::size_t(b) * width)[column4]; },
      [&](float4 x, int) { total.x += x.x, total.y += x.y, total.z += x.z, total.w += x.w; });
  return total;
}

// Value i of the float4 columns, over all groups in their order.
template <int kGroups, int kColumns>
__device__ __forceinline__ float sum_groups(const float4 (&partial)[kGroups][kColumns], int i) {
  float total = 0;
#pragma unroll
  for (int k = 0; k < kGroups; ++k) total += reinterpret_cast<const float*>(partial[k])[i];
  return total;
}

}  // namespace mnist::fused
