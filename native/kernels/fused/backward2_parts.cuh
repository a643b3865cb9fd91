// B2 in tf32 and fp32 on Hopper, by wgmma of fp16 parts: see parts.cuh.
//
// What is computed is as in backward2.cuh. A unit of work is half of an image: 7 rows, and the neighbouring one on
// either side; shared memory holds two. Small batches have a block for each half, others do an image's two one after
// the other. Operands lie as wgmma reads them (see wgmma.cuh): [part][chunk of 8 channels][row][slot or column][16
// bytes]. dz2 takes the place of z2, which has the bytes of two parts: the first four channels of a chunk lie where the
// big part will, the others where fp32's small part will.
//
// Roles are warpgroups:
//   0        dgrad, then G
//   1, 2, 3  conv2's weight gradient, a row of taps each; then they form dz2 of the next unit, and 3, once nobody reads
//            this unit any more, starts the copies of the unit after the next
// The tensor cores truncate as they add, so small products come first or by themselves, and what is summed over more
// than a unit is added up outside of them.
#pragma once

#include <algorithm>

#include "kernels/device/wgmma.cuh"
#include "kernels/fused/backward2_wgmma.cuh"

namespace mnist::fused {

template <class P>
struct Backward2PartsShared {
  static constexpr int kParts = P::kParts;
  using Windows = WindowRows<Fp16Operands, kPool1Side / 2>;
  static constexpr int kRows = kPool1Side / 2, kBufferRows = kRows + 2, kCells = 4 * kPool2Side;
  static constexpr int kRowBytes = kSlots * 16;
  static constexpr int kChunks1 = kConv1Channels / 8, kChunks2 = kConv2Channels / 8;
  // Of a stage. Columns -1 and 16 of a1 lie between its chunks. The chunks that a warp of form() reads or writes at a
  // time are in different banks.
  static constexpr int kChunkPitch = kBufferRows * kRowBytes + 16;
  static constexpr int kA1 = 16, kA1Part = kChunks1 * kChunkPitch;
  static constexpr int kDz = kA1 + kParts * kA1Part, kDzPart = kChunks2 * kChunkPitch + 64;
  static constexpr int kWindows = kDz + kDzPart + kChunks2 * kChunkPitch;
  static constexpr int kRoute = kWindows + Windows::kBytes;
  static constexpr int kRouteBytes = kRows * kRoute1Words / kPool1Side * 4;
  static constexpr int kG2 = kRoute + kRouteBytes, kG2Bytes = kCells * kConv2Channels * 4;
  static constexpr int kBytesOfImage = kG2 + kG2Bytes;
  static constexpr int kStage = (kBytesOfImage + kImagePixels + 127) / 128 * 128;
  static constexpr int kFilter = 2 * kStage, kFilterPart = kConv2Values * 2, kFilterBytes = kParts * kFilterPart;
  static constexpr int kPartial = kFilter + kFilterBytes;  // load_bn2_backward()'s sums, later those of G
  static constexpr int kG1Sums = 24;                       // of a thread
  static constexpr int kPartialBytes = kConvThreads / 64 * 2 * kConv2Channels * 8;
  static constexpr int kBytes = kPartial + std::max(kPartialBytes, kG1Sums * kGroupThreads * 4);
  static_assert(kChunkPitch % 128 == 16 && kDzPart % 128 == 64);
  static_assert(kRoute % 16 == 0 && kG2 % 16 == 0 && kBytesOfImage % 16 == 0);
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <class P>
struct Backward2Parts {
  using Shared = Backward2PartsShared<P>;
  static constexpr int kParts = P::kParts;
  static constexpr int kFormThreads = kConvThreads - kGroupThreads;
  static constexpr int kDataRegisters = kParts == 1 ? 128 : 152, kWeightRegisters = kParts == 1 ? 128 : 120;
  static_assert(kDataRegisters + 3 * kWeightRegisters == 4 * 65536 / kConvThreads);
  static constexpr int kCopyBytes = (2 * Shared::kChunks2 + kParts * Shared::kChunks1) * 8 * Shared::kRowBytes +
                                    Shared::kRouteBytes + kImagePixels + Shared::kG2Bytes;
  // G's left operand is da1 in units of 2^17 of what dgrad sums: 576 products, each below 2^15 x 2^7.
  static constexpr float kDa1Unit = 1 << 17;

