// Halves of images in fp16 terms: which ones a block owns, their place in shared memory, their copies and barriers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/barriers.cuh"
#include "kernels/device/copies.cuh"
#include "kernels/fused/conv2_backward/bn2_backward.cuh"
#include "kernels/fused/conv2_backward/pixel_lists.cuh"
#include "kernels/fused/shared/layout.cuh"
#include "kernels/fused/shared/scales.cuh"

namespace mnist::fused {

template <class P>
struct Fp16HalvesShared {
  static constexpr int kFp16Terms = P::kFp16Terms;
  using Pixels = PixelListRows<Fp16Operands, kPool1Side / 2>;
  static constexpr int kRows = kPool1Side / 2, kBufferRows = kRows + 2, kCells = 4 * kPool2Side;
  static constexpr int kRowBytes = kSlots * 16;
  static constexpr int kChunks1 = kConv1Channels / 8, kChunks2 = kConv2Channels / 8;
  // Columns -1 and 16 of a1 lie between its chunks. The chunks that a warp of make_dz2() reads or writes at a time are
  // in different banks.
  static constexpr int kChunkPitch = kBufferRows * kRowBytes + 16;
  static constexpr int kA1Term = kChunks1 * kChunkPitch, kDzTerm = kChunks2 * kChunkPitch + 64;
  static_assert(kChunkPitch % 128 == 16 && kDzTerm % 128 == 64);
  // An item's.
  struct alignas(128) Stage {
    unsigned char zeros[16];  // column -1 of a1's first row, and zeros for the dgrad
    unsigned char a1[kFp16Terms][kA1Term];
    unsigned char dz2[kDzTerm + kChunks2 * kChunkPitch];  // two terms, the last without a gap; first z2
    alignas(16) unsigned char pixel_lists[Pixels::kBytes];
    alignas(16) std::uint32_t route[kRows][kRoute1Words / kPool1Side];
    alignas(16) float dy2[kCells][kConv2Channels];
    alignas(16) std::uint8_t image[kImagePixels];
  };
  static constexpr int kFilterTerm = kConv2Values * 2, kFilterBytes = kFp16Terms * kFilterTerm;
  static constexpr int kRoutedTapSums = 24;  // of a thread
  struct Memory {
    Stage stages[2];
    unsigned char filter[kFilterBytes];
    union {
      double partial[kConvThreads / 64][2][kConv2Channels];  // make_bn2_backward()'s sums
      float routed_taps[kRoutedTapSums][kGroupThreads];      // later
    } sums;
  };
  // As offsets, because shared memory is addressed by numbers.
  static constexpr int kA1 = offsetof(Stage, a1), kDz = offsetof(Stage, dz2);
  static constexpr int kPixelLists = offsetof(Stage, pixel_lists), kRoute = offsetof(Stage, route);
  static constexpr int kDy2 = offsetof(Stage, dy2), kImageBytesAt = offsetof(Stage, image);
  static constexpr int kRouteBytes = sizeof(Stage::route), kDy2Bytes = sizeof(Stage::dy2);
  static constexpr int kStage = sizeof(Stage), kFilter = offsetof(Memory, filter), kPartial = offsetof(Memory, sums);
  static constexpr int kBytes = sizeof(Memory);
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <class P>
struct Fp16Halves {
  using Shared = Fp16HalvesShared<P>;
  static constexpr int kFp16Terms = P::kFp16Terms;
  static constexpr int kMakeDz2Threads = kConvThreads - kGroupThreads;
  static constexpr int kDgradRegisters = 152, kWeightGradientRegisters = 120;
  static_assert(kDgradRegisters + 3 * kWeightGradientRegisters == 4 * 65536 / kConvThreads);
  static constexpr int kCopyBytes = (2 * Shared::kChunks2 + kFp16Terms * Shared::kChunks1) * 8 * Shared::kRowBytes +
                                    Shared::kRouteBytes + kImagePixels + Shared::kDy2Bytes;

