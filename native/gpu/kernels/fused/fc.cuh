// fc: bn2, relu, fc1, fc2, the loss, and back to pool2's output, for small batches in one launch. It replaces
// fc1_forward, head and the dgrad of fc1_backward, whose boundaries cost more than their work. (The weight gradient of
// fc1 is left to update, whose blocks make it while conv2_backward runs.)
//
// A cluster of kFcRanks blocks takes up to kFcRows samples. Each of its blocks has 8 of the 64 channels, in all 49
// cells, and their 98 KiB of fc1.weight, which arrive while conv_forward still runs. So bn2 needs the sums of 8
// channels only.
//   forward    a block makes the part of h that its channels add, of all samples of the cluster, and sends it to the
//              blocks that own the samples, which go on from h to dh
//   backward   a block gets dh of all samples of the cluster from their owners, and makes dy2 of its channels
// Both pass through distributed shared memory, where barriers count the bytes. Row r of a cluster's samples is owned by
// block r % kFcRanks, by its warp r / kFcRanks.
#pragma once

#include "kernels/device/cluster.cuh"
#include "kernels/device/matrix.cuh"
#include "kernels/fused/conv_forward/wgmma.cuh"
#include "kernels/fused/fc1_forward/bn2.cuh"
#include "kernels/fused/head.cuh"

namespace mnist::fused {

inline constexpr int kFcSlots = kFcRows / kFcRanks;  // samples that a block owns
inline constexpr int kFcPairs = (kCells2 + 1) / 2;   // of cells: a k-step of fc1 is a chunk of two
inline constexpr int kFcWeightBytes = kCells2 * kHidden * 16;
inline constexpr int kFcSumRows = 3 * 64;  // blocks of conv_forward at most: each of 64 threads adds up three rows

struct FcMemory {
  static constexpr int kPitch = (2 * kFcPairs + 1) * 16, kDhPitch = kHidden * 2 + 16;  // odd multiples of 16 bytes
  unsigned char weights[2 * kFcPairs * kHidden * 16];  // [cell][hidden unit][8 channels], the cell behind the last 0
  unsigned char z2[kFcRows * kPitch], a2[kFcRows * kPitch];  // [sample][cell][8 channels]
  float h[kFcRanks][kFcSlots][kHidden];                      // parts of the block's own samples, by who made them
  unsigned char dh[kFcRows * kDhPitch];                      // of all samples
  float fc2[kClasses][kHidden];
};
struct FcSums {
  float z2[64][20];                                 // partial sums and squares of the 8 channels; padded
  float scale[8], shift[8], mean[8], inv_sigma[8];  // bn2's; the first two make a2
  float dy2[kFcThreads / 32][2][8], largest[kFcThreads / 32];
  MBarrier weights, h, dh;  // have arrived: of h what this block's samples need
};

// bn2, h, the logits, dh, dy2, and the sums that later phases need: see State. With as many registers as a block of
// conv_forward leaves.
template <class P>
__global__ void __maxnreg__((65536 - kConvThreads * kSmallConvRegisters<P>) / kFcThreads)
    fc_kernel(State s, int graph_step) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static_assert(kFcThreads == 256 && kFcRanks == 8 && kFcRows == 16 && kHidden == 16 * (kFcThreads / 32));
  using T = typename P::T;
  extern __shared__ __align__(128) unsigned char shared[];
  auto& memory = *reinterpret_cast<FcMemory*>(shared);
  __shared__ FcSums sums;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const auto [g, t] = fragment_place(lane);
  const int rank = blockIdx.x % kFcRanks, cluster = blockIdx.x / kFcRanks;
  const int clusters = gridDim.x / kFcRanks, most = (s.batch + clusters - 1) / clusters;  // samples of a cluster
  const int first = cluster * most, count = max(0, min(most, s.batch - first));
  trace(s, Phase::kFc1Forward, 0, tid == 0);

  // ---- before conv_forward has ended ----
  if (tid == 0) {
    sums.weights.init(1), sums.h.init(1), sums.dh.init(1);
    sums.weights.expect(kFcWeightBytes);
    sums.h.expect((rank < count ? (count - 1 - rank) / kFcRanks + 1 : 0) * kFcRanks * kHidden * 4);
    sums.dh.expect(count * kHidden * 2);
    copy_bulk(shared_address(memory.weights),
              static_cast<const T*>(s.fc1_copy) + std::size_t(rank) * kFcWeightBytes / 2, kFcWeightBytes, sums.weights);
  }
  for (int i = tid; i < kHidden; i += kFcThreads)
    reinterpret_cast<uint4*>(memory.weights + kFcWeightBytes)[i] = make_uint4(0, 0, 0, 0);
  if (tid < kFcRows)
    *reinterpret_cast<uint4*>(memory.a2 + tid * FcMemory::kPitch + kCells2 * 16) = make_uint4(0, 0, 0, 0);
  const float* const fc2 = s.parameters + kParameters[kFc2Weight].offset;
  for (int i = tid; i < kClasses * kHidden; i += kFcThreads) (&memory.fc2[0][0])[i] = fc2[i];

