// conv_forward by wgmma: how operands and results lie in shared memory, and how they get there.
//
// a1: [chunk of channels][16 rows][16 columns][16 bytes], with a border of zeros: see wgmma.cuh. Filter:
// [tap][chunk][64 channels][16 bytes]. In fp32 there are two of each: see fp16_terms.cuh.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/wgmma.cuh"
#include "kernels/fused/shared/blocks.h"
#include "kernels/fused/shared/fp16_scales.cuh"
#include "kernels/fused/shared/image.cuh"
#include "kernels/fused/shared/image_layout.cuh"

namespace mnist::fused {

template <class P>
struct WgmmaOperands {
  using T = std::conditional_t<sizeof(typename P::T) == 2, typename P::T, __half>;
  static constexpr int kFp16Terms = P::kFp16Terms > 0 ? P::kFp16Terms : 1;
  static constexpr int kOfChunk = 8;  // values, of 16 bits
  static constexpr int kChunks = kConv1Channels / kOfChunk, kSteps = kChunks / 2;
  // Chunks lie apart so that those of two pixels are in different banks. Padding columns may read past the end of a
  // chunk, and past that of the last one.
  static constexpr int kPlane = kSlotsOfImage * 16 + 32;
  static constexpr int kRow = 16 * 16;
  static constexpr int kA1Term = kChunks * kPlane, kA1Bytes = kFp16Terms * kA1Term;
  static constexpr int kFilterChunk = kConv2Channels * 16;
  static constexpr int kFilterTerm = kTaps * kChunks * kFilterChunk, kFilterBytes = kFp16Terms * kFilterTerm;
};

// conv1's operand by wgmma: the 4 x 4 pixels that a pooling window sees, [upper or lower half of them][row of windows]
// [plane][slot][16 bytes].
inline constexpr int kPatchRows = 2 * kPool1Side;  // of a plane's 8 slots
inline constexpr int kPatchHalf = kPatchRows * 8 * 16, kPatchBytes = 2 * kPatchHalf;

// Whether conv_forward leaves z2 chunked, and a1 chunked or split, for conv2_backward: the plan lets
// that work by wgmma for just these.
template <class P, bool kWholeImages>
inline constexpr bool kChunked = P::kFp16Terms > 0 || (kWholeImages && sizeof(typename P::T) == 2);

template <class P>
struct ConvForwardWgmmaShared {
  using Operands = WgmmaOperands<P>;
  struct Stage {
    unsigned char a1[Operands::kA1Bytes];
    alignas(128) std::uint32_t route[kRoute1Words];  // in the order of State::route1
  };
  static constexpr int kRoute = offsetof(Stage, route), kStage = kRoute + sizeof(Stage::route);
  // Small batches.
  struct Memory {
    unsigned char stage[kStage];
    unsigned char filter[Operands::kFilterBytes];
    union {
      unsigned char image[kImageBytes];
      float warp_sums[kConvWarps][2][16];  // later
    } image;
  };
  static constexpr int kFilter = offsetof(Memory, filter), kImage = offsetof(Memory, image), kBytes = sizeof(Memory);
  // Large batches: two stages, each with a copy of a1 as conv2_backward wants it; two patches; and for each warpgroup
  // of the second role an image of z2 and pooled_z2 on its way out, with a cell for what is not wanted.
  static constexpr bool kCopies = sizeof(typename P::T) == 2;
  static constexpr int kCopyBytes = kCopies ? Operands::kChunks * kChunkedImage : 0, kRolesStage = kStage + kCopyBytes;
  static constexpr int kZ2Bytes = kConv2Channels / 8 * kChunkedImage, kPooledZ2Cell = kConv2Channels * 2;
  static constexpr int kOutputBytes = kCopies ? kZ2Bytes + (kCells2 + 1) * kPooledZ2Cell : 0;
  struct RolesMemory {
    unsigned char stages[2][kRolesStage];
    unsigned char filter[Operands::kFilterBytes];
    unsigned char images[2][kImageBytes];
    unsigned char patches[2][kPatchBytes];
    // then of each warpgroup kOutputBytes
  };
  static constexpr int kRolesFilter = offsetof(RolesMemory, filter), kRolesImages = offsetof(RolesMemory, images);
  static constexpr int kPatches = offsetof(RolesMemory, patches), kOutput = sizeof(RolesMemory);
  static constexpr int kRolesBytes = kOutput + 2 * kOutputBytes;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ __nv_bfloat162 firsts(__nv_bfloat162 a, __nv_bfloat162 b) { return __lows2bfloat162(a, b); }
__device__ __forceinline__ __nv_bfloat162 seconds(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __highs2bfloat162(a, b);
}
__device__ __forceinline__ __half2 firsts(__half2 a, __half2 b) { return __lows2half2(a, b); }
__device__ __forceinline__ __half2 seconds(__half2 a, __half2 b) { return __highs2half2(a, b); }
__device__ __forceinline__ float2 firsts(float2 a, float2 b) { return make_float2(a.x, b.x); }
__device__ __forceinline__ float2 seconds(float2 a, float2 b) { return make_float2(a.y, b.y); }

#endif

}  // namespace mnist::fused
