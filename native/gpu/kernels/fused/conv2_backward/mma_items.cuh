// The items of work that a block of conv2_backward owns, their place in shared memory and their copies. mma.cuh uses
// all of it; whole_images.cuh has a layout and copies of its own.
#pragma once

#include "kernels/fused/conv2_backward/bn2_backward.cuh"
#include "kernels/fused/conv2_backward/pixel_lists.cuh"

namespace mnist::fused {

// With kChannelSplits = 2 two blocks divide conv2's channels, where shared memory does not hold z2 and the filter of
// all.
template <class P, int kRows, int kStages, int kChannelSplits = 1>
struct Conv2BackwardShared {
  using Pixels = PixelLists<Operand<P>>;
  static constexpr int kChannels = kConv2Channels / kChannelSplits;
  static constexpr int kA1Pitch = kSlotPitch<P, kConv1Channels>, kDzPitch = kSlotPitch<P, kChannels>;
  static constexpr int kDzChunkPitch = 16;                   // from a 16-byte chunk of a pixel to the next
  static constexpr int kCells = kRows == 14 ? kCells2 : 28;  // windows that cover the rows and their neighbours
  static constexpr int kItemSlots = (kRows + 2) * kSlots + 1;
  // The prologue writes padding, once; copies leave it alone.
  struct Item {
    unsigned char a1[kItemSlots][kA1Pitch];
    unsigned char dz2[kItemSlots][kDzPitch];  // first z2
  };
  // An item at a time has its dz2 made, so what only this needs is there once; so are the lists, which it leaves for
  // the same item's routed taps.
  struct Memory {
    Item stages[kStages];
    alignas(16) unsigned char dy2[kCells][kChannels * sizeof(typename P::T)];
    alignas(16) std::uint8_t image[kImagePixels];
    alignas(16) unsigned char pixel_lists[Pixels::kBytes];
    union {
      unsigned char filter[kConv1Channels][kFilterPitch<P, kChannels>];
      double partial[kConvThreads / 64][2][kConv2Channels];  // sums of make_bn2_backward(), before the filter is copied
    };
  };
  static constexpr int kStage = sizeof(Item), kFilter = offsetof(Memory, filter), kPartial = offsetof(Memory, partial);
  static constexpr int kBytes = sizeof(Memory);
  static constexpr int dy2_at(int) { return offsetof(Memory, dy2); }
  static constexpr int image_at(int) { return offsetof(Memory, image); }
  static constexpr int pixel_lists_at(int) { return offsetof(Memory, pixel_lists); }
};

// The items that a block owns and their copies in shared memory, in the layout SharedLayout.
template <class Policy, int kRowsOfItem, int kStageCount, int kSplits = 1,
          class SharedLayout = Conv2BackwardShared<Policy, kRowsOfItem, kStageCount, kSplits>>
struct Conv2BackwardItems {
  using P = Policy;
  using Shared = SharedLayout;
  using Item = typename Shared::Item;
  using T = typename P::T;
  static constexpr int kRows = kRowsOfItem, kStages = kStageCount, kChannelSplits = kSplits;
  static constexpr bool kHalfImage = kRows == 7;
  static constexpr int kBlocksOfImage = (kHalfImage ? 2 : 1) * kChannelSplits;
  static constexpr int kChannels = kConv2Channels / kChannelSplits;  // of z2 and dz2
  static constexpr int kCellChunks = kChannels / kChunk<P>;          // 16-byte chunks of a cell
  static constexpr int kPixelRows = kHalfImage ? 8 : kPool1Side;     // of a1 and z2, from first_pixel_row()
  static constexpr int kRouteBytes = kRoute1Words / kPool1Side * 4;  // of a row

  // Copies end at an mbarrier, `arrived`; roles meet at these.
  using DgradRole = NamedBarrier<1, kRoleThreads>;
  using Dz2Ready = NamedBarrier<2, kConvThreads, 2>;  // one for each stage
  using Done = NamedBarrier<4, kConvThreads, 2>;      // with a stage, which may be overwritten
  static constexpr int kFilterCopies = kStages;       // the mbarrier behind those of the stages

