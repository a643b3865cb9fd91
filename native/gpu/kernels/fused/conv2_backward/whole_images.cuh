// conv2_backward of whole images in 16 bits on Hopper, whose wgmma multiplies faster than mma.sync and needs few
// instructions.
//
// It computes what mma.cuh says, and its blocks own the same items. Operands lie as wgmma reads them (see
// device/wgmma.cuh): chunks of 8 channels apart, [chunk][row][slot][16 bytes]. Roles are warpgroups:
//   0, 1  dgrad of 7 image rows each, then their routed taps
//   2     conv2's weight gradient, all of it in registers over all items
//   3     waits for the copies of an item, makes dz2 where z2 was while the others work on the item before, and once
//         they are done with that one starts the copies that take its place
#pragma once

#include "kernels/device/matrix.cuh"
#include "kernels/device/registers.cuh"
#include "kernels/fused/conv2_backward/mma_items.cuh"
#include "kernels/fused/conv2_backward/store.cuh"
#include "kernels/fused/conv2_backward/whole_images_products.cuh"

namespace mnist::fused {

template <class Policy>
struct WholeImagesShared {
  using P = Policy;
  static_assert(sizeof(typename P::T) == 2);
  using Pixels = PixelListRows<P, kPool1Side>;
  static constexpr int kCells = kCells2, kChunks1 = kConv1Channels / kChunk<P>, kChunks2 = kConv2Channels / kChunk<P>;
  static constexpr int kRowBytes = kSlots * 16;  // of a chunk
  // The 8 chunks of a pixel that make_dz2() reads and writes at a time lie in different banks.
  static constexpr int kA1ChunkPitch = kSlotsOfImage * 16 + 32;
  static constexpr int kDzPitch = 16, kDzChunkPitch = kSlotsOfImage * kDzPitch + 16;
  static_assert(kA1ChunkPitch % 128 == 32 && kDzChunkPitch % 128 == 16 && DgradFilter::kPieceBytes % 128 == 16);
  struct Item {
    alignas(16) unsigned char a1[kChunks1][kA1ChunkPitch];
    alignas(16) unsigned char dz2[kChunks2][kDzChunkPitch];  // first z2
    alignas(16) unsigned char pixel_lists[Pixels::kBytes];
    alignas(16) std::uint32_t route[kRoute1Words];
    alignas(16) unsigned char dy2[kCells2][kConv2Channels * 2];
    alignas(16) std::uint8_t image[kImagePixels];
  };
  struct Memory {
    Item stages[2];
    unsigned char filter[DgradFilter::kBytes];
  };
  static constexpr int kStage = sizeof(Item), kFilter = offsetof(Memory, filter), kBytes = sizeof(Memory);
  static constexpr int dy2_at(int stage) { return stage * kStage + offsetof(Item, dy2); }
  static constexpr int image_at(int stage) { return stage * kStage + offsetof(Item, image); }
  static constexpr int pixel_lists_at(int stage) { return stage * kStage + offsetof(Item, pixel_lists); }
  // The sums of make_bn2_backward(), where the second stage's copies go later.
  static constexpr int kPartial = kStage + offsetof(Item, route);
  static_assert(kStage - offsetof(Item, route) >= kConvThreads / 64 * 2 * kConv2Channels * 8);
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <class Policy>
struct WholeImages {
  using P = Policy;
  using Shared = WholeImagesShared<P>;
  using Item = typename Shared::Item;
  using Items = Conv2BackwardItems<P, 14, 2, 1, Shared>;
  static constexpr int kDgradRegisters = 104, kWeightGradientRegisters = 208,
                       kMakeDz2Registers = 96;  // 4 * 128 together
  static_assert(2 * kDgradRegisters + kWeightGradientRegisters + kMakeDz2Registers == 4 * 65536 / kConvThreads);

  const Items& items;
  MBarrier *dz2_ready, *filter_arrived;  // dz2_ready: one for each stage

  __device__ __forceinline__ std::uint32_t address_of(int stage) const {
    return shared_address(items.shared) + stage * Shared::kStage;
  }
  // Waits until dz2 of this item stands in its stage. The first item's does before the block divides into roles.
  __device__ __forceinline__ void wait_for_dz2(int item, int stage, int& parity) const {
    if (item != items.first_item()) {
      dz2_ready[stage].wait(parity);
      if (stage == 0) parity ^= 1;
    }
  }
  // No warp of this role reads the stage of this item any more. Nothing is copied over those of the last two.
  __device__ __forceinline__ void release(int item, int stage) const {
    if (item >= 2 * items.stride()) Items::Done::arrive(stage);
  }
  // A role's points within an item, from `first` on.
  __device__ __forceinline__ TracedItem traced(int item, int first, bool thread) const {
    return TracedItem(items.s, Phase::kConv2Backward, {.first = first, .points = 4, .from = 8, .to = 12},
                      (items.first_item() - item) / items.stride(), thread);
  }

