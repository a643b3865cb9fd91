// conv_forward on Hopper: as mma.cuh, with conv2, and for large batches conv1, by wgmma.
#pragma once

#include "kernels/device/registers.cuh"
#include "kernels/fused/conv_forward/wgmma_products.cuh"
#include "kernels/fused/shared/phase.cuh"

namespace mnist::fused {

// Shared memory of both kernels. What the products address by numbers is derived from the structs.
template <class P>
struct ConvForwardWgmmaShared {
  using Operands = WgmmaOperands<P>;
  struct Stage {
    unsigned char a1[Operands::kA1Bytes];
    alignas(128) std::uint32_t route[kRoute1Words];  // in the order of State::route1
  };
  static constexpr int kRoute = offsetof(Stage, route), kStage = sizeof(Stage);
  // Small batches.
  struct Memory {
    Stage stage;
    unsigned char filter[Operands::kFilterBytes];
    union {
      unsigned char pixels[kImageBytes];
      float warp_sums[kConvWarps][2][16];  // later
    };
  };
  // Large batches: two stages, in 16 bits each with a copy of a1 in conv2_backward's layout; two patches; and in 16
  // bits, for each warpgroup of the second role, an image of z2 and pooled_z2 on its way out, with a cell for values
  // that lie in no window.
  static constexpr bool kCopies = sizeof(typename P::T) == 2;
  static constexpr int kCopyBytes = kCopies ? Operands::kChunks * kChunkedImage : 0, kRolesStage = kStage + kCopyBytes;
  static constexpr int kZ2Bytes = kConv2Channels / 8 * kChunkedImage, kPooledZ2Cell = kConv2Channels * 2;
  static constexpr int kOutputBytes = kCopies ? kZ2Bytes + (kCells2 + 1) * kPooledZ2Cell : 0;
  struct RolesMemory {
    unsigned char stages[2 * kRolesStage];
    unsigned char filter[Operands::kFilterBytes];
    union {
      unsigned char images[2 * kImageBytes];
      float warp_sums[kConvWarps][2][16];  // of the second role, at the end
    };
    unsigned char patches[2 * kPatchBytes];
    // then kOutputBytes for each warpgroup of the second role
  };
  static constexpr int kOutput = sizeof(RolesMemory), kRolesBytes = kOutput + 2 * kOutputBytes;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// a1 and its routing to global memory, for conv2_backward, in 16-byte chunks: the rows are cut into kPieces, of which
// this is number `piece`. (The role that makes a1 does not store it itself: wgmma_publish() would wait for that.)
template <class P, int kThreads, int kPieces>
__device__ __forceinline__ void store_stage(const State& s, const unsigned char* stage, int image, int tid, int piece) {
  using Operands = WgmmaOperands<P>;
  constexpr int kRoutes = kRoute1Words / 4 / kPieces;
  if constexpr (P::kFp16Terms > 0) {
    constexpr int kRows = kPool1Side / kPieces, kCount = Operands::kFp16Terms * Operands::kChunks * kRows * 16;
#pragma unroll 2
    for (int i = tid; i < kCount; i += kThreads) {
      const int plane = i / (kRows * 16), at = (piece * kRows + i / 16 % kRows) * 16 + i % 16;
      static_cast<uint4*>(
          s.a1)[(std::size_t(image) * Operands::kFp16Terms * Operands::kChunks + plane) * (kChunkedImage / 16) + at] =
          *reinterpret_cast<const uint4*>(stage + plane * Operands::kPlane + Operands::kRow + at * 16);
    }
  } else {
    constexpr int kOfChunk = kChunkedImage / 16, kOfPiece = kOfChunk / kPieces, kCount = Operands::kChunks * kOfPiece;
#pragma unroll 2  // registers are scarce
    for (int i = tid; i < kCount; i += kThreads) {
      const int chunk = i / kOfPiece, at = piece * kOfPiece + i % kOfPiece;
      const int row = at / 16, slot = at % 16, column = 2 * (slot % 8) + slot / 8;
      static_cast<uint4*>(s.a1)[(std::size_t(image) * Operands::kChunks + chunk) * kOfChunk + at] =
          *reinterpret_cast<const uint4*>(stage + chunk * Operands::kPlane + (row + 1) * Operands::kRow + column * 16);
    }
  }
#pragma unroll 2
  for (int i = piece * kRoutes + tid; i < (piece + 1) * kRoutes; i += kThreads)
    reinterpret_cast<uint4*>(s.route1)[std::size_t(image) * (kRoute1Words / 4) + i] =
        reinterpret_cast<const uint4*>(stage + ConvForwardWgmmaShared<P>::kRoute)[i];
}

// In large batches the copy engine stores a1 with its routing, then z2 with pooled_z2, from a stage or a copy; one
// thread calls this. L2 cannot hold all of it until conv2_backward: in 16 bits L2 gives up a1 and z2 first, so that
// pooled_z2 stays for the phases in between.
template <class P>
__device__ __forceinline__ void store_a1_bulk(const State& s, int image, std::uint32_t stage) {
  using Shared = ConvForwardWgmmaShared<P>;
  using Operands = WgmmaOperands<P>;
  constexpr int kPlanes = Operands::kFp16Terms * Operands::kChunks;
  const auto part_of = [&](void* tensor, int bytes) { return static_cast<char*>(tensor) + std::size_t(image) * bytes; };
  if constexpr (P::kFp16Terms > 0)
#pragma unroll 1
    for (int plane = 0; plane < kPlanes; ++plane)
      store_bulk(part_of(s.a1, kPlanes * kChunkedImage) + plane * kChunkedImage,
                 stage + plane * Operands::kPlane + Operands::kRow, kChunkedImage);
  else
    store_bulk_evict_first(part_of(s.a1, Shared::kCopyBytes), stage + Shared::kStage, Shared::kCopyBytes);
  store_bulk(part_of(s.route1, kRoute1Words * 4), stage + Shared::kRoute, kRoute1Words * 4);
  store_bulk_commit();
}
template <class P>
__device__ __forceinline__ void store_z2_bulk(const State& s, int image, std::uint32_t output) {
  using Shared = ConvForwardWgmmaShared<P>;
  const auto part_of = [&](void* tensor, int bytes) { return static_cast<char*>(tensor) + std::size_t(image) * bytes; };
  store_bulk_evict_first(part_of(s.z2, Shared::kZ2Bytes), output, Shared::kZ2Bytes);
  store_bulk(part_of(s.pooled_z2, kCells2 * Shared::kPooledZ2Cell), output + Shared::kZ2Bytes,
             kCells2 * Shared::kPooledZ2Cell);
  store_bulk_commit();
}

// The filter by the copy engine; only one thread calls this. `arrived` is an mbarrier of one arrival.
template <class P>
__device__ __forceinline__ void copy_filter(unsigned char* shared, const void* packed, MBarrier& arrived) {
  arrived.expect(WgmmaOperands<P>::kFilterBytes);
  copy_bulk(shared_address(shared), packed, WgmmaOperands<P>::kFilterBytes, arrived);
}

#endif

// Of a thread of conv_forward_wgmma_kernel(). In 16 bits its block leaves registers for one of fc, which starts beside
// it, and none for another one of its own: while update still fills other multiprocessors, two would share one, and be
// late. (The code of bf16 needs fewer; but a kernel with setmaxnreg gets exactly as many as __maxnreg__ says.)
template <class P>
inline constexpr int kSmallConvRegisters = sizeof(typename P::T) == 4 ? 128
                                           : P::kScaled               ? 88
                                                                      : 72;

// Small batches: as conv_forward_kernel(). A warpgroup makes 8 rows (or the last 6) of half of the columns.
template <class P, int kHalves>
__global__ void __maxnreg__(kSmallConvRegisters<P>) conv_forward_wgmma_kernel(State s, int graph_step) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Shared = ConvForwardWgmmaShared<P>;
  using Operands = WgmmaOperands<P>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ MBarrier arrived;
  const int tid = threadIdx.x, lane = tid & 31, warp = uniform(tid >> 5);
  const int image = kHalves == 1 ? blockIdx.x / 2 : blockIdx.x, half = kHalves == 1 ? blockIdx.x & 1 : 0;
  auto& memory = *reinterpret_cast<typename Shared::Memory*>(shared);
  unsigned char *const a1 = memory.stage.a1, *const filter = memory.filter, *const pixels = memory.pixels;