  // The sample that a warp owns, and the next batch's pixel moments.
  const int row = warp * kFcRanks + rank, sample = first + row;
  const bool owns = warp < kFcSlots && row < count;
  const int label = owns ? int(s.samples.labels[s.samples.order[std::size_t(graph_step) * s.batch + sample]]) : 0;
  const int moment = tid - (kFcThreads - 64);
  const bool sums_moments = 0 <= moment && moment < kMoments;
  int images[kFcSlots];
#pragma unroll
  for (int k = 0; k < kFcSlots; ++k) {
    const int image = int(blockIdx.x) + k * int(gridDim.x);
    images[k] = sums_moments && image < s.batch ? s.samples.order[std::size_t(graph_step + 1) * s.batch + image] : -1;
  }
  const float4 bias = reinterpret_cast<const float4*>(s.parameters + kParameters[kFc1Bias].offset)[lane];
  const int my_class = lane >> 1;
  const bool stores_class = (lane & 1) == 0 && my_class < kClasses;
  const float class_bias = my_class < kClasses ? s.parameters[kParameters[kFc2Bias].offset + my_class] : 0.f;
  const float upstream = *s.upstream / float(s.batch);
  const int channel = rank * 8 + (tid >> 4 & 7);
  const float gamma = s.parameters[kParameters[kBn2Weight].offset + channel];
  const float beta = s.parameters[kParameters[kBn2Bias].offset + channel];
  Fc1ForwardScales<P> scales;
  scales.begin(s, lane);
  float dh_scale = 1, dy2_scale = 1, dy2_of_sums = 1;
  if constexpr (P::kScaled) {
    // dy2's by what dh cannot exceed, because nobody knows the largest dh of other clusters.
    float of_fc2 = 0;
    for (int i = lane; i < kClasses * kHidden; i += 32) of_fc2 = fmaxf(of_fc2, fabsf(fc2[i]));
    const float largest_dh = 2 * fabsf(upstream) * warp_max(of_fc2);
    const float of_fc1 = largest_of<2 * kCells2 * kGradientWarps>(s.fc1_max(), lane);
    dh_scale = scale_of(largest_dh);
    dy2_scale = scale_of(float(kHidden) * largest_dh * of_fc1);
    dy2_of_sums = dh_scale * s.scales[kFc1Scale] / dy2_scale;
    if (blockIdx.x == 0 && tid == 0) {
      s.scales[kDhScale] = dh_scale;
      s.scales[kDy2Scale] = dy2_scale;
      s.scales[kNextFc1Scale] = weight_scale(of_fc1);
    }
  }
  double moments[kFcSlots];
#pragma unroll
  for (int k = 0; k < kFcSlots; ++k)
    moments[k] = images[k] < 0 ? 0 : s.samples.moments[std::size_t(images[k]) * kMoments + moment];
  cluster_sync();          // all blocks run: their shared memory may be written
  wait_for_predecessor();  // conv_forward: pooled_z2 and the channel sums
  trace(s, Phase::kFc1Forward, 1, tid == 0);

