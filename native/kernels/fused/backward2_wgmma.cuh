// B2 of whole images in bf16 on Hopper, whose wgmma multiplies faster than mma.sync and needs few
// instructions.
//
// What is computed and what a block owns is as in backward2.cuh. Operands lie as wgmma reads them (see wgmma.cuh):
// chunks of 8 channels apart, [chunk][row][slot][16 bytes]. Roles are warpgroups:
//   0, 1  dgrad of 7 image rows each, then G of them
//   2     conv2's weight gradient, all of it in registers over all units
//   3     waits for the copies of a unit, forms dz2 where z2 was while the others work on the unit before, and once
//         they are done with that starts the copies that take its place
//
// dgrad: rows of a product are conv1's 32 channels at the outputs of plane 0, then of plane 1; columns the 8 slots of 7
// image rows. Output columns x' = 2j and 2j + 1 need input columns 2j - 1, 2j, 2j + 1 and 2j + 2: four shifts of the
// input instead of three taps, in the first of which plane 1 and in the last plane 0 meets zeros in the filter.
//
// Weight gradient: rows are conv2's channels, columns conv1's, k the 16 slots of an image row. The slots of a1 that
// meet plane 0 and plane 1 of dz2 begin at AlignedShift::at(0, v) and at(1, v). Their distance is negative in taps v =
// 0 and 2, and there plane 1 comes first.
#pragma once

#include "kernels/device/wgmma.cuh"
#include "kernels/fused/backward2.cuh"

namespace mnist::fused {

// The lists of Quads as wgmma reads them. For each of kCellRows rows of cells: 4 rows of ones, then of each of the 6
// lists the 4 rows of the image that the cells' windows see; behind the last, ones again. A row is 8 pixels of 16 bits,
// the k of a product, and 24 of them are its columns: at position (dy, 0) from row dy of the ones on, which are
// followed by lists 0 to 4; at (dy, 1) from row dy of list 1 on, and the ones come last. So column 4 l + u is tap row u
// of the l-th list there, and u = 3 means nothing; the last such column lies behind the end.
template <class P, int kCellRows>
struct WindowRows {
  static constexpr int kRowBytes = 16, kListBytes = 4 * kRowBytes, kCellsBytes = 7 * kListBytes;
  static constexpr int kBytes = kCellRows * kCellsBytes + kListBytes;