  const State& s;
  const Bn2Backward& bn;
  unsigned char* shared;
  std::uint64_t *arrived, *formed, *done;  // one a stage: copies; dz2; nobody reads it any more
  int slot, lane;

  // ---- units -------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ bool whole() const { return s.b2_rows == kPool1Side; }
  __device__ __forceinline__ int half_of(int unit) const { return whole() ? unit & 1 : int(blockIdx.x) & 1; }
  // Later units lie lower in the batch: F1 wrote the highest last. Negative behind the last.
  __device__ __forceinline__ int image_of(int unit) const {
    if (!whole()) return unit == 0 ? s.batch - 1 - int(blockIdx.x) / 2 : -1;
    return s.batch - 1 - int(blockIdx.x) - unit / 2 * int(gridDim.x);
  }
  static __device__ __forceinline__ int stage_of(int unit) { return unit & 1; }
  static __device__ __forceinline__ int parity_of(int unit) { return unit >> 1 & 1; }
  __device__ __forceinline__ unsigned char* stage(int unit) const { return shared + stage_of(unit) * Shared::kStage; }
  __device__ __forceinline__ void arrive(std::uint64_t* barriers, int unit) const {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(barriers + stage_of(unit));
  }
  __device__ __forceinline__ void wait(std::uint64_t* barriers, int unit) const {
    mbarrier_wait(barriers + stage_of(unit), parity_of(unit));
  }

  // ---- copies ------------------------------------------------------------------------------------------------------

  // By the first thread of each warp of a warpgroup: what is known before B1 has run, of rows 0 to 7 or 6 to 13 of an
  // image, so that in the lower half's buffer they begin a row higher.
  __device__ __forceinline__ void copy_forward(int unit) const {
    const int warp = threadIdx.x >> 5 & 3, image = image_of(unit), half = half_of(unit);
    if (image < 0 || lane != 0) return;
    const std::uint32_t to = shared_address(stage(unit));
    std::uint64_t* const here = arrived + stage_of(unit);
    // Chunks of `count` from `first` on of z2 or a1, of `of_image` that an image has.
    const auto copy_chunks = [&](const void* tensor, int of_image, int first, int count, auto place) {
      const char* from = static_cast<const char*>(tensor) + (std::size_t(image) * of_image + first) * kChunkedImage +
                         half * 6 * Shared::kRowBytes;
      const std::uint32_t row = to + (1 - half) * Shared::kRowBytes;
#pragma unroll
      for (int i = 0; i < count; ++i)
        copy_bulk(row + place(first + i), from + i * kChunkedImage, 8 * Shared::kRowBytes, here);
    };
    const auto in_dz = [](int i) { return Shared::kDz + (i & 1) * Shared::kDzPart + (i >> 1) * Shared::kChunkPitch; };
    const auto in_a1 = [](int i) { return Shared::kA1 + i * Shared::kChunkPitch; };
    constexpr int kZ2 = 2 * Shared::kChunks2, kA1 = kParts * Shared::kChunks1;
    if (warp == 0) copy_chunks(s.z2, kZ2, 0, kZ2 / 2, in_dz);
    if (warp == 1) copy_chunks(s.z2, kZ2, kZ2 / 2, kZ2 / 2, in_dz);
    if (warp == 2) copy_chunks(s.a1, kA1, 0, kA1, in_a1);
    if (warp == 3) {
      const int sample = s.samples.order[std::size_t(slot) * s.batch + image];
      copy_bulk(
          to + Shared::kRoute,
          reinterpret_cast<const char*>(s.route1 + std::size_t(image) * kRoute1Words) + half * Shared::kRouteBytes,
          Shared::kRouteBytes, here);
      copy_bulk(to + Shared::kBytesOfImage, s.samples.images + std::size_t(sample) * kImagePixels, kImagePixels, here);
    }
  }
  // By one thread: announces all copies of a unit and starts the last.
  __device__ __forceinline__ void copy_gradient(int unit) const {
    if (image_of(unit) < 0) return;
    mbarrier_expect(arrived + stage_of(unit), kCopyBytes);
    copy_bulk(shared_address(stage(unit)) + Shared::kG2,
              static_cast<const float*>(s.g2) +
                  (std::size_t(image_of(unit)) * kCells2 + half_of(unit) * 3 * kPool2Side) * kConv2Channels,
              Shared::kG2Bytes, arrived + stage_of(unit));
  }