  const State& s;
  const Bn2Backward& bn;
  unsigned char* shared;
  MBarrier* arrived;  // one for each stage, one for the filter
  int graph_step, lane, y0;
  SumScales scales = {};

  // The grid is a multiple of an image's blocks, so a block keeps its half and its channels. A block starts with the
  // end of the batch: conv_forward wrote it last, so it is the likeliest to be in the L2 cache still.
  __device__ __forceinline__ int first_item() const { return s.batch - 1 - int(blockIdx.x) / kBlocksOfImage; }
  __device__ __forceinline__ int stride() const { return int(gridDim.x) / kBlocksOfImage; }
  __device__ __forceinline__ int first_channel() const {
    return kChannelSplits == 1 ? 0 : int(blockIdx.x) / (kBlocksOfImage / kChannelSplits) % kChannelSplits * kChannels;
  }
  __device__ __forceinline__ int first_cell() const { return kHalfImage && y0 > 0 ? 21 : 0; }
  __device__ __forceinline__ int first_pixel_row() const { return kHalfImage && y0 > 0 ? 6 : 0; }
  // Opaque to the compiler: with one stage it would compute all addresses behind this one before the loop over the
  // items, and spill them.
  __device__ __forceinline__ std::uint32_t stage_address(int stage) const {
    std::uint32_t address = shared_address(shared) + stage * Shared::kStage;
    asm volatile("" : "+r"(address));
    return address;
  }
  __device__ __forceinline__ const T* pixels_of(const void* tensor, int channels, int image) const {
    return static_cast<const T*>(tensor) + (std::size_t(image) * kCells1 + first_pixel_row() * kPool1Side) * channels;
  }
  __device__ __forceinline__ const T* gradient_of(int image) const {
    return static_cast<const T*>(s.dy2) + (std::size_t(image) * kCells2 + first_cell()) * kConv2Channels;
  }
  __device__ __forceinline__ const std::uint32_t* route_of(int image) const {
    return s.route1 + std::size_t(image) * kRoute1Words + y0 * (kRouteBytes / 4);
  }

  // Zeros around the pixels of a stage: the two outer slots of every row, then the other slots of the rows above and
  // below, and one slot behind the last row.
  __device__ __forceinline__ void clear_padding(int stage, int tid) const {
    constexpr int kChunks1 = kConv1Channels / kChunk<P>, kChunks = kChunks1 + kCellChunks;
    constexpr int kSides = 2 * (kRows + 2), kSlotsLeft = (kRows + 2 - kPixelRows) * (kSlots - 2) + 1;
    for (int i = tid; i < (kSides + kSlotsLeft) * kChunks; i += kConvThreads) {
      const int chunk = i % kChunks, which = i / kChunks, left = which - kSides;
      const int row = kHalfImage ? (y0 > 0 ? kRows + 1 : 0) : left / (kSlots - 2) * (kRows + 1);
      const int at = left < 0                 ? which / 2 * kSlots + which % 2 * (kSlots - 1)
                     : left == kSlotsLeft - 1 ? (kRows + 2) * kSlots
                                              : row * kSlots + 1 + left % (kSlots - 2);
      const int to = chunk < kChunks1 ? int(offsetof(Item, a1)) + at * Shared::kA1Pitch + chunk * 16
                                      : int(offsetof(Item, dz2)) + at * Shared::kDzPitch + (chunk - kChunks1) * 16;
      *reinterpret_cast<uint4*>(shared + stage * Shared::kStage + to) = make_uint4(0, 0, 0, 0);
    }
  }

  // ---- copies, by kThreads threads, of which this one is `tid` -----------------------------------------------------