  if constexpr (sizeof(typename P::T) == 2) give_registers<kSmallConvRegisters<P>>();
  trace(s, Phase::kConvForward, 0, tid == 0);
  const std::uint32_t word = tid < kImageWords ? load_image_word(s, graph_step, image, tid) : 0;
  Conv2Columns<P, 8> conv2(s, kHalves == 1 ? 8 * half : warp / 8 * 8, warp >> 2 & 1, warp & 3, lane);
  if (tid == 0) arrived.init(1);
  for (int i = tid; i < Operands::kA1Bytes / 16; i += kConvThreads)
    reinterpret_cast<uint4*>(a1)[i] = make_uint4(0, 0, 0, 0);
  clear_images<P>(pixels, 1);
  __syncthreads();  // the padding is complete before the image overwrites its interior
  if (tid < kImageWords) store_image_word<P>(pixels, tid, word);

  wait_for_predecessor();  // update: filters and bn1
  trace(s, Phase::kConvForward, 1, tid == 0);
  if (tid == 0) copy_filter<P>(filter, s.conv2_forward, arrived);
  Conv1<P> conv1;
  const int channel0 = (warp & 1) * 16;
  conv1.load(s.conv1, s.bn1, channel0, lane);
  if constexpr (kHasScales<P>) conv1.divide(a1_scale(s, lane));
  if constexpr (P::kFp16Terms > 0) conv2.load_scale(s);
  __syncthreads();  // the image is complete
  trace(s, Phase::kConvForward, 2, tid == 0);
  const int first_row = 7 * half, rows = kHalves == 2 ? kPool1Side : half == 0 ? 9 : 7;
#pragma unroll 1
  for (int i = warp >> 1; i < 2 * rows; i += kConvWarps / 2) {
    const int cy = first_row + i / 2, plane = i & 1;
    conv1.half_row(shared_address(pixels), cy, plane, lane, [&](const auto& cells, std::uint32_t route) {
      const A1ChunkPlace<P> place{a1 + (cy + 1) * Operands::kRow, plane};
      store_a1<P>(cells, channel0, plane, lane, place);
      memory.stage.route[(cy * 2 + (warp & 1)) * 64 + plane * 32 + lane] = route;
    });
  }
  wgmma_publish();
  __syncthreads();  // a1 is complete, and nobody reads the image any more
  trace(s, Phase::kConvForward, 3, tid == 0);