  // ---- dz2 ---------------------------------------------------------------------------------------------------------

  // dz2 over z2, and the image's pixels from its bytes. `bn` is in dz2's units.
  __device__ __forceinline__ void form(int unit, int thread) const {
    unsigned char* const here = stage(unit);
    const int half = half_of(unit);
    if (thread < 16 * 7) {  // 16 rows of the padded image
      const int row = thread / 7, y = kPool1Side * half + row - 1;
      if (y >= 0 && y < kImageSide)
        Shared::Windows::store_word(
            here + Shared::kWindows, row, thread % 7,
            reinterpret_cast<const std::uint32_t*>(here + Shared::kBytesOfImage)[y * 7 + thread % 7]);
    }
    constexpr int kQuads = kConv2Channels / 4;
#pragma unroll 1
    for (int i = thread; i < Shared::kCells * kQuads; i += kFormThreads) {  // whole warps
      const int quad = i % kQuads, cell = i / kQuads, cy = cell / kPool2Side, cx = cell % kPool2Side;
      unsigned char* const corner =
          here + Shared::kDz + (quad >> 1) * Shared::kChunkPitch + (2 * cy + 1 - half) * Shared::kRowBytes;
      const auto at = [&](int position) {
        return (position >> 1) * Shared::kRowBytes + slot_of(2 * cx + 1 + (position & 1)) * 16;
      };
      float z[4][4], g2[4];
#pragma unroll
      for (int position = 0; position < 4; ++position)
        *reinterpret_cast<float4*>(z[position]) =
            *reinterpret_cast<const float4*>(corner + (quad & 1) * Shared::kDzPart + at(position));
      *reinterpret_cast<float4*>(g2) =
          *reinterpret_cast<const float4*>(here + Shared::kG2 + (cell * kQuads + quad) * 16);
      if (s.route2) tell_routing<P>(s, bn, image_of(unit), half * 3 * kPool2Side + cell, quad, z);
      __syncwarp();  // what one lane overwrites another has read
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int channel = 4 * quad + c;
        const float alpha = bn.alpha[channel], kappa = bn.kappa[channel], routed = bn.scale[channel] * g2[c];
        const float best = fmaxf(fmaxf(z[0][c], z[1][c]), fmaxf(z[2][c], z[3][c]));
        bool found = false;
#pragma unroll
        for (int position = 0; position < 4; ++position) {
          const bool here = !found && (position == 3 || z[position][c] == best);  // the first of equals wins
          found |= here;
          z[position][c] = fmaf(kappa, z[position][c], alpha) + (here ? routed : 0.f);
        }
      }
#pragma unroll
      for (int position = 0; position < 4; ++position) {
        __half2 low[kParts], high[kParts];
        split(z[position][0], z[position][1], low);
        split(z[position][2], z[position][3], high);
        unsigned char* const to = corner + at(position) + (quad & 1) * 8;
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const __half2 four[2] = {low[part], high[part]};
          *reinterpret_cast<uint2*>(to + part * Shared::kDzPart) = *reinterpret_cast<const uint2*>(four);
        }
      }
    }
    kernels::device::wgmma_publish();
    arrive(formed, unit);
  }