  // Word j of row y of the padded image, counted from the first that a window sees.
  static __device__ __forceinline__ void store_word(unsigned char* rows, int y, int j, std::uint32_t word) {
    auto* here =
        reinterpret_cast<typename P::Pixel*>(rows + (y >> 1) * kCellsBytes + kListBytes + (y & 1) * kRowBytes) + j;
    Quads<P>::spread(word, [&](int list, int at, typename P::Pixel v) {
      auto* to = here + list * (kListBytes / 2) + at;
      if (y < 2 * kCellRows) *to = v;
      if (y >= 2) to[(2 * kRowBytes - kCellsBytes) / 2] = v;
    });
  }
  static __device__ __forceinline__ void clear(unsigned char* rows, int tid) {
    const auto one = to_pixel<typename P::Pixel>(1.f);
    const std::uint32_t ones = *reinterpret_cast<const std::uint16_t*>(&one) * 0x10001u;
    for (int i = tid; i < kBytes / kRowBytes; i += kConvThreads) {
      const std::uint32_t two = i % (kCellsBytes / kRowBytes) < 4 ? ones : two_padding_pixels<P>();
      reinterpret_cast<uint4*>(rows)[i] = make_uint4(two, two, two, two);
    }
  }
};

struct Backward2WgmmaShared {
  using P = Policy<Precision::kBf16>;
  using Pixels = WindowRows<P, kPool1Side>;
  static constexpr int kCells = kCells2, kChunks1 = kConv1Channels / kChunk<P>, kChunks2 = kConv2Channels / kChunk<P>;
  // Of a stage. The 8 chunks of a pixel that form() reads and writes at a time lie in different banks.
  static constexpr int kA1ChunkPitch = kSlotsOfImage * 16 + 32;
  static constexpr int kDzPitch = 16, kDzChunkPitch = kSlotsOfImage * kDzPitch + 16;
  static constexpr int kA1 = 0;
  static constexpr int kDz = kA1 + kChunks1 * kA1ChunkPitch;
  static constexpr int kQuads = kDz + kChunks2 * kDzChunkPitch;
  static constexpr int kRoute = kQuads + Pixels::kBytes;
  static constexpr int kG2 = kRoute + kRoute1Words * 4;
  static constexpr int kBytesOfImage = kG2 + kCells2 * kConv2Channels * 2;
  static constexpr int kStage = kBytesOfImage + kImagePixels;
  static constexpr int kPartial = kStage + kRoute;  // as in Backward2Shared
  static constexpr int kFilter = 2 * kStage, kBytes = kFilter + DgradFilter::kBytes;
  static_assert(kStage - kRoute >= kConvThreads / 64 * 2 * kConv2Channels * 8);
  static_assert(kA1ChunkPitch % 128 == 32 && kDzChunkPitch % 128 == 16 && DgradFilter::kPieceBytes % 128 == 16);
  static_assert(kQuads % 16 == 0 && kRoute % 16 == 0 && kG2 % 16 == 0 && kStage % 16 == 0);
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// G from the sums of 4 kGroups warps, each of 16 channels, a plane and 7 rows, through `parts` in shared memory, which
// nobody else uses any more.
template <int kGroups>
__device__ __forceinline__ void store_g1_sums(const State& s, float* parts, const float (&g1)[2][12], float unit) {
  constexpr int kValues = kConv1Channels * kG1Columns, kCount = kGroups * kGroupThreads, kBarrier = 1;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, half = warp & 1, plane = warp >> 1 & 1, g = lane >> 2,
            t = lane & 3;
#pragma unroll
  for (int dx = 0; dx < 2; ++dx)
#pragma unroll
    for (int k = 0; k < 12; ++k) {
      const int channel = half * 16 + g + (k >> 1 & 1) * 8, column = k / 4 * 8 + 2 * t + (k & 1);
      const int v = column / 4 - (dx == 0) - 2 * plane, u = column % 4;  // of list dx + 2 plane + v
      const bool is_tap = v >= 0 && v < 3 && u < 3;
      if (is_tap || column == (dx == 0 ? 0 : 20))
        parts[(2 * (warp >> 1) + dx) * kValues + channel * kG1Columns + (is_tap ? 3 * u + v : kTaps)] = g1[dx][k];
    }
  barrier_sync<kCount>(kBarrier);
  for (int i = tid; i < kValues; i += kCount) {
    float sum = 0;
#pragma unroll
    for (int part = 0; part < 4 * kGroups; ++part) sum += parts[part * kValues + i];
    s.g1_sums[std::size_t(blockIdx.x) * kValues + i] = i % kG1Columns <= kTaps ? unit * sum : 0.f;
  }
}

// A tap of conv2's weight gradient, by a warpgroup, as backward2_kernel() stores it: tiles of 16 of conv2's channels by
// 8 of conv1's.
__device__ __forceinline__ void store_weight_sums(const State& s, int tap, const float (&dw)[16], int warp, int lane) {
  auto* to = reinterpret_cast<float4*>(s.conv2_sums + std::size_t(blockIdx.x) * kConv2Values) + tap * kConvThreads;
#pragma unroll
  for (int n = 0; n < 4; ++n)
    to[(warp + 4 * n) * 32 + lane] = make_float4(dw[4 * n], dw[4 * n + 1], dw[4 * n + 2], dw[4 * n + 3]);
}

struct Backward2Wgmma {
  using P = Policy<Precision::kBf16>;
  using Shared = Backward2WgmmaShared;
  using Block = Backward2<P, 14, 2, Shared>;
  static constexpr int kRowBytes = kSlots * 16;                                            // of a chunk
  static constexpr int kDataRegisters = 104, kWeightRegisters = 208, kFormRegisters = 96;  // 4 * 128 together
  static_assert(2 * kDataRegisters + kWeightRegisters + kFormRegisters == 4 * 65536 / kConvThreads);

