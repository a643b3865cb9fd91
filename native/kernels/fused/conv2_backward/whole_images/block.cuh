// Whole images in 16 bits: their place in shared memory, their copies and barriers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/barriers.cuh"
#include "kernels/device/copies.cuh"
#include "kernels/device/wgmma.cuh"
#include "kernels/fused/conv2_backward/block.cuh"
#include "kernels/fused/conv2_backward/pixel_lists.cuh"

namespace mnist::fused {

template <class Policy>
struct WholeImagesShared {
  using P = Policy;
  static_assert(sizeof(typename P::T) == 2);
  using Pixels = PixelListRows<P, kPool1Side>;
  static constexpr int kCells = kCells2, kChunks1 = kConv1Channels / kChunk<P>, kChunks2 = kConv2Channels / kChunk<P>;
  // The 8 chunks of a pixel that make_dz2() reads and writes at a time lie in different banks.
  static constexpr int kA1ChunkPitch = kSlotsOfImage * 16 + 32;
  static constexpr int kDzPitch = 16, kDzChunkPitch = kSlotsOfImage * kDzPitch + 16;
  static_assert(kA1ChunkPitch % 128 == 32 && kDzChunkPitch % 128 == 16 && DgradFilter::kPieceBytes % 128 == 16);
  // An image's.
  struct Stage {
    alignas(16) unsigned char a1[kChunks1][kA1ChunkPitch];
    alignas(16) unsigned char dz2[kChunks2][kDzChunkPitch];  // first z2
    alignas(16) unsigned char pixel_lists[Pixels::kBytes];
    alignas(16) std::uint32_t route[kRoute1Words];
    alignas(16) unsigned char dy2[kCells2][kConv2Channels * 2];
    alignas(16) std::uint8_t image[kImagePixels];
  };
  struct Memory {
    Stage stages[2];
    unsigned char filter[DgradFilter::kBytes];
  };
  // As offsets, because shared memory is addressed by numbers.
  static constexpr int kA1 = offsetof(Stage, a1), kDz = offsetof(Stage, dz2);
  static constexpr int kPixelLists = offsetof(Stage, pixel_lists), kRoute = offsetof(Stage, route);
  static constexpr int kDy2 = offsetof(Stage, dy2), kImageBytesAt = offsetof(Stage, image);
  static constexpr int kStage = sizeof(Stage), kFilter = offsetof(Memory, filter), kBytes = sizeof(Memory);
  static constexpr int kPartial = kStage + kRoute;  // make_bn2_backward()'s sums, where copies go later
  static_assert(kStage - kRoute >= kConvThreads / 64 * 2 * kConv2Channels * 8);
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <class Policy>
struct WholeImages {
  using P = Policy;
  using Shared = WholeImagesShared<P>;
  using Block = Conv2BackwardBlock<P, 14, 2, 1, Shared>;
  static constexpr int kRowBytes = kSlots * 16;  // of a chunk
  static constexpr int kDgradRegisters = 104, kWeightGradientRegisters = 208,
                       kMakeDz2Registers = 96;  // 4 * 128 together
  static_assert(2 * kDgradRegisters + kWeightGradientRegisters + kMakeDz2Registers == 4 * 65536 / kConvThreads);

  const Block& block;
  MBarrier *dz2_ready, *filter_arrived;  // dz2_ready: one a stage

  __device__ __forceinline__ std::uint32_t address_of(int stage) const {
    return shared_address(block.shared) + stage * Shared::kStage;
  }
  // Until dz2 of this item stands in its stage. The first item's does before the block divides into roles.
  __device__ __forceinline__ void wait_for_dz2(int item, int stage, int& parity) const {
    if (item != block.first_item()) {
      dz2_ready[stage].wait(parity);
      if (stage == 0) parity ^= 1;
    }
  }
  // No warp of this role reads the stage of this item any more.
  __device__ __forceinline__ void release(int item, int stage) const {
    if (item >= 2 * block.stride()) Block::Done::arrive(stage);
  }

  // Zeros in the rows above and below dz2, which copies leave alone, and padding around an image's pixels. (Nothing
  // reads those rows of a1.)
  __device__ __forceinline__ void clear_padding(int stage, int tid) const {
    unsigned char* const here = block.shared + stage * Shared::kStage;
    for (int i = tid; i < Shared::kChunks2 * 2 * kSlots; i += kConvThreads) {
      const int chunk = i / (2 * kSlots), row = i / kSlots % 2 * (kPool1Side + 1), slot = i % kSlots;
      *reinterpret_cast<uint4*>(here + Shared::kDz + chunk * Shared::kDzChunkPitch + row * kRowBytes + slot * 16) =
          make_uint4(0, 0, 0, 0);
    }
    Shared::Pixels::clear(here + Shared::kPixelLists, tid);
  }

  // ---- copies ------------------------------------------------------------------------------------------------------

  // By one thread. Of an item, what is known before fc1_backward has run, and dy2.
  static constexpr int kForwardBytes =
      (Shared::kChunks1 + Shared::kChunks2) * kChunkedImage + kRoute1Words * 4 + kImagePixels;
  static constexpr int kGradientBytes = kCells2 * kConv2Channels * 2;
  __device__ __forceinline__ void copy_forward(int item, int sample, int stage) const {
    const State& s = block.s;
    const std::uint32_t to = address_of(stage);
    const auto copy = [&](int at, const void* tensor, std::size_t item, int bytes) {
      copy_bulk(to + at, static_cast<const char*>(tensor) + item * bytes, bytes, block.arrived[stage]);
    };
#pragma unroll 1
    for (int chunk = 0; chunk < Shared::kChunks2; ++chunk)
      copy(Shared::kDz + chunk * Shared::kDzChunkPitch + kRowBytes, s.z2, std::size_t(item) * Shared::kChunks2 + chunk,
           kChunkedImage);
#pragma unroll 1
    for (int chunk = 0; chunk < Shared::kChunks1; ++chunk)
      copy(Shared::kA1 + chunk * Shared::kA1ChunkPitch + kRowBytes, s.a1, std::size_t(item) * Shared::kChunks1 + chunk,
           kChunkedImage);
    copy(Shared::kRoute, s.route1, item, kRoute1Words * 4);
    copy(Shared::kImageBytesAt, s.samples.images, sample, kImagePixels);
  }
  __device__ __forceinline__ void copy_gradient(int item, int stage) const {
    copy_bulk(address_of(stage) + Shared::kDy2,
              static_cast<const char*>(block.s.dy2) + std::size_t(item) * kGradientBytes, kGradientBytes,
              block.arrived[stage]);
  }
  __device__ __forceinline__ void copy(int item, int sample, int stage) const {
    wgmma_publish();  // what was written there before comes before
    block.arrived[stage].expect(kForwardBytes + kGradientBytes);
    copy_gradient(item, stage);
    copy_forward(item, sample, stage);
  }

  // All of an item but the image, towards the L2 cache.
  __device__ __forceinline__ void fetch(int item) const {
    const State& s = block.s;
    const auto fetch = [&](const void* tensor, int bytes) {
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(static_cast<const char*>(tensor) +
                                                                      std::size_t(item) * bytes),
                   "r"(bytes)
                   : "memory");
    };
    if (item < 0) return;
    fetch(s.z2, Shared::kChunks2 * kChunkedImage);
    fetch(s.dy2, kGradientBytes);
    fetch(s.a1, Shared::kChunks1 * kChunkedImage);
    fetch(s.route1, kRoute1Words * 4);
  }
};

#endif

}  // namespace mnist::fused