  // ---- dgrad and G -------------------------------------------------------------------------------------------------

  // As Backward2Wgmma::dgrad(), four shifts at a time. In the filter, taps of a row lie in the order 2, 1, 0, so that
  // the second and the third shift find theirs for both planes in one piece. The other two, which want zeros for one of
  // the planes, get their rows through registers, where zeros cost no memory: they come last, because such a product
  // holds up its warps. `zeros` is the address of 16 bytes of them.
  __device__ __forceinline__ void dgrad(float (&d)[28], std::uint32_t dz, std::uint32_t zeros, int warp) const {
    using namespace kernels::device;
    constexpr int kSteps = Shared::kChunks2 / 2, kFours = 3 * kSteps, kTap = kConv1Channels * 16, kPiece = 3 * kTap;
    const int plane = warp >> 1;
    const std::uint32_t filter = shared_address(shared) + Shared::kFilter;
    const std::uint32_t own = filter + (lane >> 4) * kPiece + ((warp & 1) * 16 + (lane & 15)) * 16;
    const std::uint64_t weights = wgmma_operand(filter, kPiece, 8 * 16);
    const std::uint64_t pixels = wgmma_operand(dz, Shared::kChunkPitch, Shared::kRowBytes);
    float sum[28], small[28];
    std::uint32_t a[kParts][2][4];
#pragma unroll
    for (int n = 0; n < kFours; ++n) {
      const int step = n % kSteps, u = n / kSteps;
      const auto piece = [&](int part) {
        return part * Shared::kFilterPart + (u * Shared::kChunks2 + 2 * step) * kPiece;
      };
      const auto input = [&](int shift, int part) {  // column 2j - 1 + shift
        const int slot = shift == 0 ? 7 : shift == 1 ? 0 : shift == 2 ? 8 : 1;
        return pixels +
               (u * Shared::kRowBytes + slot * 16 + 2 * step * Shared::kChunkPitch + part * Shared::kDzPart) / 16;
      };
      // Left and right parts of the second and third shift's products, or of the first and last one's.
      const auto multiply_inner = [&](float (&to)[28], int left, int right, bool first_adds) {
        wgmma_fp16(to, weights + (piece(left) + kTap) / 16, input(1, right), first_adds);
        wgmma_fp16(to, weights + piece(left) / 16, input(2, right), true);
      };
      const auto multiply_outer = [&](float (&to)[28], int left, int right) {
        wgmma_fp16(to, a[left][0], input(0, right), true);
        wgmma_fp16(to, a[left][1], input(3, right), true);
      };
      const auto load_outer = [&] {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          load_matrix_x4(a[part][0], plane == 0 ? own + piece(part) + 2 * kTap : zeros);
          load_matrix_x4(a[part][1], plane == 0 ? zeros : own + piece(part));
        }
      };
      wgmma_fence();
      if constexpr (kParts == 1) {  // every other four have a sum of their own
        auto& to = n % 2 == 0 ? d : sum;
        multiply_inner(to, 0, 0, n >= 2);
        wgmma_commit();
        wgmma_wait<1>();
        load_outer();
        wgmma_fence();
        multiply_outer(to, 0, 0);
        wgmma_commit();
      } else {  // big products are taken out of the tensor cores each time, while small ones run
        multiply_inner(small, 1, 0, n > 0);
        multiply_inner(small, 0, 1, true);
        multiply_inner(sum, 0, 0, false);
        wgmma_commit();
        wgmma_wait<1>();
        load_outer();
        wgmma_fence();
        multiply_outer(sum, 0, 0);
        wgmma_commit();
        wgmma_fence();
        multiply_outer(small, 1, 0);
        multiply_outer(small, 0, 1);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_results(sum);
#pragma unroll
        for (int i = 0; i < 28; ++i) d[i] += sum[i];
        wgmma_results(d);
      }
    }
    wgmma_wait<0>();
    wgmma_results(d);
    auto& other = kParts == 1 ? sum : small;
    wgmma_results(other);
#pragma unroll
    for (int i = 0; i < 28; ++i) d[i] += other[i];
  }

  // As Backward2Wgmma::accumulate_g1(), of parts of da1. The sums are in shared memory, 24 a thread.
  __device__ __forceinline__ void accumulate_g1(float* g1, const float (&da1)[28], const std::uint32_t (&route)[7],
                                                std::uint32_t rows) const {
    using namespace kernels::device;
    using Windows = Shared::Windows;
    const std::uint64_t pixels = wgmma_operand(rows, Windows::kCellsBytes, 8 * Windows::kRowBytes);
    __half2 parts[kParts][14];
#pragma unroll
    for (int i = 0; i < 14; ++i) {
      __half2 two[kParts];
      split(da1[2 * i] / kDa1Unit, da1[2 * i + 1] / kDa1Unit, two);
#pragma unroll
      for (int part = 0; part < kParts; ++part) parts[part][i] = two[part];
    }
    // The products of two rows of cells at a time; with two parts their sums are then taken out of the tensor cores.
    constexpr int kBuffers = 3 - kParts;
    float sum[2][12];
    std::uint32_t a[kBuffers][2][kParts][2][4];  // [][dx][part][dy]
    const auto add = [&] {
#pragma unroll
      for (int dx = 0; dx < 2; ++dx) {
        wgmma_results(sum[dx]);
#pragma unroll
        for (int i = 0; i < 12; ++i) g1[(12 * dx + i) * kGroupThreads] += sum[dx][i];
      }
    };
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const int first = pair == 0 ? 0 : 2 * pair - 1;
      if (pair >= kBuffers) wgmma_wait<kBuffers - 1>();
      if (kParts == 2 && pair > 0) add();
      auto& left = a[pair % kBuffers];
#pragma unroll
      for (int position = 0; position < 4; ++position)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = first + i / 2;
          const std::uint32_t mask = permute_bytes(route[row] << position, i & 1 ? 0xbbaa : 0x9988);
#pragma unroll
          for (int part = 0; part < kParts; ++part)
            left[position % 2][part][position / 2][i] =
                pair == 0 && i >= 2 ? 0
                                    : mask & *reinterpret_cast<const std::uint32_t*>(&parts[part][2 * row + (i & 1)]);
        }
      wgmma_fence();