  const Block& block;
  std::uint64_t *formed, *filter_arrived;  // formed: one a stage

  __device__ __forceinline__ std::uint32_t address_of(int stage) const {
    return shared_address(block.shared) + stage * Shared::kStage;
  }
  // Until dz2 of this unit stands in its stage. The first unit's does before the roles part.
  __device__ __forceinline__ void wait_until_formed(int unit, int stage, int& parity) const {
    if (unit != block.first_unit()) {
      mbarrier_wait(formed + stage, parity);
      if (stage == 0) parity ^= 1;
    }
  }
  // Nobody reads the stage of this unit any more.
  __device__ __forceinline__ void release(int unit, int stage) const {
    if (unit >= 2 * block.stride()) barrier_arrive<kConvThreads>(Block::kDone + stage);
  }

  // Zeros in the rows above and below dz2, which copies leave alone, and padding around an image's pixels. (Nobody
  // reads those rows of a1.)
  __device__ __forceinline__ void clear_padding(int stage, int tid) const {
    unsigned char* const here = block.shared + stage * Shared::kStage;
    for (int i = tid; i < Shared::kChunks2 * 2 * kSlots; i += kConvThreads) {
      const int chunk = i / (2 * kSlots), row = i / kSlots % 2 * (kPool1Side + 1), slot = i % kSlots;
      *reinterpret_cast<uint4*>(here + Shared::kDz + chunk * Shared::kDzChunkPitch + row * kRowBytes + slot * 16) =
          make_uint4(0, 0, 0, 0);
    }
    Shared::Pixels::clear(here + Shared::kQuads, tid);
  }

  // ---- dgrad and G -------------------------------------------------------------------------------------------------

  // da1 of 7 image rows, of which `dz` is the row above: d[4 n + i] is row n, channel g + i / 2 * 8 of the warp's 16,
  // slot 2 t + i % 2 of its plane.
  __device__ __forceinline__ void dgrad(float (&d)[28], std::uint32_t dz) const {
    using namespace kernels::device;
    const std::uint32_t filter =
        shared_address(block.shared) + Shared::kFilter + DgradFilter::kZeroBytes - DgradFilter::kTapBytes;
    const std::uint64_t pixels = wgmma_operand(dz, Shared::kDzChunkPitch, kRowBytes);
    const std::uint64_t weights = wgmma_operand(filter, DgradFilter::kPieceBytes, 8 * 16);
    wgmma_fence();
#pragma unroll
    for (int u = 0; u < 3; ++u)
#pragma unroll
      for (int step = 0; step < Shared::kChunks2 / 2; ++step)
#pragma unroll
        for (int shift = 0; shift < 4; ++shift) {  // input column 2j - 1 + shift
          const int slot = shift == 0 ? 7 : shift == 1 ? 0 : shift == 2 ? 8 : 1;
          const int piece = u * Shared::kChunks2 + 2 * step;
          wgmma_bf16(d, weights + (piece * DgradFilter::kPieceBytes + (3 - shift) * DgradFilter::kTapBytes) / 16,
                     pixels + (u * kRowBytes + slot * 16 + 2 * step * Shared::kDzChunkPitch) / 16,
                     u + step + shift > 0);
        }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(d);
  }

