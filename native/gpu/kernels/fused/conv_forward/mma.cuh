// conv_forward: images -> conv1, bn1, relu, pool (in shared memory) -> conv2 -> z2, its window maxima pooled_z2, its
// channel sums. Here by mma.sync, three kernels that differ in what a block makes at a time:
//   conv_forward_kernel         one image or half of one, for small batches
//   conv_forward_roles_kernel   an image after the other, conv1 and conv2 at the same time, for large batches
//   conv_forward_halves_kernel  half an image after the other, for large batches where shared memory is short
// Hopper has other kernels, wgmma.cuh.
#pragma once

#include "kernels/fused/conv_forward/mma_products.cuh"
#include "kernels/fused/shared/phase.cuh"

namespace mnist::fused {

// Bytes of a row of a1.
template <class P>
inline constexpr int kA1RowBytes = kSlots * kSlotPitch<P, kConv1Channels>;

// Shared memory of all three kernels: kRows rows of the padded image are there at a time.
template <class P, int kStages = 1, int kRows = kPaddedRows>
struct ConvForwardMemory {
  unsigned char filter[kConv2Channels * kFilterPitch<P, kConv1Channels>];
  unsigned char a1[kStages * kA1Bytes<P, kRows>];
  unsigned char image[kStages * kImageBytes];