#pragma unroll
      for (int part = kParts - 1; part >= 0; --part)
#pragma unroll
        for (int position = 0; position < 4; ++position) {
          const int dx = position % 2, dy = position / 2;
          const int at = first * Windows::kCellsBytes + dx * 2 * Windows::kListBytes + dy * Windows::kRowBytes;
          const bool begins = part + 1 == kParts && dy == 0 && (kParts == 2 || pair == 0);
          wgmma_fp16(sum[dx], left[dx][part][dy], pixels + at / 16, !begins);
        }
      wgmma_commit();
    }
    wgmma_wait<0>();
    add();
  }

  __device__ __forceinline__ void data_role(float dz_unit, float weight_unit, std::uint64_t* filter_arrived) const {
    const int warp = kernels::device::uniform(threadIdx.x >> 5), half = warp & 1, plane = warp >> 1;
    auto* const g1 = reinterpret_cast<float*>(shared + Shared::kPartial) + threadIdx.x;
    for (int i = 0; i < Shared::kG1Sums; ++i) g1[i * kGroupThreads] = 0.f;
    mbarrier_wait(filter_arrived, 0);
    for (int unit = 0; image_of(unit) >= 0; ++unit) {
      wait(formed, unit);
      const std::uint32_t here = shared_address(stage(unit));
      float da1[28] = {};
      dgrad(da1, here + Shared::kDz, here, warp);
      std::uint32_t route[7];
#pragma unroll
      for (int row = 0; row < 7; ++row)
        route[row] = load_shared_32(here + Shared::kRoute + ((row * 2 + half) * 64 + plane * 32 + lane) * 4);
      accumulate_g1(g1, da1, route, here + Shared::kWindows);
      arrive(done, unit);
    }
    float sums[2][12];
#pragma unroll
    for (int i = 0; i < Shared::kG1Sums; ++i) sums[i / 12][i % 12] = g1[i * kGroupThreads];
    barrier_sync<kGroupThreads>(1);  // nobody reads the filter any more
    store_g1_sums<1>(s, reinterpret_cast<float*>(shared + Shared::kFilter), sums, dz_unit * weight_unit * kDa1Unit);
  }

  // ---- the weight gradient -----------------------------------------------------------------------------------------

  // Rows are conv2's channels, columns conv1's, k the 16 columns of an image row in their order. Tap row `u`.
  __device__ __forceinline__ void weight_role(int u, float unit_of_sums) const {
    using namespace kernels::device;
    const int thread = threadIdx.x - kGroupThreads, warp = uniform(threadIdx.x >> 5 & 3);
    const std::uint32_t own =
        Shared::kDz + (2 * warp + (lane >> 3 & 1)) * Shared::kChunkPitch + slot_of((lane >> 4) * 8 + (lane & 7)) * 16;
    wait(arrived, 0);
    form(0, thread);
    float sums[3][16] = {};
    const auto add = [&](float (&dw)[3][16]) {
#pragma unroll
      for (int i = 0; i < 48; ++i) {
        if (i % 16 == 0) wgmma_results(dw[i / 16]);
        sums[i / 16][i % 16] += dw[i / 16][i % 16];
        if (i % 16 == 15) wgmma_results(sums[i / 16]);
      }
    };
    for (int unit = 0; image_of(unit) >= 0; ++unit) {
      wait(formed, unit);
      const std::uint32_t here = shared_address(stage(unit));
      const std::uint64_t a1 =
          wgmma_operand(here + Shared::kA1 - 16 + u * Shared::kRowBytes, 8 * 16, Shared::kChunkPitch);
      float dw[3][16];
      std::uint32_t dz[4][4];
      const auto load = [&](int row, int part, int to) {
        load_matrix_x4_trans(dz[to], here + own + (row + 1) * Shared::kRowBytes + part * Shared::kDzPart);
      };
      const auto multiply = [&](int row, int from, int part_of_a1, bool adds) {
#pragma unroll
        for (int v = 0; v < 3; ++v)
          wgmma_fp16_columns(dw[v], dz[from], a1 + (row * Shared::kRowBytes + part_of_a1 * Shared::kA1Part) / 16 + v,
                             adds);
      };
      // The small products of all rows, two at a time, then the big ones in two sums of up to four. (Without the braces
      // nvcc 13.0 drops both loops where kParts is 1.)
      if constexpr (kParts == 2) {
#pragma unroll
        for (int first = 0; first < Shared::kRows; first += 2) {
          if (first > 0) wgmma_wait<0>();
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (first + i / 2 < Shared::kRows) load(first + i / 2, i % 2, i);
          wgmma_fence();
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (first + i / 2 < Shared::kRows) multiply(first + i / 2, i, 1 - i % 2, first + i > 0);
          wgmma_commit();
        }
      }
#pragma unroll
      for (int first = 0; first < Shared::kRows; first += 4) {
        if (kParts == 2 || first > 0) wgmma_wait<0>();
        if (kParts == 2 && first > 0) add(dw);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (first + i < Shared::kRows) load(first + i, 0, i);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (first + i < Shared::kRows) multiply(first + i, i, 0, i > 0 || (kParts == 2) == (first == 0));
        wgmma_commit();
      }
      wgmma_wait<0>();
      arrive(done, unit);
      add(dw);
      if (image_of(unit + 1) >= 0) {
        wait(arrived, unit + 1);
        form(unit + 1, thread);
      }
      if (u == 2 && image_of(unit + 2) >= 0) {
        wait(done, unit);
        wgmma_publish();  // what was written there before comes before
        if (threadIdx.x == kConvThreads - 32) copy_gradient(unit + 2);
        copy_forward(unit + 2);
        __syncwarp();
      }
    }
#pragma unroll
    for (int i = 0; i < 48; ++i) sums[i / 16][i % 16] *= unit_of_sums;
#pragma unroll
    for (int v = 0; v < 3; ++v) store_weight_sums(s, 3 * u + v, sums[v], warp, lane);
  }
};