  // ---- bn2 and relu ----
  constexpr int kPieces = (kFcRows * kCells2 + kFcThreads - 1) / kFcThreads;
  uint4 z2[kPieces];
#pragma unroll
  for (int k = 0; k < kPieces; ++k)
    if (const int n = tid + k * kFcThreads; n < count * kCells2)
      z2[k] = *reinterpret_cast<const uint4*>(static_cast<const T*>(s.pooled_z2) +
                                              (std::size_t(first) * kCells2 + n) * kConv2Channels + rank * 8);
  float4 sum = {};
#pragma unroll
  for (int k = 0; k < kFcSumRows / 64; ++k)
    if (const int block = (tid >> 2) + 64 * k; block < s.conv_forward_blocks) {
      const float4 x = *reinterpret_cast<const float4*>(s.z2_sums + std::size_t(block) * 2 * kConv2Channels +
                                                        (tid >> 1 & 1) * kConv2Channels + rank * 8 + (tid & 1) * 4);
      sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
  scales.finish(s, lane);
  *reinterpret_cast<float4*>(&sums.z2[tid >> 2][(tid & 3) * 4]) = sum;
  __syncthreads();  // the partial sums are complete
  if (tid < 128) {  // 16 threads a channel: eight parts of its sum, and of its squares
    const int which = tid & 1, part = tid >> 1 & 7, c = tid >> 4;
    double total = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) total += sums.z2[part + 8 * k][which * 8 + c];
#pragma unroll
    for (int mask = 2; mask < 16; mask <<= 1) total += __shfl_xor_sync(0xffffffffu, total, mask);
    const double other = __shfl_xor_sync(0xffffffffu, total, 1);
    if ((tid & 15) == 0) {
      const Bn2Channel bn = bn2_channel<P>(s, channel, total, other, gamma, beta, scales.z2, cluster == 0);
      sums.scale[c] = P::kScaled ? bn.scale * inverse_of(scales.a2) : bn.scale;
      sums.shift[c] = P::kScaled ? bn.shift * inverse_of(scales.a2) : bn.shift;
      sums.mean[c] = bn.mean, sums.inv_sigma[c] = bn.inv_sigma;
    }
  }
  __syncthreads();  // the constants are complete
  {
    float scale[8], shift[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) scale[i] = sums.scale[i], shift[i] = sums.shift[i];
#pragma unroll
    for (int k = 0; k < kPieces; ++k)
      if (const int n = tid + k * kFcThreads; n < count * kCells2) {
        const int at = n / kCells2 * FcMemory::kPitch + n % kCells2 * 16;
        float x[8];
        unpack<P>(x, z2[k]);
        *reinterpret_cast<uint4*>(memory.z2 + at) = z2[k];
        *reinterpret_cast<uint4*>(memory.a2 + at) = bn2_relu<P>(x, scale, shift);
      }
  }
  __syncthreads();  // a2 is complete
  trace(s, Phase::kFc1Forward, 2, tid == 0);
  if (sums_moments) s.moment_sums[std::size_t(blockIdx.x) * kMoments + moment] = moments[0] + moments[1];
  sums.weights.wait(0);

