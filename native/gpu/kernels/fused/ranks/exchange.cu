// The exchanges of a step between ranks: sums of a rank's blocks, given to all, and the ranks' parts added in order.
#include "cuda/check.h"
#include "cuda/delays.h"
#include "kernels/device/dependent_launch.cuh"
#include "kernels/fused/ranks/exchange.h"
#include "kernels/fused/shared/scales.cuh"

namespace mnist::fused {
namespace {

constexpr int kBlock = 512;

// Element i of an array of this rank's part, to wherever the part goes.
template <class Part, class Array>
__device__ __forceinline__ void give(const RankSums& parts, Array Part::* array, int i,
                                     std::remove_extent_t<Array> value) {
  for (int k = 0; k < parts.targets; ++k) (static_cast<Part*>(parts.to[k])->*array)[i] = parts.counts ? value : 0;
}
template <class Part, class Array>
__device__ __forceinline__ void give4(const RankSums& parts, Array Part::* array, int i4, float4 value) {
  if (!parts.counts) value = {};
  for (int k = 0; k < parts.targets; ++k)
    reinterpret_cast<float4*>(static_cast<Part*>(parts.to[k])->*array)[i4] = value;
}

// What groups of threads have added up of a column.
template <class T, int kGroups, int kColumns>
__device__ __forceinline__ T sum_of_groups(const T (&partial)[kGroups][kColumns], int column) {
  T sum = 0;
  for (int k = 0; k < kGroups; ++k) sum += partial[k][column];
  return sum;
}

// ((rank 0 + rank 1) + rank 2) + ... of an element. From L2: other GPUs wrote it while this kernel ran.
template <class Part, class Array>
__device__ __forceinline__ auto sum_of_ranks(const RankSums& parts, Array Part::* array, int i) {
  const auto of = [&](int rank) { return __ldcg(&(static_cast<const Part*>(parts.all)[rank].*array)[i]); };
  auto total = of(0);
  for (int rank = 1; rank < parts.size; ++rank) total += of(rank);
  return total;
}
template <class Part, class Array>
__device__ __forceinline__ float4 sum4_of_ranks(const RankSums& parts, Array Part::* array, int i4) {
  const auto of = [&](int rank) {
    return __ldcg(reinterpret_cast<const float4*>(static_cast<const Part*>(parts.all)[rank].*array) + i4);
  };
  float4 total = of(0);
  for (int rank = 1; rank < parts.size; ++rank) {
    const float4 x = of(rank);
    total.x += x.x, total.y += x.y, total.z += x.z, total.w += x.w;
  }
  return total;
}

// Between giving and taking, for all threads of a block: its piece is everywhere, and so are the other ranks' here.
// A rank cannot write to a place that another still reads: between two rounds of an exchange lie rounds of the other
// two, for which it waits.
__device__ __forceinline__ void meet(const RankSums& parts) {
  if (!parts.rounds[0]) return;
  __shared__ std::uint32_t round;
  const int other = threadIdx.x, place = blockIdx.x * kMostPeers;
  if (threadIdx.x == 0) round = parts.rounds[parts.rank][place + parts.rank] + 1;
  __syncthreads();
  if (other < parts.size) {
    std::uint32_t* const theirs = parts.rounds[other] + place + parts.rank;
    const std::uint32_t* const mine = parts.rounds[parts.rank] + place + other;
    asm volatile("fence.acq_rel.sys;\n\tst.relaxed.sys.global.u32 [%0], %1;" ::"l"(theirs), "r"(round) : "memory");
    std::uint32_t seen;
    do asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(mine) : "memory");
    while (seen != round);
  }
  __syncthreads();
}

constexpr int kZ2Groups = kBlock / (2 * kConv2Channels / 4);

// One block.
__global__ void __launch_bounds__(kBlock)
    exchange_z2_kernel(Totals* to, const float* z2_sums, int rows, RankSums parts) {
  constexpr int kColumns = 2 * kConv2Channels;
  __shared__ double partial[kZ2Groups][kColumns];
  const int tid = threadIdx.x, column4 = tid % (kColumns / 4), group = tid / (kColumns / 4);
  wait_for_predecessor();
  if (parts.gives) {
    double total[4] = {};
    for_rows<kZ2Groups, 9>(
        rows, group,
        [&](int row) { return reinterpret_cast<const float4*>(z2_sums + std::size_t(row) * kColumns)[column4]; },
        [&](float4 x, int) { total[0] += x.x, total[1] += x.y, total[2] += x.z, total[3] += x.w; });
    for (int i = 0; i < 4; ++i) partial[group][column4 * 4 + i] = total[i];
    __syncthreads();
    if (tid < kColumns) give(parts, &Z2Sums::sums, tid, sum_of_groups(partial, tid));
  }
  meet(parts);
  if (!parts.takes || tid >= kColumns) return;
  const double sum = sum_of_ranks(parts, &Z2Sums::sums, tid);
  to->z2_sums[tid] = float(sum);
  to->z2_sums[kColumns + tid] = float(sum - double(float(sum)));
}

// Blocks: dy2_sums, moment_sums, and 256 of head_sums each.
constexpr int kHeadPieces = (kHeadValues + 255) / 256, kDy2Blocks = 2 + kHeadPieces;

__global__ void __launch_bounds__(kBlock) exchange_dy2_kernel(Totals* to, State s, RankSums parts) {
  __shared__ union {
    double dy2[kBlock / 128][128];
    double moments[kBlock / 64][64];
    alignas(16) float head[kBlock / 64][256];
  } partial;
  const int tid = threadIdx.x, block = blockIdx.x;
  wait_for_predecessor();
  if (block == 0) {
    constexpr int kGroups = kBlock / 128;
    const int column = tid & 127, which = column / kConv2Channels, channel = column % kConv2Channels;
    if (parts.gives) {
      double total = 0;
      for_rows<kGroups, (kCells2 + kGroups - 1) / kGroups>(
          kCells2, tid >> 7, [&](int cell) { return s.dy2_sums[(which * kCells2 + cell) * kConv2Channels + channel]; },
          [&](float x, int) { total += x; });
      partial.dy2[tid >> 7][column] = total;
      __syncthreads();
      if (tid < 128) give(parts, &Dy2Sums::sums, tid, sum_of_groups(partial.dy2, tid));
    }
    meet(parts);
    if (!parts.takes || tid >= 128) return;
    const double sum = sum_of_ranks(parts, &Dy2Sums::sums, tid);
    float* const cells = to->dy2_sums + which * kFeatures + channel;
    cells[0] = float(sum);
    cells[kConv2Channels] = float(sum - double(float(sum)));
  } else if (block == 1) {
    constexpr int kGroups = kBlock / 64;
    if (parts.gives) {
      const int column = tid & 63;
      double total = 0;
      for_rows<kGroups, 6>(
          s.head_blocks, tid >> 6,
          [&](int row) { return s.moment_sums[std::size_t(row) * kMoments + min(column, kMoments - 1)]; },
          [&](double x, int) { total += x; });
      partial.moments[tid >> 6][column] = total;
      __syncthreads();
      if (tid < kMoments) give(parts, &Dy2Sums::moments, tid, sum_of_groups(partial.moments, tid));
    }
    meet(parts);
    if (parts.takes && tid < kMoments) to->moment_sums[tid] = sum_of_ranks(parts, &Dy2Sums::moments, tid);
  } else {
    constexpr int kGroups = kBlock / 64;
    const int i = (block - 2) * 256 + tid;
    const bool mine = tid < 256 && i < kHeadValues;
    if (parts.gives) {
      const int column = tid & 63, column4 = min((block - 2) * 64 + column, kHeadValues / 4 - 1);
      float4 total = {};
      for_rows<kGroups, 6>(
          s.head_blocks, tid >> 6,
          [&](int row) {
            return reinterpret_cast<const float4*>(s.head_sums + std::size_t(row) * kHeadValues)[column4];
          },
          [&](float4 x, int) { total.x += x.x, total.y += x.y, total.z += x.z, total.w += x.w; });
      reinterpret_cast<float4*>(partial.head[tid >> 6])[column] = total;
      __syncthreads();
      if (mine) give(parts, &Dy2Sums::head, i, sum_of_groups(partial.head, tid));
    }
    meet(parts);
    if (parts.takes && mine) to->head_sums[i] = sum_of_ranks(parts, &Dy2Sums::head, i);
  }
}

// Blocks: 48 float4 columns of conv2_sums each, 32 of routed_tap_sums, and a piece of fc1.weight.
constexpr int kConv2Columns4 = 48, kConv2Groups4 = kBlock / kConv2Columns4,
              kConv2Pieces = kConv2Values / (4 * kConv2Columns4);
constexpr int kTapColumns4 = 32, kTapGroups = kBlock / kTapColumns4, kTapPieces = kRoutedTapValues / (4 * kTapColumns4);
constexpr int kFc1Each = 2, kFc1Pieces = kHidden * kFeatures / (4 * kBlock * kFc1Each);
constexpr int kGradientBlocks = kConv2Pieces + kTapPieces + kFc1Pieces;
static_assert(kFc1Pieces * 4 * kBlock * kFc1Each == kHidden * kFeatures && kGradientBlocks <= kMostExchangeBlocks);

// A piece of a sum of rows: `rows` rows of kWidth values, kColumns float4 columns of them.
template <int kColumns, int kGroups, int kLoads, class Array>
__device__ __forceinline__ void exchange_rows(float* to, const float* sums, int rows, int piece, const RankSums& parts,
                                              Array GradientSums::* array, float4 (*partial)[kColumns]) {
  constexpr int kWidth = int(sizeof(Array) / sizeof(float));
  const int tid = threadIdx.x, column = tid % kColumns, group = tid / kColumns, column4 = piece * kColumns + column;
  if (parts.gives) {
    if (group < kGroups) {  // all but a last warp
      float4 total = {};
      for_rows<kGroups, kLoads>(
          rows, group,
          [&](int row) { return reinterpret_cast<const float4*>(sums + std::size_t(row) * kWidth)[column4]; },
          [&](float4 x, int) { total.x += x.x, total.y += x.y, total.z += x.z, total.w += x.w; });
      partial[group][column] = total;
    }
    __syncthreads();
    if (tid < kColumns) {
      float4 sum = partial[0][tid];
      for (int k = 1; k < kGroups; ++k) {
        const float4 x = partial[k][tid];
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
      }
      give4(parts, array, column4, sum);
    }
  }
  meet(parts);
  if (parts.takes && tid < kColumns) reinterpret_cast<float4*>(to)[column4] = sum4_of_ranks(parts, array, column4);
}

template <class P>
__global__ void __launch_bounds__(kBlock, 2) exchange_gradients_kernel(Totals* to, State s, RankSums parts) {
  __shared__ union {
    float4 conv2[kConv2Groups4][kConv2Columns4];
    float4 taps[kTapGroups][kTapColumns4];
    float largest[kBlock / 32];
  } partial;
  const int block = blockIdx.x;
  wait_for_predecessor();
  if (block < kConv2Pieces)
    return exchange_rows<kConv2Columns4, kConv2Groups4, 14>(to->conv2_sums, s.conv2_sums, s.conv2_backward_blocks,
                                                            block, parts, &GradientSums::conv2, partial.conv2);
  if (block < kConv2Pieces + kTapPieces)
    return exchange_rows<kTapColumns4, kTapGroups, 9>(to->routed_tap_sums, s.routed_tap_sums, s.conv2_backward_blocks,
                                                      block - kConv2Pieces, parts, &GradientSums::routed_taps,
                                                      partial.taps);
  constexpr auto weight_at = kParameters[kFc1Weight].offset;
  static_assert(weight_at % 4 == 0);
  const int first = (block - kConv2Pieces - kTapPieces) * kBlock * kFc1Each + int(threadIdx.x);
  if (parts.gives)
#pragma unroll
    for (int k = 0; k < kFc1Each; ++k) {
      const int i4 = first + k * kBlock;
      give4(parts, &GradientSums::fc1, i4, reinterpret_cast<const float4*>(s.gradients + weight_at)[i4]);
    }
  meet(parts);
  if (!parts.takes) return;
  const float learning_rate = *s.learning_rate;
  float largest = 0;
#pragma unroll
  for (int k = 0; k < kFc1Each; ++k) {
    const int i4 = first + k * kBlock;
    float4& weights = reinterpret_cast<float4*>(s.parameters + weight_at)[i4];
    const float4 d = sum4_of_ranks(parts, &GradientSums::fc1, i4);
    float4 w = weights;
    w.x -= learning_rate * d.x, w.y -= learning_rate * d.y, w.z -= learning_rate * d.z, w.w -= learning_rate * d.w;
    weights = w;
    auto* const stored = static_cast<typename P::T*>(s.fc1) + 4 * i4;
    const float to_stored = P::kScaled ? inverse_of(s.scales[kNextFc1Scale]) : 1.f;
    reinterpret_cast<typename P::Pair*>(stored)[0] = P::pack(to_stored * w.x, to_stored * w.y);
    reinterpret_cast<typename P::Pair*>(stored)[1] = P::pack(to_stored * w.z, to_stored * w.w);
    largest = fmaxf(largest, fmaxf(fmaxf(fabsf(w.x), fabsf(w.y)), fmaxf(fabsf(w.z), fabsf(w.w))));
  }
  if constexpr (P::kScaled) {  // in place of what fc1_backward left, of the weights before
    static_assert(kFc1Pieces == 2 * kCells2);
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0) partial.largest[threadIdx.x / 32] = largest;
    __syncthreads();
    if (threadIdx.x < kGradientWarps)
      s.fc1_max()[(block - kConv2Pieces - kTapPieces) * kGradientWarps + threadIdx.x] =
          fmaxf(partial.largest[threadIdx.x], partial.largest[threadIdx.x + kGradientWarps]);
  }
}

// As launch() of launch.cpp, for kernels that are no rows of a table.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), int blocks, bool overlap, cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(kBlock);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  cuda::random_delay();
  MNIST_CHECK(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

}  // namespace

void begin_exchanges() { kernels::device::seed_delays(); }

void exchange_z2(Totals* to, const State& from, const RankSums& parts, cudaStream_t stream) {
  launch(exchange_z2_kernel, 1, from.overlap, stream, to, from.z2_sums, from.conv_forward_blocks, parts);
}

void exchange_dy2(Totals* to, const State& from, const RankSums& parts, cudaStream_t stream) {
  launch(exchange_dy2_kernel, kDy2Blocks, from.overlap, stream, to, from, parts);
}

void exchange_gradients(Precision precision, Totals* to, const State& from, const RankSums& parts,
                        cudaStream_t stream) {
  const auto kernel = precision == Precision::kBf16   ? exchange_gradients_kernel<Policy<Precision::kBf16>>
                      : precision == Precision::kTf32 ? exchange_gradients_kernel<Policy<Precision::kTf32>>
                                                      : exchange_gradients_kernel<Policy<Precision::kFp32>>;
  launch(kernel, kGradientBlocks, from.overlap, stream, to, from, parts);
}

}  // namespace mnist::fused
