// conv2_backward in fp32 on Hopper, by wgmma of fp16 terms: see shared/scales.cuh.
//
// It computes what mma.cuh says. An item of work is half of an image: 7 rows, and the neighbouring one on either side;
// shared memory holds two items. Small batches have a block for each half; in large ones a block makes an image's two
// halves one after the other. Operands lie as wgmma reads them (see device/wgmma.cuh):
// [term][chunk of 8 channels][row][slot or column][16 bytes].
//
// dz2 takes the place of z2, whose floats have the bytes of two terms. For a pixel and a chunk of channels:
//
//   16 bytes of   the big term              the small term
//   first hold    z2 of channels 0-3        z2 of channels 4-7
//   then hold     dz2's big of 0-7          dz2's small of 0-7
//
// Roles are warpgroups:
//   0        dgrad, then the routed taps
//   1, 2, 3  conv2's weight gradient, a row of taps each; then they make dz2 of the next item; 3 starts the copies of
//            the item after the next, once this item's stage is free
// The tensor cores truncate as they add, so small products come first or by themselves, and what is summed over more
// than an item is added up outside of them.
#pragma once

#include "kernels/device/registers.cuh"
#include "kernels/fused/conv2_backward/half_images_products.cuh"
#include "kernels/fused/conv2_backward/make_dz2.cuh"
#include "kernels/fused/conv2_backward/pixel_lists.cuh"
#include "kernels/fused/conv2_backward/store.cuh"

namespace mnist::fused {

template <class P>
struct HalfImagesShared {
  static constexpr int kFp16Terms = P::kFp16Terms;
  using Pixels = PixelListRows<Operand<P>, kPool1Side / 2>;
  static constexpr int kRows = kPool1Side / 2, kBufferRows = kRows + 2, kCells = 4 * kPool2Side;
  static constexpr int kRowBytes = kSlots * 16;
  static constexpr int kChunks1 = kConv1Channels / 8, kChunks2 = kConv2Channels / 8;
  // Columns -1 and 16 of a1 lie between its chunks. The chunks that a warp of make_dz2_terms() reads or writes at a
  // time are in different banks.
  static constexpr int kChunkPitch = kBufferRows * kRowBytes + 16;
  static constexpr int kA1Term = kChunks1 * kChunkPitch, kDzTerm = kChunks2 * kChunkPitch + 64;
  static_assert(kChunkPitch % 128 == 16 && kDzTerm % 128 == 64);
  struct alignas(128) Item {
    unsigned char zeros[16];  // column -1 of a1's first row
    unsigned char a1[kFp16Terms][kA1Term];
    unsigned char dz2[kDzTerm + kChunks2 * kChunkPitch];  // two terms, the last without a gap; first z2
    alignas(16) unsigned char pixel_lists[Pixels::kBytes];
    alignas(16) std::uint32_t route[kRows][kRoute1Words / kPool1Side];
    alignas(16) float dy2[kCells][kConv2Channels];
    alignas(16) std::uint8_t image[kImagePixels];
  };
  static constexpr int kFilterTerm = kConv2Values * 2;
  struct Memory {
    Item stages[2];
    unsigned char filter[kFp16Terms * kFilterTerm];
    double partial[kConvThreads / 64][2][kConv2Channels];  // sums of make_bn2_backward()
  };
  static constexpr int kBytes = sizeof(Memory);
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <class Policy>
struct HalfImages {
  using P = Policy;
  using Shared = HalfImagesShared<P>;
  using Item = typename Shared::Item;
  static constexpr int kFp16Terms = P::kFp16Terms;
  static constexpr int kMakeDz2Threads = kConvThreads - kGroupThreads;
  static constexpr int kDgradRegisters = 152, kWeightGradientRegisters = 120;
  static_assert(kDgradRegisters + 3 * kWeightGradientRegisters == 4 * 65536 / kConvThreads);
  static constexpr int kCopyBytes = (2 * Shared::kChunks2 + kFp16Terms * Shared::kChunks1) * 8 * Shared::kRowBytes +
                                    sizeof(Item::route) + kImagePixels + sizeof(Item::dy2);

  const State& s;
  const Bn2Backward& bn;
  unsigned char* shared;
  Ring<2>&arrived, &dz2_ready, &done;  // an item's copies arrived; its dz2 is made; its stage may be overwritten
  int graph_step, lane;