  // ---- this block's part of h: a warp makes 16 hidden units, in two chains of sums ----
  {
    constexpr int kAtOnce = 5;  // k-steps whose operands are on their way at a time
    static_assert(kFcPairs % kAtOnce == 0);
    float acc[2][2][4] = {};
    const std::uint32_t a_at = shared_address(memory.a2) + a_lane_offset(lane, FcMemory::kPitch);
    const std::uint32_t b_at =
        shared_address(memory.weights) + ((lane >> 3 & 1) * kHidden + warp * 16 + (lane >> 4) * 8 + (lane & 7)) * 16;
#pragma unroll
    for (int first = 0; first < kFcPairs; first += kAtOnce) {
      std::uint32_t a[kAtOnce][4], b[kAtOnce][4];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        load_matrix_x4(a[k], a_at + (first + k) * 32);
        load_matrix_x4(b[k], b_at + (first + k) * 2 * kHidden * 16);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        P::mma(acc[k % 2][0], a[k], b[k][0], b[k][1]);
        P::mma(acc[k % 2][1], a[k], b[k][2], b[k][3]);
      }
    }
    const float scale = P::kScaled ? scales.a2 * scales.fc1 : 1.f;
#pragma unroll
    for (int slot = 0; slot < kFcSlots; ++slot)
      if (slot * kFcRanks + g < count)
#pragma unroll
        for (int n = 0; n < 2; ++n)
          send(&memory.h[rank][slot][warp * 16 + n * 8 + 2 * t], sums.h, g,
               make_uint2(__float_as_uint(scale * (acc[0][n][2 * slot] + acc[1][n][2 * slot])),
                          __float_as_uint(scale * (acc[0][n][2 * slot + 1] + acc[1][n][2 * slot + 1]))));
  }
  trace(s, Phase::kFc1Forward, 3, tid == 0);

  // ---- head: a warp a sample; lane l has hidden units 4l .. and class l / 2 ----
  float4 h[1] = {}, dh = {};
  float d[1] = {}, loss = 0, hits = 0;
  if (owns) {
    float4 w[kClasses];
#pragma unroll
    for (int k = 0; k < kClasses; ++k) w[k] = *reinterpret_cast<const float4*>(&memory.fc2[k][4 * lane]);
    sums.h.wait_for_cluster(0);
    trace(s, Phase::kFc1Forward, 4, tid == 0);
    h[0] = bias;
#pragma unroll
    for (int k = 0; k < kFcRanks; ++k) {
      const float4 x = *reinterpret_cast<const float4*>(&memory.h[k][warp][4 * lane]);
      h[0].x += x.x, h[0].y += x.y, h[0].z += x.z, h[0].w += x.w;
    }
    float score[1];
    classify(h, w, class_bias, {label}, upstream, score, d, loss, hits);
    reinterpret_cast<float4*>(s.h + std::size_t(sample) * kHidden)[lane] = h[0];
    if (stores_class) s.logits[std::size_t(sample) * kClasses + my_class] = score[0];
#pragma unroll
    for (int k = 0; k < kClasses; ++k) {
      const float x = __shfl_sync(0xffffffffu, d[0], 2 * k);
      dh.x = fmaf(x, w[k].x, dh.x), dh.y = fmaf(x, w[k].y, dh.y);
      dh.z = fmaf(x, w[k].z, dh.z), dh.w = fmaf(x, w[k].w, dh.w);
    }
    dh =
        make_float4(h[0].x > 0 ? dh.x : 0.f, h[0].y > 0 ? dh.y : 0.f, h[0].z > 0 ? dh.z : 0.f, h[0].w > 0 ? dh.w : 0.f);
    const auto stored = [&](float x, int unit) {
      return P::kScaled ? round_dh(s, x * inverse_of(dh_scale), sample, 4 * lane + unit) : x;
    };
    const typename P::Pair pairs[2] = {P::pack(stored(dh.x, 0), stored(dh.y, 1)),
                                       P::pack(stored(dh.z, 2), stored(dh.w, 3))};
    const uint2 bits = *reinterpret_cast<const uint2*>(pairs);
#pragma unroll
    for (int k = 0; k < kFcRanks; ++k) send(memory.dh + row * FcMemory::kDhPitch + lane * 8, sums.dh, k, bits);
    *reinterpret_cast<uint2*>(static_cast<T*>(s.dh) + std::size_t(sample) * kHidden + 4 * lane) = bits;
  }
  trace(s, Phase::kFc1Forward, 5, tid == 0);
  // The block's row of head_sums, by a warp that owns no sample, from what the owners leave where their parts of h
  // were: zeros where there is no sample.
  using Head = NamedBarrier<1, 32 * (kFcSlots + 1)>;
  if (warp < kFcSlots) {
    reinterpret_cast<float4*>(memory.h[0][warp])[lane] = h[0];
    reinterpret_cast<float4*>(memory.h[1][warp])[lane] = dh;
    float* const rest = memory.h[2][warp];
    if (stores_class) rest[my_class] = d[0];
    if (lane == 0) rest[kClasses] = loss, rest[kClasses + 1] = hits;
    Head::arrive();
  } else if (warp == kFcSlots) {
    Head::sync();
    float* const to = s.head_sums + std::size_t(blockIdx.x) * kHeadValues;
    const auto add = [](const float4& a, float x, const float4& b, float y) {
      return make_float4(x * a.x + y * b.x, x * a.y + y * b.y, x * a.z + y * b.z, x * a.w + y * b.w);
    };
    const auto of = [&](int row, int slot) { return reinterpret_cast<const float4*>(memory.h[row][slot])[lane]; };
    const float4 first_h = of(0, 0), second_h = of(0, 1);
#pragma unroll
    for (int k = 0; k < kClasses; ++k)
      reinterpret_cast<float4*>(to + k * kHidden)[lane] = add(first_h, memory.h[2][0][k], second_h, memory.h[2][1][k]);
    reinterpret_cast<float4*>(to + kClasses * kHidden)[lane] = add(of(1, 0), 1.f, of(1, 1), 1.f);
    if (lane < kClasses + 2) to[kClasses * kHidden + kHidden + lane] = memory.h[2][0][lane] + memory.h[2][1][lane];
  }
  sums.dh.wait_for_cluster(0);  // then nobody writes here any more, so a block may end
  trace(s, Phase::kFc1Forward, 6, tid == 0);

  // ---- dy2: a warp takes every eighth cell ----
  const float mean[2] = {sums.mean[2 * t], sums.mean[2 * t + 1]};
  float total[2] = {}, total_xhat[2] = {}, largest = 0;
  std::uint32_t a[kHidden / 16][4];