  const State& s;
  const Bn2Backward& bn;
  unsigned char* shared;
  Ring<2>&arrived, &dz2_ready, &done;  // an item's copies arrived; its dz2 is made; its stage may be overwritten
  int graph_step, lane;

  // ---- items -------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ bool whole() const { return s.conv2_backward_rows == kPool1Side; }
  __device__ __forceinline__ int half_of(int item) const { return whole() ? item & 1 : int(blockIdx.x) & 1; }
  // Later items lie lower in the batch: conv_forward wrote the highest last. Negative behind the last.
  __device__ __forceinline__ int image_of(int item) const {
    if (!whole()) return item == 0 ? s.batch - 1 - int(blockIdx.x) / 2 : -1;
    return s.batch - 1 - int(blockIdx.x) - item / 2 * int(gridDim.x);
  }
  __device__ __forceinline__ unsigned char* stage(int item) const {
    return shared + Ring<2>::stage(item) * Shared::kStage;
  }
  __device__ __forceinline__ void arrive(Ring<2>& ring, int item) const {
    __syncwarp();
    if (lane == 0) ring[item].arrive();
  }

  // ---- copies ------------------------------------------------------------------------------------------------------

  // By the first thread of each warp of a warpgroup: what is known before fc1_backward has run, of rows 0 to 7 or 6 to
  // 13 of an image, so that in the lower half's buffer they begin a row higher.
  __device__ __forceinline__ void copy_forward(int item) const {
    const int warp = threadIdx.x >> 5 & 3, image = image_of(item), half = half_of(item);
    if (image < 0 || lane != 0) return;
    const std::uint32_t to = shared_address(stage(item));
    MBarrier& here = arrived[item];
    // Chunks of `count` from `first` on of z2 or a1, of `of_image` that an image has.
    const auto copy_chunks = [&](const void* tensor, int of_image, int first, int count, auto place) {
      const char* from = static_cast<const char*>(tensor) + (std::size_t(image) * of_image + first) * kChunkedImage +
                         half * 6 * Shared::kRowBytes;
      const std::uint32_t row = to + (1 - half) * Shared::kRowBytes;
#pragma unroll
      for (int i = 0; i < count; ++i)
        copy_bulk(row + place(first + i), from + i * kChunkedImage, 8 * Shared::kRowBytes, here);
    };
    const auto in_dz = [](int i) { return Shared::kDz + (i & 1) * Shared::kDzTerm + (i >> 1) * Shared::kChunkPitch; };
    const auto in_a1 = [](int i) { return Shared::kA1 + i * Shared::kChunkPitch; };
    constexpr int kZ2 = 2 * Shared::kChunks2, kA1 = kFp16Terms * Shared::kChunks1;
    if (warp == 0) copy_chunks(s.z2, kZ2, 0, kZ2 / 2, in_dz);
    if (warp == 1) copy_chunks(s.z2, kZ2, kZ2 / 2, kZ2 / 2, in_dz);
    if (warp == 2) copy_chunks(s.a1, kA1, 0, kA1, in_a1);
    if (warp == 3) {
      const int sample = s.samples.order[std::size_t(graph_step) * s.batch + image];
      copy_bulk(
          to + Shared::kRoute,
          reinterpret_cast<const char*>(s.route1 + std::size_t(image) * kRoute1Words) + half * Shared::kRouteBytes,
          Shared::kRouteBytes, here);
      copy_bulk(to + Shared::kImageBytesAt, s.samples.images + std::size_t(sample) * kImagePixels, kImagePixels, here);
    }
  }
  // By one thread: announces all copies of an item and starts the last.
  __device__ __forceinline__ void copy_gradient(int item) const {
    if (image_of(item) < 0) return;
    arrived[item].expect(kCopyBytes);
    copy_bulk(shared_address(stage(item)) + Shared::kDy2,
              static_cast<const float*>(s.dy2) +
                  (std::size_t(image_of(item)) * kCells2 + half_of(item) * 3 * kPool2Side) * kConv2Channels,
              Shared::kDy2Bytes, arrived[item]);
  }
};

#endif

}  // namespace mnist::fused