  auto* const warp_sums = memory.warp_sums;
  if (kHalves == 2 || warp < kRoleThreads / 32) {
    arrived.wait(0);
    trace(s, Phase::kConvForward, 4, tid == 0);
    conv2.start(shared_address(a1), shared_address(filter));
    if (kHalves == 2) store_stage<P, kConvThreads, 1>(s, shared, image, tid, 0);
    if constexpr (P::kScaled) conv2.load_scale(s), conv2.begin(s, image);  // while the products run
    wgmma_wait<0>();
    wgmma_results(conv2.acc);
    trace(s, Phase::kConvForward, 5, tid == 0);
    conv2.store(s, image);
    conv2.add_columns(warp_sums[warp]);
    trace(s, Phase::kConvForward, 6, tid == 0);
  } else {
    store_stage<P, kRoleThreads, 2>(s, shared, image, tid - kRoleThreads, half);
  }
  __syncthreads();  // the warps' sums are complete
  store_z2_sums<2 * kHalves>(s, warp_sums, tid);
  trace(s, Phase::kConvForward, 7, tid == 0);
#endif
}

// Large batches: as conv_forward_roles_kernel(). The second role's two warpgroups take turns at the images, and the
// copy engine stores an image's a1 while conv2's products of it run.
//   16 bits  The first role's warpgroups take turns, too, each for its partner in the second role: two images are under
//            way in either role.
//   fp32     Both warpgroups of the first role make one image, a half each, and gather the patches of the next one
//            while conv1's products run.
template <class P, class Models>
__global__ void __launch_bounds__(kConvThreads, 1) conv_forward_wgmma_roles_kernel(Models models, int graph_step) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const auto& s = state_of_block(models);
  using Shared = ConvForwardWgmmaShared<P>;
  constexpr bool kTurns = sizeof(typename P::T) == 2;             // of the first role
  constexpr int kMakers = kTurns ? kGroupThreads : kRoleThreads;  // threads that make a1 of an image
  using Makers = NamedBarrier<1, kMakers, 2>;                     // without turns only the first is used
  using Full = NamedBarrier<3, kMakers + kGroupThreads, 2>;       // a1 of a stage
  using Free = NamedBarrier<5, kMakers + kGroupThreads, 2>;
  using SecondRole = NamedBarrier<7, kRoleThreads>;
  using End = NamedBarrier<8, kConvThreads>;
  using Output = NamedBarrier<9, kGroupThreads, 2>;  // of a warpgroup of the second role
  constexpr int kFirstRegisters = P::kScaled ? 112 : 104, kSecondRegisters = 256 - kFirstRegisters;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ MBarrier arrived;
  const int lane = threadIdx.x & 31, tid = threadIdx.x % kRoleThreads, warp = uniform(tid >> 5), group = warp >> 2;
  const bool first_role = uniform(threadIdx.x / kRoleThreads) == 0;
  auto& memory = *reinterpret_cast<typename Shared::RolesMemory*>(shared);
  const auto stage_at = [&](int stage) { return memory.stages + stage * Shared::kRolesStage; };
  const auto patches_at = [&](int stage) { return memory.patches + stage * kPatchBytes; };