  // The image rows that an item needs of a (B, 196, kOf) tensor: C channels of each pixel, from `first` on, to its
  // slot.
  template <int C, int kPitch, int kThreads, int kOf = C>
  __device__ __forceinline__ void copy_pixels(std::uint32_t to, const void* tensor, int image, int tid,
                                              int first = 0) const {
    to += (first_pixel_row() - y0 + 1) * kSlots * kPitch;
    const T* from = pixels_of(tensor, kOf, image) + first;
    for_chunks<kThreads, C / kChunk<P>, kPixelRows>(tid, [&](int row, int x, int chunk) {
      copy_async_16(to + (row * kSlots + slot_of(x + 1)) * kPitch + chunk * 16,
                    from + (row * kPool1Side + x) * kOf + chunk * kChunk<P>);
    });
  }
  // Which sample an item is. A role asks an item ahead, so that it never waits for this load.
  __device__ __forceinline__ int sample(int item, int tid) const {
    return item >= 0 && tid < kImagePixels / 16 ? s.samples.order[std::size_t(graph_step) * s.batch + item] : 0;
  }
  // What conv_forward left.
  template <int kThreads>
  __device__ __forceinline__ void copy_forward(int item, int stage, int tid) const {
    const std::uint32_t to = stage_address(stage);
    copy_pixels<kChannels, Shared::kDzPitch, kThreads, kConv2Channels>(to + offsetof(Item, dz2), s.z2, item, tid,
                                                                       first_channel());
    copy_pixels<kConv1Channels, Shared::kA1Pitch, kThreads>(to + offsetof(Item, a1), s.a1, item, tid);
  }
  // What only dz2's making needs: dy2, and the image for the pixel lists.
  template <int kThreads>
  __device__ __forceinline__ void copy_gradient(int item, int sample, int tid) const {
    const std::uint32_t to = stage_address(0);
    for (int i = tid; i < Shared::kCells * kCellChunks; i += kThreads)
      copy_async_16(to + Shared::dy2_at(0) + i * 16,
                    kChannelSplits == 1 ? gradient_of(item) + i * kChunk<P> : gradient_of(item) + place_in_all(i));
    if (tid < kImagePixels / 16)
      copy_async_16(to + Shared::image_at(0) + tid * 16,
                    s.samples.images + std::size_t(sample) * kImagePixels + tid * 16);
  }
  // Chunk i of the filter for dgrad; commit and wait are the caller's.
  __device__ __forceinline__ void copy_filter_chunk(int i) const {
    if constexpr (kChannelSplits == 1)
      fused::copy_filter_chunk<P, kChannels>(shared + Shared::kFilter, s.conv2_dgrad, i);
    else
      copy_async_16(shared_address(shared) + Shared::kFilter +
                        i / kFilterChunks<P, kChannels> * kFilterPitch<P, kChannels> +
                        i % kFilterChunks<P, kChannels> * 16,
                    static_cast<const T*>(s.conv2_dgrad) + place_in_all(i));
  }
  // Where chunk i of this block's channels lies in a tensor of all of conv2's.
  __device__ __forceinline__ int place_in_all(int i) const {
    return i / kCellChunks * kConv2Channels + first_channel() + i % kCellChunks * kChunk<P>;
  }
  // The routing of one of its rows, of a half of the channels, as accumulate_routed_taps() takes it.
  __device__ __forceinline__ void load_route(std::uint32_t (&route)[2], int item, int row, int half) const {
    const std::uint32_t* words = route_of(item) + (row * 2 + half) * 64 + lane;
    route[0] = words[0], route[1] = words[32];
  }
  // Brings all of an item except the image as far as the L2 cache.
  __device__ __forceinline__ void fetch(int item, int tid) const {
    const auto lines = [&](const void* from, int bytes, int pitch = 128) {
      for (int i = tid * pitch; i < bytes; i += kRoleThreads * pitch)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(from) + i));
    };
    constexpr int kPixels = kPixelRows * kPool1Side, kSize = sizeof(T);
    constexpr int kPitch = kChannelSplits * 128;  // this block's channels are every kChannelSplits-th line
    static_assert(kChannelSplits == 1 || kChannels * kSize == 128);
    lines(pixels_of(s.z2, kConv2Channels, item) + first_channel(), kPixels * kConv2Channels * kSize, kPitch);
    lines(pixels_of(s.a1, kConv1Channels, item), kPixels * kConv1Channels * kSize);
    lines(gradient_of(item) + first_channel(), Shared::kCells * kConv2Channels * kSize, kPitch);
    lines(route_of(item), kRows * kRouteBytes);
  }
};

}  // namespace mnist::fused
