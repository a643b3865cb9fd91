// How blocks are divided into threads, and how 14x14 images with channels lie in shared memory for mma.sync.
#pragma once

#include "kernels/device/copies.cuh"
#include "kernels/fused/shared/numbers.cuh"

namespace mnist::fused {

// ---- Blocks ---------------------------------------------------------------------------------------------------------

inline constexpr int kConvThreads = 512;  // conv_forward, fc1_backward and conv2_backward
inline constexpr int kConvWarps = kConvThreads / 32;
inline constexpr int kRoleThreads = kConvThreads / 2;  // where two halves of a block do different things
inline constexpr int kGroupThreads = 128;              // of a warpgroup
inline constexpr int kThreads = 256;                   // fc1_forward and head

// ---- Images ---------------------------------------------------------------------------------------------------------

// An image is [16 rows][2 planes][8 slots][channels]: padded column x' = x + 1 lies in plane x' & 1, slot x' >> 1.
//
//   padded column   0   1   2   3  ...  14  15
//   plane           0   1   0   1  ...   0   1
//   slot            0   0   1   1  ...   7   7
//
// Columns 0 and 15, slot 0 of plane 0 and slot 7 of plane 1, are padding. Cells of one plane are two pixels apart in
// every direction that matters, which makes each tap a constant shift and keeps shared memory free of bank conflicts.
inline constexpr int kSlots = 16;  // of an image row
inline constexpr int kPaddedRows = 16;
inline constexpr int kSlotsOfImage = kPaddedRows * kSlots;

template <class P, int C>
inline constexpr int kSlotPitch = C * int(sizeof(typename P::T)) + 16;  // odd multiple of 16: no bank conflicts
template <class P, int C>
inline constexpr int kFilterPitch = kTaps * C * int(sizeof(typename P::T)) + 16;

// Where a channel lies in a pixel of these operands, or in a tap of a filter, in bytes. In fp32 each 32 channels are 64
// bytes of big terms and 64 of small ones, in the place of their floats.
inline constexpr int kTermBytes = 64;  // from a term to the next
template <class P>
__device__ __forceinline__ constexpr int operand_at(int channel) {
  return kTerms<P> == 1 ? 2 * channel : channel / 32 * 2 * kTermBytes + channel % 32 * 2;
}

__device__ __forceinline__ constexpr int slot_of(int padded_x) { return (padded_x & 1) * 8 + (padded_x >> 1); }

// Slot that group 0 or 1 of the outputs reads at its slot 0 for column tap v.
//   forward: groups are the two columns of the pooling windows, x' = 2j + 1 and 2j + 2; input x' + v - 1
//   aligned: groups are the planes themselves, x' = 2j and 2j + 1; input x' + v - 1
struct ForwardShift {
  static __device__ constexpr int at(int group, int v) {
    return group == 0 ? (v == 0 ? 0 : v == 1 ? 8 : 1) : (v == 0 ? 8 : v == 1 ? 1 : 9);
  }
};
struct AlignedShift {
  static __device__ constexpr int at(int group, int v) {
    return group == 0 ? (v == 0 ? 7 : v == 1 ? 0 : 8) : (v == 0 ? 0 : v == 1 ? 8 : 1);
  }
};

// Visits the 16-byte chunks of kRows image rows, by kThreads threads: calls visit(row, x, chunk). A thread has one
// column and chunk, so that its addresses are a constant apart.
template <int kThreads, int kChunks, int kRows, class Visit>
__device__ __forceinline__ void for_chunks(int tid, Visit visit) {
  constexpr int kOfRow = kPool1Side * kChunks, kAtOnce = kThreads / kOfRow;
  const int x = tid % kOfRow / kChunks, chunk = tid % kChunks, first = tid / kOfRow;
  if (first >= kAtOnce) return;
#pragma unroll
  for (int i = 0; i < kRows; i += kAtOnce)
    if (i + kAtOnce <= kRows || i + first < kRows) visit(i + first, x, chunk);
}

// Starts copying chunk i of a filter, dense in global memory, to shared memory, its rows kFilterPitch apart. The caller
// commits and waits.
template <class P, int C>
inline constexpr int kFilterChunks = kTaps * C * int(sizeof(typename P::T)) / 16;  // of a row
template <class P, int C>
__device__ __forceinline__ void copy_filter_chunk(unsigned char* shared, const void* packed, int i) {
  constexpr int kChunks = kFilterChunks<P, C>;
  copy_async_16(shared_address(shared) + i / kChunks * kFilterPitch<P, C> + i % kChunks * 16,
                static_cast<const char*>(packed) + std::size_t(i) * 16);
}

}  // namespace mnist::fused