  // ---- items -------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ bool whole() const { return s.conv2_backward_rows == kPool1Side; }
  __device__ __forceinline__ int half_of(int item) const { return whole() ? item & 1 : int(blockIdx.x) & 1; }
  // A block starts with the end of the batch: conv_forward wrote it last. Negative behind the last item.
  __device__ __forceinline__ int image_of(int item) const {
    if (!whole()) return item == 0 ? s.batch - 1 - int(blockIdx.x) / 2 : -1;
    return s.batch - 1 - int(blockIdx.x) - item / 2 * int(gridDim.x);
  }
  __device__ __forceinline__ unsigned char* stage(int item) const {
    return shared + Ring<2>::stage(item) * int(sizeof(Item));
  }
  __device__ __forceinline__ void arrive(Ring<2>& ring, int item) const {
    __syncwarp();
    if (lane == 0) ring[item].arrive();
  }

  // ---- copies ------------------------------------------------------------------------------------------------------

  // By the first thread of each warp of a warpgroup: what is known before fc1_backward has run, of image rows 0 to 7 or
  // 6 to 13. The buffer has a row above them for the upper half, none for the lower one.
  __device__ __forceinline__ void copy_forward(int item) const {
    const int warp = threadIdx.x >> 5 & 3, image = image_of(item), half = half_of(item);
    if (image < 0 || lane != 0) return;
    const std::uint32_t to = shared_address(stage(item));
    MBarrier& here = arrived[item];
    // `count` chunks of z2 or a1, from `first` on; an image has `of_image`.
    const auto copy_chunks = [&](const void* tensor, int of_image, int first, int count, auto place) {
      const char* from = static_cast<const char*>(tensor) + (std::size_t(image) * of_image + first) * kChunkedImage +
                         half * 6 * Shared::kRowBytes;
      const std::uint32_t row = to + (1 - half) * Shared::kRowBytes;
#pragma unroll
      for (int i = 0; i < count; ++i)
        copy_bulk(row + place(first + i), from + i * kChunkedImage, 8 * Shared::kRowBytes, here);
    };
    const auto in_dz = [](int i) {
      return int(offsetof(Item, dz2)) + (i & 1) * Shared::kDzTerm + (i >> 1) * Shared::kChunkPitch;
    };
    const auto in_a1 = [](int i) { return int(offsetof(Item, a1)) + i * Shared::kChunkPitch; };
    constexpr int kZ2 = 2 * Shared::kChunks2, kA1 = kFp16Terms * Shared::kChunks1, kRouteBytes = sizeof(Item::route);
    if (warp == 0) copy_chunks(s.z2, kZ2, 0, kZ2 / 2, in_dz);
    if (warp == 1) copy_chunks(s.z2, kZ2, kZ2 / 2, kZ2 / 2, in_dz);
    if (warp == 2) copy_chunks(s.a1, kA1, 0, kA1, in_a1);
    if (warp == 3) {
      const int sample = s.samples.order[std::size_t(graph_step) * s.batch + image];
      copy_bulk(to + offsetof(Item, route),
                reinterpret_cast<const char*>(s.route1 + std::size_t(image) * kRoute1Words) + half * kRouteBytes,
                kRouteBytes, here);
      copy_bulk(to + offsetof(Item, image), s.samples.images + std::size_t(sample) * kImagePixels, kImagePixels, here);
    }
  }
  // By one thread: announces all copies of an item and starts the last.
  __device__ __forceinline__ void copy_gradient(int item) const {
    if (image_of(item) < 0) return;
    arrived[item].expect(kCopyBytes);
    copy_bulk(shared_address(stage(item)) + offsetof(Item, dy2),
              static_cast<const float*>(s.dy2) +
                  (std::size_t(image_of(item)) * kCells2 + half_of(item) * 3 * kPool2Side) * kConv2Channels,
              sizeof(Item::dy2), arrived[item]);
  }
};

template <class P>
__device__ __forceinline__ void dgrad_role(const HalfImages<P>& halves, float dz2_scale, float conv2_scale,
                                           MBarrier& filter_arrived) {
  using Shared = HalfImagesShared<P>;
  using Item = typename Shared::Item;
  using Memory = typename Shared::Memory;
  const int warp = uniform(threadIdx.x >> 5), half = warp & 1, plane = warp >> 1;
  float routed_taps[2][12] = {};
  filter_arrived.wait(0);
  for (int item = 0; halves.image_of(item) >= 0; ++item) {
    halves.dz2_ready.wait(item);
    const std::uint32_t here = shared_address(halves.stage(item));
    const TracedItem traced(halves.s, Phase::kConv2Backward, {.first = 16, .points = 4, .from = 8, .to = 12}, item,
                            threadIdx.x == 0);
    traced(0);
    float da1[28] = {};
    dgrad<Shared>(da1, here + offsetof(Item, dz2), shared_address(halves.shared) + offsetof(Memory, filter), warp,
                  halves.lane);
    traced(1);
    std::uint32_t route[7];
#pragma unroll
    for (int row = 0; row < 7; ++row)
      route[row] =
          load_shared_32(here + offsetof(Item, route) + ((row * 2 + half) * 64 + plane * 32 + halves.lane) * 4);
    accumulate_routed_taps<Shared>(routed_taps, da1, route, here + offsetof(Item, pixel_lists));
    traced(2);
    halves.arrive(halves.done, item);
  }
  trace(halves.s, Phase::kConv2Backward, 4, threadIdx.x == 0);
  NamedBarrier<1, kGroupThreads>::sync();  // no warp reads the filter any more
  store_routed_tap_sums<1>(halves.s, reinterpret_cast<float*>(halves.shared + offsetof(Memory, filter)), routed_taps,
                           dz2_scale * conv2_scale);
  trace(halves.s, Phase::kConv2Backward, 7, threadIdx.x == 0);
}

// Tap row `u` of conv2's weight gradient, and a third of dz2's making. Rows are conv2's channels, columns conv1's, k
// the 16 columns of an image row in their order.
template <class P>
__device__ __forceinline__ void weight_gradient_role(const HalfImages<P>& halves, int u, float scale_of_sums) {
  using Shared = HalfImagesShared<P>;
  using Item = typename Shared::Item;
  const int thread = threadIdx.x - kGroupThreads, warp = uniform(threadIdx.x >> 5 & 3);
  const std::uint32_t own = offsetof(Item, dz2) + (2 * warp + (halves.lane >> 3 & 1)) * Shared::kChunkPitch +
                            slot_of((halves.lane >> 4) * 8 + (halves.lane & 7)) * 16;
  const auto make_dz2 = [&](int item) {
    make_dz2_terms(halves, item, thread);
    wgmma_publish();
    halves.arrive(halves.dz2_ready, item);
  };
  halves.arrived.wait(0);
  make_dz2(0);
  float sums[3][16] = {};
  const auto add = [&](float (&dw)[3][16]) {
#pragma unroll
    for (int i = 0; i < 48; ++i) {
      if (i % 16 == 0) wgmma_results(dw[i / 16]);
      sums[i / 16][i % 16] += dw[i / 16][i % 16];
      if (i % 16 == 15) wgmma_results(sums[i / 16]);
    }
  };
  for (int item = 0; halves.image_of(item) >= 0; ++item) {
    halves.dz2_ready.wait(item);
    const std::uint32_t here = shared_address(halves.stage(item));
    const std::uint64_t a1 =
        wgmma_operand(here + offsetof(Item, a1) - 16 + u * Shared::kRowBytes, 8 * 16, Shared::kChunkPitch);
    const TracedItem traced(halves.s, Phase::kConv2Backward, {.first = 32, .points = 8, .from = 8, .to = 12}, item,
                            threadIdx.x == 384);
    traced(0);
    float dw[3][16];
    std::uint32_t dz[2][4];  // terms of a row
    const auto multiply = [&](int row, int term, int term_of_a1, bool adds) {
#pragma unroll
      for (int v = 0; v < 3; ++v)
        wgmma_fp16_columns(dw[v], dz[term], a1 + (row * Shared::kRowBytes + term_of_a1 * Shared::kA1Term) / 16 + v,
                           adds);
    };
    // Each row's two small products and its big one; then the sums leave the tensor cores, which truncate as they add.
#pragma unroll
    for (int row = 0; row < Shared::kRows; ++row) {
      if (row > 0) {
        wgmma_wait<0>();
        add(dw);
      }
      for (int term = 0; term < 2; ++term)
        load_matrix_x4_trans(dz[term], here + own + (row + 1) * Shared::kRowBytes + term * Shared::kDzTerm);
      wgmma_fence();
      multiply(row, 0, 1, false);
      multiply(row, 1, 0, true);
      multiply(row, 0, 0, true);
      wgmma_commit();
    }
    wgmma_wait<0>();
    traced(1);
    halves.arrive(halves.done, item);
    add(dw);
    traced(2);
    if (halves.image_of(item + 1) >= 0) {
      halves.arrived.wait(item + 1);
      traced(3);
      make_dz2(item + 1);
      traced(4);
    }
    if (u == 2 && halves.image_of(item + 2) >= 0) {
      halves.done.wait(item);  // no warp reads this stage any more
      traced(5);
      wgmma_publish();  // orders the threads' reads and writes of the stage before the copies
      if (threadIdx.x == kConvThreads - 32) halves.copy_gradient(item + 2);
      halves.copy_forward(item + 2);
      __syncwarp();
    }
  }
#pragma unroll
  for (int i = 0; i < 48; ++i) sums[i / 16][i % 16] *= scale_of_sums;
#pragma unroll
  for (int v = 0; v < 3; ++v) store_weight_sums(halves.s, 3 * u + v, sums[v], warp, halves.lane);
  trace(halves.s, Phase::kConv2Backward, 8, thread == 0);
}

#endif

// For code of sm_90a.
template <class P, class Models>
__global__ void __launch_bounds__(kConvThreads, 1) conv2_backward_half_images_kernel(Models models, int graph_step) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const auto& s = state_of_block(models);
  using Halves = HalfImages<P>;
  using Shared = typename Halves::Shared;
  using Item = typename Shared::Item;
  using Memory = typename Shared::Memory;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Bn2Backward bn;
  __shared__ Ring<2> arrived, dz2_ready, done;
  __shared__ MBarrier filter_arrived;
  const int tid = threadIdx.x, lane = tid & 31, warp = uniform(tid >> 5);
  const Halves halves{s, bn, shared, arrived, dz2_ready, done, graph_step, lane};