#endif

template <class P>
__global__ void __launch_bounds__(kConvThreads, 1) backward2_parts_kernel(State s, int slot) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using namespace kernels::device;
  using Shared = Backward2PartsShared<P>;
  using Roles = Backward2Parts<P>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Bn2Backward bn;
  __shared__ std::uint64_t arrived[2], formed[2], done[2], filter_arrived;
  const int tid = threadIdx.x, lane = tid & 31, warp = uniform(tid >> 5);
  const Roles roles{s, bn, shared, arrived, formed, done, slot, lane};

  for (int i = tid; i < 2 * Shared::kStage / 16; i += kConvThreads)
    reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
  if (tid == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      mbarrier_init(arrived + stage, 1);
      mbarrier_init(formed + stage, Roles::kFormThreads / 32);
      mbarrier_init(done + stage, kConvThreads / 32);
    }
    mbarrier_init(&filter_arrived, 1);
  }
  __syncthreads();
  for (int stage = 0; stage < 2; ++stage)
    Shared::Windows::clear(shared + stage * Shared::kStage + Shared::kWindows, tid);
  wgmma_publish();
  __syncthreads();
  if (warp < kGroupThreads / 32) {
    for (int unit = 0; unit < 2; ++unit) roles.copy_forward(unit);
    if (tid == 0) {
      mbarrier_expect(&filter_arrived, Shared::kFilterBytes);
      copy_bulk(shared_address(shared) + Shared::kFilter, s.conv2_pieces, Shared::kFilterBytes, &filter_arrived);
    }
    __syncwarp();
  }
  if (blockIdx.x == 0 && warp == 15) {  // for U, which changes the weights
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kConv2Values / 1024; ++i) largest = fmaxf(largest, s.conv2_max[i * 32 + lane]);
    const float unit = conv2_unit_of(warp_max(largest));
    if (lane == 0) s.conv2_units[1] = unit;
  }
  const float weight_unit = s.conv2_units[0], pixel_unit = a1_unit(s, lane);
  const auto meanwhile = [&] {
    if (tid == 0)
      for (int unit = 0; unit < 2; ++unit) roles.copy_gradient(unit);
  };
  load_bn2_backward<true>(s, bn, reinterpret_cast<double (*)[2][kConv2Channels]>(shared + Shared::kPartial), meanwhile);
  const float largest = fmaxf(bn.largest[0], bn.largest[1]), dz_unit = largest > 0 ? unit_of<15>(largest) : 1.f;
  if (tid < kConv2Channels) {
    bn.scale[tid] /= dz_unit, bn.shift[tid] /= dz_unit;
    bn.alpha[tid] /= dz_unit, bn.kappa[tid] /= dz_unit;
  }
  __syncthreads();
  if (warp < kGroupThreads / 32) {
    take_registers<Roles::kDataRegisters>();
    roles.data_role(dz_unit, weight_unit, &filter_arrived);
  } else {
    give_registers<Roles::kWeightRegisters>();
    roles.weight_role(warp / 4 - 1, dz_unit * pixel_unit);
  }
#endif
}

}  // namespace mnist::fused