  // The filter of a quarter of conv2's channels.
  __device__ __forceinline__ std::uint32_t filter_of(int quarter) const {
    return shared_address(filter) + quarter * 16 * kFilterPitch<P, kConv1Channels>;
  }
};

// ---- Small batches --------------------------------------------------------------------------------------------------

// A block makes z2 of one image, or of half of it: rows 0 .. 7 or 8 .. 13. All 16 warps make what it needs of a1 (both
// halves need rows 7 and 8). Then 8 warps a half make z2, each 16 channels of 4 rows or the last 2.
template <class P, int kHalves>
__global__ void __launch_bounds__(kConvThreads, 1) conv_forward_kernel(State s, int graph_step) {
  constexpr int kConv2Warps = 8 * kHalves;
  constexpr int kOwnRows = kPool1Side / 2 * kHalves;  // of a1, stored by this block
  extern __shared__ __align__(128) unsigned char shared[];
  auto& memory = *reinterpret_cast<ConvForwardMemory<P>*>(shared);
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, quarter = warp & 3;
  const int image = kHalves == 1 ? blockIdx.x / 2 : blockIdx.x, half = kHalves == 1 ? blockIdx.x & 1 : 0;
  unsigned char* const a1 = memory.a1;

  const std::uint32_t word = tid < kImageWords ? load_image_word(s, graph_step, image, tid) : 0;
  const unsigned zeros = zero_scales(s, quarter, lane);
  for (int i = tid; i < kA1Bytes<P> / 16; i += kConvThreads) reinterpret_cast<uint4*>(a1)[i] = make_uint4(0, 0, 0, 0);
  clear_images<P>(memory.image, 1);
  __syncthreads();  // the padding is complete before the image overwrites its interior
  if (tid < kImageWords) store_image_word<P>(memory.image, tid, word);

  wait_for_predecessor();  // update: filters and bn1
  Conv1<P> conv1;
  const int channel0 = (warp & 1) * 16;
  conv1.load(s.conv1, s.bn1, channel0, lane);
  if constexpr (kHasScales<P>) conv1.divide(a1_scale(s, lane));
  const float acc_scale = z2_acc_scale<P>(s, lane);
  __syncthreads();  // the image is complete; also keeps these loads, which conv1 waits for, ahead of the copies
  copy_filter<P, kConvThreads>(memory.filter, s.conv2_forward, tid);
  const int first_row = 7 * half, rows = kHalves == 2 ? kPool1Side : half == 0 ? 9 : 7;
#pragma unroll 1
  for (int i = warp >> 1; i < 2 * rows; i += kConvWarps / 2) {
    const int cy = first_row + i / 2, plane = i & 1;
    conv1.half_row(shared_address(memory.image), cy, plane, lane, [&](const auto& cells, std::uint32_t route) {
      store_a1<P>(cells, channel0, plane, lane, A1Place<P>{a1 + (cy + 1) * kA1RowBytes<P>, plane});
      if (i < 2 * kOwnRows)
        s.route1[((std::size_t(image) * kPool1Side + cy) * 2 + (warp & 1)) * 64 + plane * 32 + lane] = route;
    });
  }
  copy_async_wait<0>();
  __syncthreads();  // a1 and the filter are complete

  float sum[4] = {}, squares[4] = {};
  if (kHalves == 2) store_image_a1<P, kConvThreads, 1>(s, a1, image, tid, 0);
  if (warp < kConv2Warps) {
    const std::uint32_t filter = memory.filter_of(quarter);
    const int row = 4 * half + warp / 4 * 2;  // of windows
    if (row + 2 <= kPool2Side)
      conv2_rows<P, 4>(s, sum, squares, shared_address(a1), filter, zeros, image, quarter, row, lane, acc_scale);
    else
      conv2_rows<P, 2>(s, sum, squares, shared_address(a1), filter, zeros, image, quarter, row, lane, acc_scale);
  } else {
    store_image_a1<P, kRoleThreads, 2>(s, a1, image, tid - kRoleThreads, half);
  }

  __syncthreads();  // nobody reads a1 any more
  auto* warp_sums = reinterpret_cast<float (*)[2][16]>(a1);
  if (warp < kConv2Warps) add_windows(warp_sums, sum, squares, warp, lane);
  __syncthreads();  // the warps' sums are complete
  store_z2_sums<kConv2Warps / 4>(s, warp_sums, tid);
}

// ---- Large batches --------------------------------------------------------------------------------------------------

// A block takes one image at a time, in two roles of 8 warps. The first makes a1 of the next image while the second
// makes z2 of this one: conv1 is bound by instructions, conv2 by the tensor cores.
template <class P, class Models>
__global__ void __launch_bounds__(kConvThreads, 1) conv_forward_roles_kernel(Models models, int graph_step) {
  const auto& s = state_of_block(models);
  using Role = NamedBarrier<1, kRoleThreads>;
  using Full = NamedBarrier<2, kRoleThreads + kGroupThreads, 4>;  // a1 of a stage, for each half of the second role
  using Free = NamedBarrier<6, kConvThreads, 2>;
  using Stored = NamedBarrier<8, kConvThreads>;
  using SecondRole = NamedBarrier<9, kRoleThreads>;
  extern __shared__ __align__(128) unsigned char shared[];
  auto& memory = *reinterpret_cast<ConvForwardMemory<P, 2>*>(shared);
  const int lane = threadIdx.x & 31, tid = threadIdx.x % kRoleThreads, warp = tid >> 5;
  const bool first_role = threadIdx.x < kRoleThreads;

  // An image: a word a thread, fetched one image ahead.
  std::uint32_t word = 0;
  const auto fetch = [&](int image) {
    if (first_role && tid < kImageWords && image < s.batch) word = load_image_word(s, graph_step, image, tid);
  };
  fetch(blockIdx.x);
  const unsigned zeros = zero_scales(s, warp & 3, lane);
  for (int i = threadIdx.x; i < int(sizeof memory.a1) / 16; i += kConvThreads)
    reinterpret_cast<uint4*>(memory.a1)[i] = make_uint4(0, 0, 0, 0);
  clear_images<P>(memory.image, 2);
  __syncthreads();  // the padding is complete before images overwrite its interior

  wait_for_predecessor();                                           // update: filters and bn1
  auto* warp_sums = reinterpret_cast<float (*)[2][16]>(memory.a1);  // of the second role, at the end
  if (first_role) {
    Conv1<P> conv1;
    const int channel0 = (warp & 1) * 16;
    conv1.load(s.conv1, s.bn1, channel0, lane);
    if constexpr (kHasScales<P>) conv1.divide(a1_scale(s, lane));
    int stage = 0;
    for (int image = blockIdx.x; image < s.batch; image += gridDim.x, stage ^= 1) {
      unsigned char *const pixels = memory.image + stage * kImageBytes, *const a1 = memory.a1 + stage * kA1Bytes<P>;
      if (tid < kImageWords) store_image_word<P>(pixels, tid, word);
      fetch(image + gridDim.x);
      Role::sync();                                        // the image is complete
      if (image >= 2 * int(gridDim.x)) Free::sync(stage);  // conv2 has read this stage's last a1
#pragma unroll(Conv1<P>::kPairs ? 7 : 1)  // of which some are under way at a time, where registers allow
      for (int k = 0; k < 7; ++k) {
        const int i = (warp >> 1) + 4 * k, cy = i >> 1, plane = warp >> 1 & 1;
        conv1.half_row(shared_address(pixels), cy, plane, lane, [&](const auto& cells, std::uint32_t route) {
          store_a1<P>(cells, channel0, plane, lane, A1Place<P>{a1 + (cy + 1) * kA1RowBytes<P>, plane});
          s.route1[((std::size_t(image) * kPool1Side + cy) * 2 + (warp & 1)) * 64 + plane * 32 + lane] = route;
        });
      }
      Full::arrive(2 * stage);
      Full::arrive(2 * stage + 1);
      Role::sync();  // a1 is complete
      store_image_a1<P, kRoleThreads, 1>(s, a1, image, tid, 0);
    }
    Stored::arrive();
  } else {
    copy_filter<P, kRoleThreads>(memory.filter, s.conv2_forward, tid);
    copy_async_wait<0>();
    SecondRole::sync();  // the filter is complete. (Not Free: by now the first role may be waiting there.)
    const int quarter = warp & 3, half = warp >> 2;
    const std::uint32_t filter = memory.filter_of(quarter);
    const float acc_scale = z2_acc_scale<P>(s, lane);
    float sum[4] = {}, squares[4] = {};
    int stage = 0;
    for (int image = blockIdx.x; image < s.batch; image += gridDim.x, stage ^= 1) {
      Full::sync(2 * stage + half);
      const std::uint32_t a1 = shared_address(memory.a1 + stage * kA1Bytes<P>);
      // Half of the role makes 4 of the 7 rows of windows, with the next image the other one.
      int row = half == 0 ? 0 : 3 + stage;
      const int end = half == 0 ? 3 + stage : kPool2Side;
      for (; row + 2 <= end; row += 2)
        conv2_rows<P, 4>(s, sum, squares, a1, filter, zeros, image, quarter, row, lane, acc_scale);
      if (row < end) conv2_rows<P, 2>(s, sum, squares, a1, filter, zeros, image, quarter, row, lane, acc_scale);
      if (image + 2 * int(gridDim.x) < s.batch) Free::arrive(stage);
    }
    Stored::sync();  // nobody reads a1 any more
    add_windows(warp_sums, sum, squares, warp, lane);
  }
  __syncthreads();  // the warps' sums are complete
  store_z2_sums<2>(s, warp_sums, threadIdx.x);
}

// ---- Large batches where shared memory is short ---------------------------------------------------------------------

// Only the rows of a1 that half of an image needs, once: next to a filter of floats 99 KiB hold no more.
template <class P>
using ConvForwardHalvesMemory = ConvForwardMemory<P, 1, 10>;  // rows 0 .. 9 of the padded image, or those from 8 on

// All 16 warps make a1 of rows 0 .. 8 or 7 .. 13, then z2 of rows 0 .. 7 or 8 .. 13: 16 channels of 2 rows a warp. So
// conv1 and conv2 take turns; in exchange all batches are cut alike. The grid is even, and a block keeps its half.
template <class P, class Models>
__global__ void __launch_bounds__(kConvThreads, 1) conv_forward_halves_kernel(Models models, int graph_step) {
  const auto& s = state_of_block(models);
  constexpr int kOwnRows = kPool1Side / 2;      // of a1, stored by this block
  constexpr int kMissing = 8 * kA1RowBytes<P>;  // of a1, ahead of the second half's
  extern __shared__ __align__(128) unsigned char shared[];
  auto& memory = *reinterpret_cast<ConvForwardHalvesMemory<P>*>(shared);
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, quarter = warp & 3;
  const int half = blockIdx.x & 1, stride = gridDim.x / 2;
  const int first_row = kOwnRows * half, rows = half == 0 ? 9 : 7;
  unsigned char* const pixels = memory.image;
  static_assert(sizeof memory.filter >= kMissing);
  unsigned char* const a1 = memory.a1 - kMissing * half;  // as if all rows were there

  // An image: a word a thread, fetched one image ahead.
  std::uint32_t word = 0;
  const auto fetch = [&](int image) {
    if (tid < kImageWords && image < s.batch) word = load_image_word(s, graph_step, image, tid);
  };
  int image = blockIdx.x / 2;
  fetch(image);
  const unsigned zeros = zero_scales(s, quarter, lane);
  for (int i = tid; i < int(sizeof memory.a1) / 16; i += kConvThreads)
    reinterpret_cast<uint4*>(memory.a1)[i] = make_uint4(0, 0, 0, 0);
  clear_images<P>(pixels, 1);
  __syncthreads();  // the padding is complete before the image overwrites its interior
  if (tid < kImageWords) store_image_word<P>(pixels, tid, word);

  wait_for_predecessor();  // update: filters and bn1
  Conv1<P> conv1;
  const int channel0 = (warp & 1) * 16;
  conv1.load(s.conv1, s.bn1, channel0, lane);
  conv1.divide(a1_scale(s, lane));
  const float acc_scale = z2_acc_scale<P>(s, lane);
  __syncthreads();  // the image is complete; also keeps these loads, which conv1 waits for, ahead of the copies
  copy_filter<P, kConvThreads>(memory.filter, s.conv2_forward, tid);

  const std::uint32_t filter = memory.filter_of(quarter);
  const int window_row = 4 * half + warp / 4;
  float sum[4] = {}, squares[4] = {};
  for (; image < s.batch; image += stride) {
    fetch(image + stride);
#pragma unroll 1
    for (int i = warp >> 1; i < 2 * rows; i += kConvWarps / 2) {
      const int cy = first_row + i / 2, plane = i & 1;
      conv1.half_row(shared_address(pixels), cy, plane, lane, [&](const auto& cells, std::uint32_t route) {
        store_a1<P>(cells, channel0, plane, lane, A1Place<P>{a1 + (cy + 1) * kA1RowBytes<P>, plane});
        if (i < 2 * kOwnRows)
          s.route1[((std::size_t(image) * kPool1Side + cy) * 2 + (warp & 1)) * 64 + plane * 32 + lane] = route;
      });
    }
    copy_async_wait<0>();  // the filter, the first time
    __syncthreads();       // a1 is complete, and no warp reads the image any more
    if (tid < kImageWords && image + stride < s.batch) store_image_word<P>(pixels, tid, word);
    store_image_a1<P, kConvThreads, 2>(s, a1, image, tid, half);
    if (window_row < kPool2Side)
      conv2_rows<P, 2>(s, sum, squares, shared_address(a1), filter, zeros, image, quarter, window_row, lane, acc_scale);
    __syncthreads();  // the next image is complete, and no warp reads a1 any more
  }
  auto* warp_sums = reinterpret_cast<float (*)[2][16]>(memory.a1);
  add_windows(warp_sums, sum, squares, warp, lane);
  __syncthreads();  // the warps' sums are complete
  store_z2_sums<kConvWarps / 4>(s, warp_sums, tid);
}

}  // namespace mnist::fused