  // Zeros in the rows above and below dz2, which copies leave alone, and padding around an image's pixels. (Nothing
  // reads those rows of a1.)
  __device__ __forceinline__ void clear_padding(int stage, int tid) const {
    unsigned char* const here = items.shared + stage * Shared::kStage;
    for (int i = tid; i < Shared::kChunks2 * 2 * kSlots; i += kConvThreads) {
      const int chunk = i / (2 * kSlots), row = i / kSlots % 2 * (kPool1Side + 1), slot = i % kSlots;
      *reinterpret_cast<uint4*>(here + offsetof(Item, dz2) + chunk * Shared::kDzChunkPitch + row * Shared::kRowBytes +
                                slot * 16) = make_uint4(0, 0, 0, 0);
    }
    Shared::Pixels::clear(here + offsetof(Item, pixel_lists), tid);
  }

  // ---- copies, by one thread of each of several warps --------------------------------------------------------------

  // What is known of an item before fc1_backward has run, in pieces; and dy2. Only the first warp needs the sample.
  static constexpr int kPieces = 2 + Shared::kChunks2 + Shared::kChunks1;
  static constexpr int kForwardBytes =
      (Shared::kChunks1 + Shared::kChunks2) * kChunkedImage + kRoute1Words * 4 + kImagePixels;
  static constexpr int kGradientBytes = kCells2 * kConv2Channels * 2;
  __device__ __forceinline__ void copy_forward(int item, int sample, int stage, int warp, int warps) const {
    const State& s = items.s;
    const std::uint32_t to = address_of(stage);
    const auto copy = [&](int at, const void* tensor, std::size_t item, int bytes) {
      copy_bulk(to + at, static_cast<const char*>(tensor) + item * bytes, bytes, items.arrived[stage]);
    };
#pragma unroll 1
    for (int piece = warp; piece < kPieces; piece += warps) {
      const int chunk2 = piece - 2, chunk1 = chunk2 - Shared::kChunks2;
      if (piece == 0)
        copy(offsetof(Item, image), s.samples.images, sample, kImagePixels);
      else if (piece == 1)
        copy(offsetof(Item, route), s.route1, item, kRoute1Words * 4);
      else if (chunk1 < 0)
        copy(offsetof(Item, dz2) + chunk2 * Shared::kDzChunkPitch + Shared::kRowBytes, s.z2,
             std::size_t(item) * Shared::kChunks2 + chunk2, kChunkedImage);
      else
        copy(offsetof(Item, a1) + chunk1 * Shared::kA1ChunkPitch + Shared::kRowBytes, s.a1,
             std::size_t(item) * Shared::kChunks1 + chunk1, kChunkedImage);
    }
  }
  __device__ __forceinline__ void copy_gradient(int item, int stage) const {
    copy_bulk(address_of(stage) + offsetof(Item, dy2),
              static_cast<const char*>(items.s.dy2) + std::size_t(item) * kGradientBytes, kGradientBytes,
              items.arrived[stage]);
  }
  // All of an item, by role 3; the item after it comes as far as the L2 cache, except its image.
  __device__ __forceinline__ void copy(int item, int sample, int stage, int warp) const {
    constexpr int kWarps = kGroupThreads / 32;
    wgmma_publish();  // orders the threads' reads and writes of this stage before the copies
    if (warp == 0) items.arrived[stage].expect(kForwardBytes + kGradientBytes);
    copy_forward(item, sample, stage, warp, kWarps);
    if (warp == kWarps - 1) copy_gradient(item, stage);
    if (warp == kWarps - 2) fetch(item - items.stride());
  }
  __device__ __forceinline__ void fetch(int item) const {
    const State& s = items.s;
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

template <class P>
__device__ __forceinline__ void dgrad_role(const WholeImages<P>& images, int tid) {
  using Shared = WholeImagesShared<P>;
  using Item = typename Shared::Item;
  const auto& items = images.items;
  const int lane = items.lane, warp = uniform(tid >> 5);
  const int half = warp & 1, plane = warp >> 1 & 1, first_row = (warp >> 2) * 7;
  images.filter_arrived->wait(0);
  float routed_taps[2][12] = {};
  int stage = 0, parity = 0;
  for (int item = items.first_item(); item >= 0; item -= items.stride()) {
    images.wait_for_dz2(item, stage, parity);
    const std::uint32_t here = images.address_of(stage);
    const std::uint32_t words = here + offsetof(Item, route) + ((first_row * 2 + half) * 64 + plane * 32 + lane) * 4;
    std::uint32_t route[7];
#pragma unroll
    for (int row = 0; row < 7; ++row) route[row] = load_shared_32(words + row * (kRoute1Words / kPool1Side * 4));
    const TracedItem traced = images.traced(item, 16, tid == 0);
    traced(0);
    float da1[28];
    dgrad<Shared>(da1, here + offsetof(Item, dz2) + first_row * Shared::kRowBytes,
                  shared_address(items.shared) + Shared::kFilter);
    traced(1);
    accumulate_routed_taps<Shared>(routed_taps, da1, route,
                                   here + offsetof(Item, pixel_lists) + first_row * Shared::Pixels::kCellsBytes,
                                   inverse_of(items.scales.da1));
    traced(2);
    images.release(item, stage);
    stage ^= 1;
  }
  trace(items.s, Phase::kConv2Backward, 4, tid == 0);
  WholeImages<P>::Items::DgradRole::sync();  // no warp reads the filter any more
  store_routed_tap_sums<2>(items.s, reinterpret_cast<float*>(items.shared + Shared::kFilter), routed_taps,
                           P::kScaled ? items.scales.routed_taps : 1.f);
  trace(items.s, Phase::kConv2Backward, 7, tid == 0);
}

// conv2's weight gradient. Rows are conv2's channels, columns conv1's, k the 16 slots of an image row. The slots of a1
// that meet plane 0 and plane 1 of dz2 begin at AlignedShift::at(0, v) and at(1, v):
//
//   tap v           0    1    2
//   plane 0 meets   7    0    8
//   plane 1 meets   0    8    1
//   distance       -7    8   -7      where it is negative, plane 1 comes first, in both operands
template <class P>
__device__ __forceinline__ void weight_gradient_role(const WholeImages<P>& images, int tid) {
  using Shared = WholeImagesShared<P>;
  using Item = typename Shared::Item;
  const auto& items = images.items;
  const int lane = items.lane, warp = uniform(tid >> 5);
  const std::uint32_t column = offsetof(Item, dz2) + (2 * warp + (lane >> 3 & 1)) * Shared::kDzChunkPitch;
  float dw[kTaps][16] = {};
  int stage = 0, parity = 0;
  for (int item = items.first_item(); item >= 0; item -= items.stride()) {
    images.wait_for_dz2(item, stage, parity);
    const std::uint32_t here = images.address_of(stage);
    const std::uint64_t apart = wgmma_operand(here + offsetof(Item, a1), 8 * 16, Shared::kA1ChunkPitch);
    const std::uint64_t swapped = wgmma_operand(here + offsetof(Item, a1), 7 * 16, Shared::kA1ChunkPitch);
    // Row d of dz2 lies at d % 2. It is loaded once for each order of the planes: moves would cost more than loads.
    std::uint32_t in_order[2][4], planes_swapped[2][4];
    const auto load = [&](int row) {
      const std::uint32_t slots = here + column + (row * kSlots + (lane & 7)) * Shared::kDzPitch;
      load_matrix_x4_trans(in_order[row & 1], slots + (lane >> 4) * 8 * Shared::kDzPitch);
      load_matrix_x4_trans(planes_swapped[row & 1], slots + (1 - (lane >> 4)) * 8 * Shared::kDzPitch);
    };
    const TracedItem traced = images.traced(item, 48, tid == 0);
    traced(0);
    load(1);
#pragma unroll
    for (int row = 1; row <= kPool1Side; ++row) {
      wgmma_fence();
#pragma unroll
      for (int u = 0; u < 3; ++u) {
        const int in = row + u - 1;  // of a1
        if (in < 1 || in > kPool1Side) continue;
        const int at = in * Shared::kRowBytes / 16;
        wgmma_columns<typename P::T>(dw[3 * u], planes_swapped[row & 1], swapped + at, true);
        wgmma_columns<typename P::T>(dw[3 * u + 1], in_order[row & 1], apart + at, true);
        wgmma_columns<typename P::T>(dw[3 * u + 2], planes_swapped[row & 1], swapped + at + 1, true);
      }
      wgmma_commit();
      if (row == kPool1Side) break;
      wgmma_wait<1>();
      load(row + 1);
    }
    wgmma_wait<0>();
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) wgmma_results(dw[tap]);
    traced(1);
    images.release(item, stage);
    stage ^= 1;
  }
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    if constexpr (P::kScaled)
      for (float& sum : dw[tap]) sum *= items.scales.weights;
    store_weight_sums(items.s, tap, dw[tap], warp, lane);
  }
  trace(items.s, Phase::kConv2Backward, 8, tid == 0);
}

// The kernel has made dz2 of the first item already.
template <class P>
__device__ __forceinline__ void make_dz2_role(const WholeImages<P>& images, int tid, int second_sample) {
  const auto& items = images.items;
  const int warp = uniform(tid >> 5), second = items.first_item() - items.stride();
  if (items.lane == 0 && second >= 0) images.copy(second, second_sample, 1, warp);
  int stage = 1, parity = 0;
  for (int item = second; item >= 0; item -= items.stride()) {
    // Opaque to the compiler, which would compute all addresses before the loop, and spill them.
    int thread = tid;
    asm volatile("" : "+r"(thread));
    const int next = item - items.stride(), next_sample = items.sample(next, thread);  // thread 0's counts
    const TracedItem traced = images.traced(item, 32, tid == 0);
    traced(0);
    items.arrived[stage].wait(parity);
    traced(1);
    if (stage == 1) parity ^= 1;
    make_dz2<kGroupThreads>(items, item, stage, thread);
    wgmma_publish();
    __syncwarp();
    if (items.lane == 0) images.dz2_ready[stage].arrive();
    traced(2);
    stage ^= 1;
    if (next >= 0) {
      WholeImages<P>::Items::Done::sync(stage);  // no warp reads this stage any more
      traced(3);
      if (items.lane == 0) images.copy(next, next_sample, stage, warp);
    }
  }
}

#endif

// For code of sm_90a.
template <class P, class Models>
__global__ void __launch_bounds__(kConvThreads, 1) conv2_backward_whole_images_kernel(Models models, int graph_step) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const auto& s = state_of_block(models);
  using Shared = WholeImagesShared<P>;
  using Images = WholeImages<P>;

  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Bn2Backward bn;
  __shared__ MBarrier arrived[2], dz2_ready[2], filter_arrived;
  const int tid = threadIdx.x, group = uniform(tid / kGroupThreads);
  typename Images::Items items{s, bn, shared, arrived, graph_step, tid & 31, 0};
  const Images images{items, dz2_ready, &filter_arrived};