  // Adds G of 7 rows of cells, the first of which begins at `rows`; `da1` as dgrad() returns it, `route` the warp's
  // words of the routing. A product's k are the slots of two rows of cells, and da1, packed, is its left operand. Its
  // columns are the lists of either plane; a warp wants those of its own. At dx = 0 and 1 they are different lists, so
  // these have sums of their own. The first row goes alone.
  __device__ __forceinline__ void accumulate_g1(float (&g1)[2][12], const float (&da1)[28],
                                                const std::uint32_t (&route)[7], std::uint32_t rows) const {
    using namespace kernels::device;
    using Windows = Shared::Pixels;
    constexpr int kInFlight = 3;  // with 4 ptxas serializes the products, for want of registers
    const std::uint64_t pixels = wgmma_operand(rows, Windows::kCellsBytes, 8 * Windows::kRowBytes);
    std::uint32_t a[kInFlight][2][4];
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const int pair = step / 2, dy = step % 2, first = pair == 0 ? 0 : 2 * pair - 1, slot = step % kInFlight;
      if (step >= kInFlight) wgmma_wait<kInFlight - 1>();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first + i / 2, at = 4 * row + 2 * (i & 1);
        if (pair == 0 && i >= 2) {
          a[slot][0][i] = a[slot][1][i] = 0;
          continue;
        }
        const __nv_bfloat162 slots = __floats2bfloat162_rn(da1[at], da1[at + 1]);
        const std::uint32_t packed = *reinterpret_cast<const std::uint32_t*>(&slots);
#pragma unroll
        for (int dx = 0; dx < 2; ++dx)
          a[slot][dx][i] = packed & permute_bytes(route[row] << (2 * dy + dx), i & 1 ? 0xbbaa : 0x9988);
      }
      wgmma_fence();
#pragma unroll
      for (int dx = 0; dx < 2; ++dx) {
        const int at = first * Windows::kCellsBytes + dx * 2 * Windows::kListBytes + dy * Windows::kRowBytes;
        wgmma_bf16(g1[dx], a[slot][dx], pixels + at / 16, true);
      }
      wgmma_commit();
    }
    wgmma_wait<0>();
    wgmma_results(g1[0]);
    wgmma_results(g1[1]);
  }

  __device__ __forceinline__ void data_role(int tid) const {
    const int lane = block.lane, warp = kernels::device::uniform(tid >> 5);
    const int half = warp & 1, plane = warp >> 1 & 1, first_row = (warp >> 2) * 7;
    mbarrier_wait(filter_arrived, 0);
    float g1[2][12] = {};
    int stage = 0, parity = 0;
    for (int unit = block.first_unit(); unit >= 0; unit -= block.stride()) {
      wait_until_formed(unit, stage, parity);
      const std::uint32_t here = address_of(stage);
      const std::uint32_t words = here + Shared::kRoute + ((first_row * 2 + half) * 64 + plane * 32 + lane) * 4;
      std::uint32_t route[7];
#pragma unroll
      for (int row = 0; row < 7; ++row) route[row] = load_shared_32(words + row * (kRoute1Words / kPool1Side * 4));
      float da1[28];
      dgrad(da1, here + Shared::kDz + first_row * kRowBytes);
      accumulate_g1(g1, da1, route, here + Shared::kQuads + first_row * Shared::Pixels::kCellsBytes);
      release(unit, stage);
      stage ^= 1;
    }
    barrier_sync<kRoleThreads>(Block::kDataRole);  // nobody reads the filter any more
    store_g1_sums<2>(block.s, reinterpret_cast<float*>(block.shared + Shared::kFilter), g1, 1.f);
  }

  // ---- the weight gradient -----------------------------------------------------------------------------------------