  trace(s, Phase::kConv2Backward, 0, tid == 0);
  for (int i = tid; i < 2 * int(sizeof(Item)) / 16; i += kConvThreads)
    reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
  if (tid == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      arrived.stages[stage].init(1);
      dz2_ready.stages[stage].init(Halves::kMakeDz2Threads / 32);
      done.stages[stage].init(kConvThreads / 32);
    }
    filter_arrived.init(1);
  }
  __syncthreads();  // the stages are clear, the barriers ready
  for (int item = 0; item < 2; ++item) Shared::Pixels::clear(halves.stage(item) + offsetof(Item, pixel_lists), tid);
  wgmma_publish();
  __syncthreads();  // copies do not overtake the zeros
  if (warp < kGroupThreads / 32) {
    for (int item = 0; item < 2; ++item) halves.copy_forward(item);
    if (tid == 0) {
      filter_arrived.expect(sizeof(Memory::filter));
      copy_bulk(shared_address(shared) + offsetof(Memory, filter), s.conv2_dgrad, sizeof(Memory::filter),
                filter_arrived);
    }
    __syncwarp();
  }
  if (blockIdx.x == 0 && warp == 15) choose_conv2_scale(s, lane);  // for update, which changes the weights
  const float conv2_scale = s.scales[kConv2Scale], a1_scale_ = a1_scale(s, lane);
  const auto meanwhile = [&] {
    if (tid == 0)
      for (int item = 0; item < 2; ++item) halves.copy_gradient(item);
  };
  const float dz2_scale = make_bn2_backward<true>(
      s, bn, reinterpret_cast<double (*)[2][kConv2Channels]>(shared + offsetof(Memory, partial)), meanwhile, 1.f);
  trace(s, Phase::kConv2Backward, 2, tid == 0);
  if (warp < kGroupThreads / 32) {
    take_registers<Halves::kDgradRegisters>();
    dgrad_role(halves, dz2_scale, conv2_scale, filter_arrived);
  } else {
    give_registers<Halves::kWeightGradientRegisters>();
    weight_gradient_role(halves, warp / 4 - 1, dz2_scale * a1_scale_);
  }
#endif
}

}  // namespace mnist::fused