  // Of the first role: which of its makers this thread belongs to, and the images that they take.
  const int makers = kTurns ? group : 0, maker = tid % kMakers;
  const int first_image = blockIdx.x + makers * gridDim.x, step = (kTurns ? 2 : 1) * gridDim.x;
  unsigned char* const pixels = memory.images + makers * kImageBytes;
  // An image: a word or two a thread, fetched ahead.
  constexpr int kWords = (kImageWords + kMakers - 1) / kMakers;
  std::uint32_t words[kWords] = {};
  const auto for_words = [&](auto call) {
#pragma unroll
    for (int k = 0; k < kWords; ++k)
      if (const int i = maker + k * kMakers; i < kImageWords) call(words[k], i);
  };
  const auto fetch = [&](int image) {
    if (image < s.batch)
      for_words([&](std::uint32_t& word, int i) { word = load_image_word(s, graph_step, image, i); });
  };
  trace(s, Phase::kConvForward, 0, threadIdx.x == 0);
  if (first_role) fetch(first_image);
  if (threadIdx.x == 0) arrived.init(1);
  for (int i = threadIdx.x; i < int(sizeof memory.stages) / 16; i += kConvThreads)
    reinterpret_cast<uint4*>(memory.stages)[i] = make_uint4(0, 0, 0, 0);
  clear_images<P>(memory.images, 2);
  wgmma_publish();  // zeros around a1, by both roles
  __syncthreads();
  const auto store_image = [&](int next) {
    for_words([&](std::uint32_t word, int i) { store_image_word<P>(pixels, i, word); });
    fetch(next);
  };
  if (first_role) {
    store_image(first_image + step);
    Makers::sync(makers);  // the first image is complete
    gather_patches<kMakers>(patches_at(makers), pixels, maker);
    wgmma_publish();
  }