  __device__ __forceinline__ void weight_role(int tid) const {
    using namespace kernels::device;
    const int lane = block.lane, warp = uniform(tid >> 5);
    const std::uint32_t column = Shared::kDz + (2 * warp + (lane >> 3 & 1)) * Shared::kDzChunkPitch;
    float dw[kTaps][16] = {};
    int stage = 0, parity = 0;
    for (int unit = block.first_unit(); unit >= 0; unit -= block.stride()) {
      wait_until_formed(unit, stage, parity);
      const std::uint32_t here = address_of(stage);
      const std::uint64_t apart = wgmma_operand(here + Shared::kA1, 8 * 16, Shared::kA1ChunkPitch);
      const std::uint64_t swapped = wgmma_operand(here + Shared::kA1, 7 * 16, Shared::kA1ChunkPitch);
      // Row d of dz2 lies at d % 2. Once for each order of the planes: moves would cost more than loads.
      std::uint32_t in_order[2][4], planes_swapped[2][4];
      const auto load = [&](int row) {
        const std::uint32_t slots = here + column + (row * kSlots + (lane & 7)) * Shared::kDzPitch;
        load_matrix_x4_trans(in_order[row & 1], slots + (lane >> 4) * 8 * Shared::kDzPitch);
        load_matrix_x4_trans(planes_swapped[row & 1], slots + (1 - (lane >> 4)) * 8 * Shared::kDzPitch);
      };
      load(1);
#pragma unroll
      for (int row = 1; row <= kPool1Side; ++row) {
        wgmma_fence();
#pragma unroll
        for (int u = 0; u < 3; ++u) {
          const int in = row + u - 1;  // of a1
          if (in < 1 || in > kPool1Side) continue;
          const int at = in * kRowBytes / 16;
          wgmma_bf16_columns(dw[3 * u], planes_swapped[row & 1], swapped + at, true);
          wgmma_bf16_columns(dw[3 * u + 1], in_order[row & 1], apart + at, true);
          wgmma_bf16_columns(dw[3 * u + 2], planes_swapped[row & 1], swapped + at + 1, true);
        }
        wgmma_commit();
        if (row == kPool1Side) break;
        wgmma_wait<1>();
        load(row + 1);
      }
      wgmma_wait<0>();
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) wgmma_results(dw[tap]);
      release(unit, stage);
      stage ^= 1;
    }
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) store_weight_sums(block.s, tap, dw[tap], warp, lane);
  }

  // ---- copies and dz2 ----------------------------------------------------------------------------------------------

  // By one thread. Of a unit, what is known before B1 has run, and g2.
  static constexpr int kForwardBytes =
      (Shared::kChunks1 + Shared::kChunks2) * kChunkedImage + kRoute1Words * 4 + kImagePixels;
  static constexpr int kGradientBytes = kCells2 * kConv2Channels * 2;
  __device__ __forceinline__ void copy_forward(int unit, int sample, int stage) const {
    const State& s = block.s;
    const std::uint32_t to = address_of(stage);
    const auto copy = [&](int at, const void* tensor, std::size_t item, int bytes) {
      copy_bulk(to + at, static_cast<const char*>(tensor) + item * bytes, bytes, block.arrived + stage);
    };
#pragma unroll 1
    for (int chunk = 0; chunk < Shared::kChunks2; ++chunk)
      copy(Shared::kDz + chunk * Shared::kDzChunkPitch + kRowBytes, s.z2, std::size_t(unit) * Shared::kChunks2 + chunk,
           kChunkedImage);
#pragma unroll 1
    for (int chunk = 0; chunk < Shared::kChunks1; ++chunk)
      copy(Shared::kA1 + chunk * Shared::kA1ChunkPitch + kRowBytes, s.a1, std::size_t(unit) * Shared::kChunks1 + chunk,
           kChunkedImage);
    copy(Shared::kRoute, s.route1, unit, kRoute1Words * 4);
    copy(Shared::kBytesOfImage, s.samples.images, sample, kImagePixels);
  }
  __device__ __forceinline__ void copy_gradient(int unit, int stage) const {
    copy_bulk(address_of(stage) + Shared::kG2,
              static_cast<const char*>(block.s.g2) + std::size_t(unit) * kGradientBytes, kGradientBytes,
              block.arrived + stage);
  }
  __device__ __forceinline__ void copy(int unit, int sample, int stage) const {
    kernels::device::wgmma_publish();  // what was written there before comes before
    mbarrier_expect(block.arrived + stage, kForwardBytes + kGradientBytes);
    copy_gradient(unit, stage);
    copy_forward(unit, sample, stage);
  }

  // All of a unit but the image, towards the L2 cache.
  __device__ __forceinline__ void fetch(int unit) const {
    const State& s = block.s;
    const auto fetch = [&](const void* tensor, int bytes) {
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(static_cast<const char*>(tensor) +
                                                                      std::size_t(unit) * bytes),
                   "r"(bytes)
                   : "memory");
    };
    if (unit < 0) return;
    fetch(s.z2, Shared::kChunks2 * kChunkedImage);
    fetch(s.g2, kGradientBytes);
    fetch(s.a1, Shared::kChunks1 * kChunkedImage);
    fetch(s.route1, kRoute1Words * 4);
  }

  // The first unit is formed already.
  __device__ __forceinline__ void form_role(int tid, int second_sample) const {
    const int second = block.first_unit() - block.stride();
    if (tid == 0 && second >= 0) {
      copy(second, second_sample, 1);
      fetch(second - block.stride());
    }
    int stage = 1, parity = 0;
    for (int unit = second; unit >= 0; unit -= block.stride()) {
      // Opaque to the compiler, which would compute all addresses once, before the loop, and spill them.
      int thread = tid;
      asm volatile("" : "+r"(thread));
      const int next = unit - block.stride(), next_sample = block.sample(next, thread);  // thread 0's counts
      block.wait_for_copies(stage, parity);
      if (stage == 1) parity ^= 1;
      block.form<kGroupThreads>(unit, stage, thread);
      kernels::device::wgmma_publish();
      __syncwarp();
      if (block.lane == 0) mbarrier_arrive(formed + stage);
      stage ^= 1;
      if (next >= 0) {
        barrier_sync<kConvThreads>(Block::kDone + stage);
        if (thread == 0) {
          copy(next, next_sample, stage);
          fetch(next - block.stride());
        }
      }
    }
  }
};

