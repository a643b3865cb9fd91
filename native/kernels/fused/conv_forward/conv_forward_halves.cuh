// conv_forward where shared memory is short: a block takes one half of an image after the other.
#pragma once

#include <cstddef>

#include "kernels/device/dependent_launch.cuh"
#include "kernels/fused/conv_forward/a1.cuh"
#include "kernels/fused/conv_forward/conv1.cuh"
#include "kernels/fused/conv_forward/conv2.cuh"
#include "kernels/fused/shared/models.cuh"

namespace mnist::fused {

// Only the rows of a1 that half of an image needs, once: beside a filter of floats 99 KiB hold no more.
template <class P>
struct ConvForwardHalvesShared {
  static constexpr int kRows = 10;  // of the padded image: 0 .. 9, or from 8 on
  struct Memory {
    unsigned char filter[kConv2Channels][kFilterPitch<P, kConv1Channels>];
    unsigned char a1[(kRows * kSlots + 1) * kSlotPitch<P, kConv1Channels>];  // a padding slot may read past its end
    unsigned char image[kImageBytes];
  };
  static constexpr int kFilter = offsetof(Memory, filter), kA1 = offsetof(Memory, a1), kImage = offsetof(Memory, image);
  static constexpr int kBytes = sizeof(Memory);
};

// All 16 warps make a1 of rows 0 .. 8 or 7 .. 13, then z2 of rows 0 .. 7 or 8 .. 13: 16 channels of 2 rows a warp. So
// conv1 and conv2 take turns; in exchange all batches are cut alike. The grid is even, and a block keeps its half.
template <class P, class Models>
__global__ void __launch_bounds__(kConvThreads, 1) conv_forward_halves_kernel(Models models, int graph_step) {
  const auto& s = state_of_block(models);
  using Shared = ConvForwardHalvesShared<P>;
  constexpr int kPitch = kSlotPitch<P, kConv1Channels>, kOwnRows = kPool1Side / 2;  // of a1, stored by this block
  extern __shared__ __align__(128) unsigned char shared[];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, quarter = warp & 3;
  const int half = blockIdx.x & 1, stride = gridDim.x / 2;
  const int first_row = kOwnRows * half, rows = half == 0 ? 9 : 7;
  unsigned char* const pixels = shared + Shared::kImage;
  // As if all rows were there: those of the second half begin with row 8.
  static_assert(Shared::kA1 >= 8 * kSlots * kPitch);
  unsigned char* const a1 = shared + Shared::kA1 - 8 * half * kSlots * kPitch;

  // An image: a word a thread, fetched one image ahead.
  std::uint32_t word = 0;
  const auto fetch = [&](int image) {
    if (tid < kImageWords && image < s.batch) word = load_image_word(s, graph_step, image, tid);
  };
  int image = blockIdx.x / 2;
  fetch(image);
  const unsigned zeros = zero_scales(s, quarter, lane);
  for (int i = tid; i < int(sizeof(Shared::Memory::a1)) / 16; i += kConvThreads)
    reinterpret_cast<uint4*>(shared + Shared::kA1)[i] = make_uint4(0, 0, 0, 0);
  clear_images<P>(pixels, 1);
  __syncthreads();
  if (tid < kImageWords) store_image_word<P>(pixels, tid, word);

  wait_for_predecessor();  // update: filters and bn1
  Conv1<P> conv1;
  const int channel0 = (warp & 1) * 16;
  conv1.load(s.conv1, s.bn1, channel0, lane);
  __syncthreads();  // also keeps these loads, which conv1 waits for, ahead of the copies
  for (int i = tid; i < kConv2Channels * kFilterChunks<P, kConv1Channels>; i += kConvThreads)
    copy_filter_chunk<P, kConv1Channels>(shared + Shared::kFilter, s.conv2_forward, i);
  copy_async_commit();

  const std::uint32_t filter =
      shared_address(shared + Shared::kFilter) + quarter * 16 * kFilterPitch<P, kConv1Channels>;
  const int window_row = 4 * half + warp / 4;
  float sum[4] = {}, squares[4] = {};
  for (; image < s.batch; image += stride) {
    fetch(image + stride);
#pragma unroll 1
    for (int i = warp >> 1; i < 2 * rows; i += kConvWarps / 2) {
      const int cy = first_row + i / 2, plane = i & 1;
      conv1.half_row(shared_address(pixels), cy, plane, lane, [&](const float (&a)[4], std::uint32_t route) {
        store_a1<P>(a, channel0, plane, lane, A1Place<P>{a1 + (cy + 1) * kSlots * kPitch, plane});
        if (i < 2 * kOwnRows)
          s.route1[((std::size_t(image) * kPool1Side + cy) * 2 + (warp & 1)) * 64 + plane * 32 + lane] = route;
      });
    }
    copy_async_wait<0>();  // the filter, the first time
    __syncthreads();       // a1 is complete, and no warp reads the image any more
    if (tid < kImageWords && image + stride < s.batch) store_image_word<P>(pixels, tid, word);
    store_image_a1<P, kConvThreads, 2>(s, a1, image, tid, half);
    if (window_row < kPool2Side)
      conv2_rows<P, 2>(s, sum, squares, shared_address(a1), filter, zeros, image, quarter, window_row, lane);
    __syncthreads();  // the next image is complete, and no warp reads a1 any more
  }
  auto* warp_sums = reinterpret_cast<float (*)[2][16]>(shared + Shared::kA1);
  add_windows(warp_sums, sum, squares, warp, lane);
  __syncthreads();
  store_z2_sums<kConvWarps / 4>(s, warp_sums, tid);
}

}  // namespace mnist::fused