#pragma unroll
  for (int k = 0; k < kHidden / 16; ++k)
    load_matrix_x4(a[k], shared_address(memory.dh) + a_lane_offset(lane, FcMemory::kDhPitch) + k * 32);
  const std::uint32_t b_at = shared_address(memory.weights) + lane * 16;  // 32 hidden units
  // kCount cells at a time, kWarps apart.
  constexpr int kWarps = kFcThreads / 32, kHalf = kHidden / 32;
  const auto make_dy2 = [&]<int kCount>(std::integral_constant<int, kCount>, int cell) {
    float acc[kCount][2][4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t b[kCount][kHalf / 2][4];
#pragma unroll
      for (int n = 0; n < kCount; ++n)
#pragma unroll
        for (int k = 0; k < kHalf / 2; ++k)
          load_matrix_x4_trans(b[n][k], b_at + ((cell + n * kWarps) * kHidden + (half * kHalf / 2 + k) * 32) * 16);
#pragma unroll
      for (int k = 0; k < kHalf / 2; ++k)
#pragma unroll
        for (int n = 0; n < kCount; ++n) {
          const int step = half * kHalf + 2 * k;
          P::mma(acc[n][0], a[step], b[n][k][0], b[n][k][1]);
          P::mma(acc[n][1], a[step + 1], b[n][k][2], b[n][k][3]);
        }
    }
#pragma unroll
    for (int slot = 0; slot < kFcSlots; ++slot) {
      const int of = slot * kFcRanks + g;
      if (of >= count) break;
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        const int at = of * FcMemory::kPitch + (cell + n * kWarps) * 16 + t * 4;
        const float factor = P::kScaled ? dy2_of_sums : 1.f;
        const auto pair = P::pack(factor * (acc[n][0][2 * slot] + acc[n][1][2 * slot]),
                                  factor * (acc[n][0][2 * slot + 1] + acc[n][1][2 * slot + 1]));
        const std::uint32_t word = where_positive<P>(*reinterpret_cast<const std::uint32_t*>(memory.a2 + at),
                                                     reinterpret_cast<const std::uint32_t&>(pair));
        *reinterpret_cast<std::uint32_t*>(static_cast<T*>(s.dy2) +
                                          (std::size_t(first + of) * kCells2 + cell + n * kWarps) * kConv2Channels +
                                          rank * 8 + 2 * t) = word;
        const float2 x = P::unpack_word(word),
                     z = P::unpack_word(*reinterpret_cast<const std::uint32_t*>(memory.z2 + at));
        total[0] += x.x, total_xhat[0] = fmaf(x.x, z.x - mean[0], total_xhat[0]);
        total[1] += x.y, total_xhat[1] = fmaf(x.y, z.y - mean[1], total_xhat[1]);
        if constexpr (P::kScaled) largest = fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y)));
      }
    }
  };
  constexpr int kTogether = 3;
  static_assert(kCells2 % kWarps == 1 && kCells2 / kWarps % kTogether == 0);
#pragma unroll 1
  for (int cell = warp; cell < kCells2 - 1; cell += kTogether * kWarps)
    make_dy2(std::integral_constant<int, kTogether>(), cell);
  if (warp == 0) make_dy2(std::integral_constant<int, 1>(), kCells2 - 1);
#pragma unroll
  for (int mask = 4; mask < 32; mask <<= 1)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      total[i] += __shfl_xor_sync(0xffffffffu, total[i], mask);
      total_xhat[i] += __shfl_xor_sync(0xffffffffu, total_xhat[i], mask);
    }
  if (g == 0)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      sums.dy2[warp][0][2 * t + i] = total[i], sums.dy2[warp][1][2 * t + i] = total_xhat[i] * sums.inv_sigma[2 * t + i];
  if constexpr (P::kScaled) {
    largest = warp_max(largest);
    if (lane == 0) sums.largest[warp] = largest;
  }
  __syncthreads();  // the warps' sums are complete
  if (tid < 16) {
    const int which = tid >> 3, c = tid & 7;
    float all = 0;
#pragma unroll
    for (int k = 0; k < kFcThreads / 32; ++k) all += sums.dy2[k][which][c];
    s.dy2_sums[which * kFeatures + cluster * kConv2Channels + rank * 8 + c] = P::kScaled ? dy2_scale * all : all;
  }
  if constexpr (P::kScaled)
    if (warp == 1) {
      const float all = dy2_scale * warp_max(sums.largest[lane % (kFcThreads / 32)]);
      if (lane == 0) s.dy2_max[blockIdx.x] = all;
    }
  trace(s, Phase::kFc1Forward, 7, tid == 0);
#endif
}

}  // namespace mnist::fused