#endif

// For Policy<Precision::kBf16> and code of sm_90a.
template <class P>
__global__ void __launch_bounds__(kConvThreads, 1) backward2_wgmma_kernel(State s, int slot) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static_assert(std::is_same_v<P, Backward2Wgmma::P>);
  using Shared = Backward2WgmmaShared;
  using Roles = Backward2Wgmma;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Bn2Backward bn;
  __shared__ std::uint64_t arrived[2], formed[2], filter_arrived;
  const int tid = threadIdx.x, group = kernels::device::uniform(tid / kGroupThreads);
  const Roles::Block block{s, bn, shared, arrived, slot, tid & 31, 0};
  const Roles roles{block, formed, &filter_arrived};

  const int unit = block.first_unit(), second_sample = block.sample(unit - block.stride(), tid % kGroupThreads);
  if (tid == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      mbarrier_init(arrived + stage, 1);
      mbarrier_init(formed + stage, kGroupThreads / 32);
    }
    mbarrier_init(&filter_arrived, 1);
    mbarrier_expect(&filter_arrived, DgradFilter::kBytes);
    roles.copy_forward(unit, block.sample(unit, tid), 0);
    copy_bulk(shared_address(shared) + Shared::kFilter, s.conv2_pieces, DgradFilter::kBytes, &filter_arrived);
  }
  const auto meanwhile = [&] {
    if (tid == 0) {  // only now: the arrival that it counts is the last
      mbarrier_expect(arrived, Roles::kForwardBytes + Roles::kGradientBytes);
      roles.copy_gradient(unit, 0);
    }
    for (int stage = 0; stage < 2; ++stage)
      if (unit >= stage * block.stride()) roles.clear_padding(stage, tid);
  };
  load_bn2_backward(s, bn, reinterpret_cast<double (*)[2][kConv2Channels]>(shared + Shared::kPartial), meanwhile);
  mbarrier_wait(arrived, 0);
  block.form<kConvThreads>(unit, 0, tid);
  kernels::device::wgmma_publish();
  __syncthreads();

  if (group < 2) {
    kernels::device::give_registers<Roles::kDataRegisters>();
    roles.data_role(tid);
  } else if (group == 2) {
    kernels::device::take_registers<Roles::kWeightRegisters>();
    roles.weight_role(tid - 2 * kGroupThreads);
  } else {
    kernels::device::give_registers<Roles::kFormRegisters>();
    roles.form_role(tid - 3 * kGroupThreads, second_sample);
  }
#endif
}

}  // namespace mnist::fused