  trace(s, Phase::kConv2Backward, 0, tid == 0);
  const int item = items.first_item(), second_sample = items.sample(item - items.stride(), tid % kGroupThreads);
  if (tid == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      arrived[stage].init(1);
      dz2_ready[stage].init(kGroupThreads / 32);
    }
    filter_arrived.init(1);
    filter_arrived.expect(DgradFilter::kBytes);
  }
  const int sample = items.sample(item, tid), warp = uniform(tid / 32);
  __syncthreads();  // the barriers are ready
  if (items.lane == 0) {
    images.copy_forward(item, sample, 0, warp, kConvWarps);
    if (warp == Images::kPieces)
      copy_bulk(shared_address(shared) + Shared::kFilter, s.conv2_dgrad, DgradFilter::kBytes, filter_arrived);
  }
  items.scales = begin_scales<P>(s);
  float dy2_scale = 1;
  const auto meanwhile = [&] {
    if constexpr (P::kScaled) dy2_scale = s.scales[kDy2Scale];
    if (tid == 0) {  // not earlier: the arrival that expect() counts is the last of the phase
      arrived->expect(Images::kForwardBytes + Images::kGradientBytes);
      images.copy_gradient(item, 0);
    }
    for (int stage = 0; stage < 2; ++stage)
      if (item >= stage * items.stride()) images.clear_padding(stage, tid);
  };
  finish_scales<P>(items.scales, make_bn2_backward<P::kScaled>(
                                     s, bn, reinterpret_cast<double (*)[2][kConv2Channels]>(shared + Shared::kPartial),
                                     meanwhile, dy2_scale));
  trace(s, Phase::kConv2Backward, 2, tid == 0);
  arrived->wait(0);
  make_dz2<kConvThreads>(items, item, 0, tid);
  wgmma_publish();
  __syncthreads();  // dz2 and the pixel lists of the first item are made
  trace(s, Phase::kConv2Backward, 3, tid == 0);

  if (group < 2) {
    give_registers<Images::kDgradRegisters>();
    dgrad_role(images, tid);
  } else if (group == 2) {
    take_registers<Images::kWeightGradientRegisters>();
    weight_gradient_role(images, tid - 2 * kGroupThreads);
  } else {
    give_registers<Images::kMakeDz2Registers>();
    make_dz2_role(images, tid - 3 * kGroupThreads, second_sample);
  }
#endif
}

}  // namespace mnist::fused