  wait_for_predecessor();  // update: filters and bn1
  trace(s, Phase::kConvForward, 1, threadIdx.x == 0);
  auto* const warp_sums = memory.warp_sums;
  if (first_role) {
    give_registers<kFirstRegisters>();
    const Conv1Columns<P> conv1(s, warp & 3, lane);
    using Sums = typename Conv1Columns<P>::Sums;
    const auto gather_next = [&](int stage) {
      int own = maker;
      asm volatile("" : "+r"(own));  // opaque to the compiler, which would keep all addresses, and spill them
      gather_patches<kMakers>(patches_at(stage), pixels, own);
    };
    const auto multiply = [&](Sums(&acc)[2], int stage, int row) {
      conv1.start(acc, shared_address(patches_at(stage)), row);
    };
    if constexpr (kTurns) {
      constexpr int kRows = Conv1Columns<P>::kRows, kPieces = kPatchRows / kRows;
      constexpr int kAhead = kRows < kPool1Side ? 1 : 0;  // pieces whose products run while another one is finished
      unsigned char* const here = stage_at(group);
      for (int image = first_image; image < s.batch; image += step) {
        Sums acc[1 + kAhead][2];
        const TracedItem traced(s, Phase::kConvForward, {.first = 16, .points = 10, .from = 4, .to = 6},
                                (image - first_image) / step, tid == 0);
        traced(0);
        Makers::sync(group);  // the patches are complete and nobody reads the image any more
        traced(1);
        multiply(acc[0], group, 0);
        store_image(image + 2 * step);
        traced(2);
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          auto& sums = acc[piece % (1 + kAhead)];
          if (const int next = piece + kAhead; 0 < next && next < kPieces)
            multiply(acc[next % (1 + kAhead)], group, next * kRows);
          if (piece + 1 < kPieces)
            wgmma_wait<kAhead>();
          else
            wgmma_wait<0>();
          wgmma_results(sums[0]), wgmma_results(sums[1]);
          if (piece == 0) {
            traced(3);
            if (image >= step) Free::sync(group);  // conv2 and the copy engine have read this stage
            traced(4);
          } else if (piece == kPieces - 1) {
            traced(6);
            Makers::sync(group);  // nobody reads the patches any more, and the next image is complete
          }
          conv1.template finish<0>(sums, here, piece * kRows);
          if (piece == 0) traced(5);
        }
        traced(7);
        wgmma_publish();
        Full::arrive(group);
        traced(8);
        gather_next(group);
        wgmma_publish();
        traced(9);
      }
    } else {
      const int first_row = group * kPool1Side;  // of patches
      const auto products = [&](Sums(&acc)[2]) {
        wgmma_wait<0>();
        wgmma_results(acc[0]), wgmma_results(acc[1]);
      };
      int stage = 0;
      for (int image = first_image; image < s.batch; image += step, stage ^= 1) {
        unsigned char* const here = stage_at(stage);
        Sums acc[2];
        Makers::sync();  // the patches are complete and nobody reads the image any more
        store_image(image + 2 * step);
        if (image >= 2 * step) Free::sync(stage);  // conv2 and the copy engine have read this stage
        multiply(acc, stage, first_row);
        Makers::sync();  // the next image is complete
        gather_next(stage ^ 1);
        products(acc);
        conv1.template finish<0>(acc, here, first_row);
        if constexpr (constexpr int kRows = Conv1Columns<P>::kRows; kRows < kPool1Side) {
          multiply(acc, stage, first_row + kRows);
          products(acc);
          conv1.template finish<kRows>(acc, here, first_row);
        }
        wgmma_publish();
        Full::arrive(stage);
      }
    }
    End::arrive();  // nobody reads the image or patches any more
  } else {
    // The warpgroups take turns, an image each: one's products run while the other stores.
    take_registers<kSecondRegisters>();
    if (tid == 0) copy_filter<P>(memory.filter, s.conv2_forward, arrived);
    Conv2Columns<P, kPool1Side> left(s, 0, 0, warp & 3, lane), right(s, 0, 1, warp & 3, lane);
    left.load_scale(s), right.load_scale(s);
    arrived.wait(0);
    unsigned char* const stage = stage_at(group);
    const int thread = tid % kGroupThreads, second_step = 2 * gridDim.x;
    const std::uint32_t output = shared_address(shared) + Shared::kOutput + group * Shared::kOutputBytes;
    for (int image = blockIdx.x + group * gridDim.x; image < s.batch; image += second_step) {
      const TracedItem traced(s, Phase::kConvForward, {.first = 40, .points = 10, .from = 4, .to = 6},
                              (image - blockIdx.x - group * gridDim.x) / second_step, tid == 0);
      traced(0);
      Full::sync(group);  // a1 is complete
      traced(1);
      if (thread == 0) store_a1_bulk<P>(s, image, shared_address(stage));
      left.begin(s, image), right.begin(s, image);
      left.start(shared_address(stage), shared_address(memory.filter));
      right.start(shared_address(stage), shared_address(memory.filter));
      traced(2);
      wgmma_wait<0>();
      traced(3);
      if (thread == 0) store_bulk_wait_read();  // of this stage, and of the output before
      traced(4);
      if (image + second_step < s.batch) Free::arrive(group);
      wgmma_results(left.acc);
      wgmma_results(right.acc);
      if constexpr (Shared::kCopies) {
        Output::sync(group);  // the copy engine has read the last output
        traced(5);
        left.store_shared(output);
        right.store_shared(output);
        traced(6);
        wgmma_publish();
        Output::sync(group);  // the output is complete
        traced(7);
        if (thread == 0) store_z2_bulk<P>(s, image, output);
        traced(8);
      } else {
        left.store(s, image);
        right.store(s, image);
      }
    }
    if (thread == 0) store_bulk_wait();
    End::sync();  // the sums take the images' place
    left.add_columns(warp_sums[8 * group + (warp & 3)]);
    right.add_columns(warp_sums[8 * group + 4 + (warp & 3)]);
    SecondRole::sync();  // the warps' sums are complete
    store_z2_sums<4>(s, warp_sums, tid);
    trace(s, Phase::kConvForward, 7, tid == 0);
  }
#endif
}

}  // namespace mnist::fused
