// F2: bn2 and relu of the pooled maxima, then fc1, its sum over 3136 features cut into slices.
// H:  the slices added up, relu, fc2, log-softmax, the loss and the gradients of everything above fc1's output.
#pragma once

#include "kernels/fused/forward1.cuh"

namespace mnist::fused {

// A slice of the features is one half of the channels in some of the cells, so that a block needs the sums of these
// channels only. It goes through shared memory in stages of 128 bytes a row: two cells in bf16, one in float.
inline constexpr int kSliceChannels = kConv2Channels / 2;
template <class P>
inline constexpr int kStageCells = 128 / (kSliceChannels * int(sizeof(typename P::T)));
inline constexpr int kStagePitch = 128 + 16;  // odd multiple of 16: no bank conflicts
inline constexpr int kForward2Stages = 5;     // what 152 KiB of shared memory hold
template <int kRows>
inline constexpr int kStageBytes = (kHidden + kRows) * kStagePitch;  // weights, then rows of e2
template <int kRows>
inline constexpr int kForward2Bytes = kForward2Stages * kStageBytes<kRows>;

// bn2's scale and shift for one half of the channels in shared memory: from F1's block sums in training, from s.bn2
// otherwise.
struct __align__(16) Bn2 {
  static constexpr int kGroups = kThreads / 16;
  double partial[kGroups][2][kSliceChannels + 2];  // sums and squares; padded for finish_bn2()'s reads
  float scale[kSliceChannels], shift[kSliceChannels];
};

__device__ __forceinline__ void sum_bn2(const State& s, Bn2& bn, int half) {
  if (s.bn2_given) return;
  const int column = threadIdx.x & 15, group = threadIdx.x >> 4;
  // Four rows are added in float: conversions to double are slow.
  float4 four = {};
  double total[4] = {};
  const auto flush = [&] {
    total[0] += four.x, total[1] += four.y, total[2] += four.z, total[3] += four.w;
    four = {};
  };
  const float* sums = s.z2_sums + (column >> 3) * kConv2Channels + half * kSliceChannels + (column & 7) * 4;
  const auto load = [&](int row) {
    return *reinterpret_cast<const float4*>(sums + std::size_t(row) * 2 * kConv2Channels);
  };
  const auto add = [&](float4 x, int k) {
    four.x += x.x, four.y += x.y, four.z += x.z, four.w += x.w;
    if (k % 4 == 3) flush();
  };
  if (s.f1_blocks > Bn2::kGroups * 4)
    for_rows<Bn2::kGroups, 9>(s.f1_blocks, group, load, add);  // a row an SM in one round
  else
    for_rows<Bn2::kGroups, 4>(s.f1_blocks, group, load, add);
  flush();
  auto* to = reinterpret_cast<double2*>(bn.partial[group][column >> 3]) + (column & 7) * 2;
  to[0] = make_double2(total[0], total[1]);
  to[1] = make_double2(total[2], total[3]);
}

// After sum_bn2(). Threads 8c .. 8c + 7 finish channel c of the half, whose gamma and beta they bring.
__device__ __forceinline__ void finish_bn2(const State& s, Bn2& bn, int half, float gamma, float beta) {
  const int tid = threadIdx.x;
  if (s.bn2_given) {
    if (tid < kSliceChannels) {
      bn.scale[tid] = s.bn2[half * kSliceChannels + tid];
      bn.shift[tid] = s.bn2[kConv2Channels + half * kSliceChannels + tid];
    }
    __syncthreads();
    return;
  }
  __syncthreads();
  const int channel = tid >> 3, which = tid & 1, quarter = tid >> 1 & 3;
  double sum = 0;
#pragma unroll
  for (int k = 0; k < Bn2::kGroups; k += 4) sum += bn.partial[k + quarter][which][channel];
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  sum += __shfl_xor_sync(0xffffffffu, sum, 4);
  const double other = __shfl_xor_sync(0xffffffffu, sum, 1);
  const double mean = (which == 0 ? sum : other) * s.inv_n2;
  const double var = fmax((which == 0 ? other : sum) * s.inv_n2 - mean * mean, 0.0);
  const double inv_sigma = rsqrt(var + kBatchNormEpsilon);
  if ((tid & 7) == 0) {
    const double exact = fabs(double(gamma)) * inv_sigma;
    const float scale = float(exact), shift = float(beta - exact * mean);
    bn.scale[channel] = scale;
    bn.shift[channel] = shift;
    if (blockIdx.x == 0 && blockIdx.y < 2) {  // the first slice of each half
      float* out = s.bn2 + half * kSliceChannels + channel;
      out[0] = scale;
      out[64] = shift;
      out[128] = float(mean);
      out[192] = float(inv_sigma);
      out[256] = float(mean - double(float(mean)));
    }
  }
  __syncthreads();
}

// relu(scale * x + shift) of the values in one register of an operand, rounded as they are stored.
template <class P, int kCount>
__device__ __forceinline__ std::uint32_t bn2_relu(std::uint32_t x, const float (&scale)[kCount],
                                                  const float (&shift)[kCount], int first) {
  if constexpr (sizeof(typename P::T) == 2) {
    const float low = fmaf(scale[first], __uint_as_float(x << 16), shift[first]);
    const float high = fmaf(scale[first + 1], __uint_as_float(x & 0xffff0000u), shift[first + 1]);
    std::uint32_t result;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));  // keeps a NaN
    return result;
  } else {
    return __float_as_uint(P::store(relu_keep_nan(fmaf(scale[first], __uint_as_float(x), shift[first]))));
  }
}

// h_parts[slice] = relu(bn2(e2)) fc1^T over the slice's features. Grid: (row tiles, slices); slices 2k and 2k + 1 are
// the halves of the channels in the same cells; a single slice is both of them, one after the other. A warp makes up to
// 32 rows; the operand that ldmatrix brings it is e2, and becomes relu(bn2(e2)) in registers.
template <class P, int kRows>
__global__ void __launch_bounds__(kThreads, 1) forward2_kernel(State s) {
  using T = typename P::T;
  constexpr int kWarpRows = kRows < 32 ? kRows : 32, kRowWarps = kRows / kWarpRows;
  constexpr int kWarpHidden = kHidden * kRowWarps / (kThreads / 32);
  constexpr int kM = kWarpRows / 16, kN = kWarpHidden / 8;
  constexpr int kCellChunks = 8 / kStageCells<P>;     // of 16 bytes, in a stage's row
  constexpr int kLaneValues = 4 / int(sizeof(T));     // of a 16-byte chunk that a lane gets from ldmatrix
  constexpr int kValues = kCellChunks * kLaneValues;  // of a cell
  constexpr int kCopyRows = kThreads / 8;             // that the block copies at a time
  constexpr int kSteps = 128 / 32, kCellSteps = kSteps / kStageCells<P>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Bn2 bn;
  const std::uint32_t base = shared_address(shared);
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int row0 = blockIdx.x * kRows;
  const int groups = (gridDim.y + 1) / 2, cells = (kCells2 + groups - 1) / groups;
  const int begin = int(blockIdx.y / 2) * cells, end = min(begin + cells, kCells2);
  const int stages = (end - begin + kStageCells<P> - 1) / kStageCells<P>;

  const int warp_row = warp % kRowWarps * kWarpRows, warp_hidden = warp / kRowWarps * kWarpHidden;
  const std::uint32_t weights = base + warp_hidden * kStagePitch + b_lane_offset(lane, kStagePitch);
  const std::uint32_t rows = base + (kHidden + warp_row) * kStagePitch + a_lane_offset(lane, kStagePitch);

  const int chunk = tid & 7, copy_row = tid >> 3;
  const std::uint32_t to = base + copy_row * kStagePitch + chunk * 16;
  // Where this thread's chunk of a stage lies in a row of features. Past the slice's end the last cell is repeated,
  // and not used; so is the last row past the batch's.
  const auto feature = [&](int half, int stage) {
    const int cell = min(begin + stage * kStageCells<P> + chunk / kCellChunks, end - 1);
    return cell * kConv2Channels + half * kSliceChannels + chunk % kCellChunks * kChunk<P>;
  };
  const auto fetch_weights = [&](int half, int stage) {
    const T* from = static_cast<const T*>(s.fc1) + std::size_t(copy_row) * kFeatures + feature(half, stage);
    const std::uint32_t into = to + stage % kForward2Stages * kStageBytes<kRows>;
#pragma unroll
    for (int row = 0; row < kHidden; row += kCopyRows) copy_async_16(into + row * kStagePitch, from + row * kFeatures);
  };
  const auto fetch_rows = [&](int half, int stage) {
    const T* from = static_cast<const T*>(s.e2) + feature(half, stage);
    const std::uint32_t into = to + stage % kForward2Stages * kStageBytes<kRows> + kHidden * kStagePitch;
#pragma unroll
    for (int row = 0; row < kRows; row += kCopyRows)
      if (kRows % kCopyRows == 0 || copy_row < kRows)
        copy_async_16(into + row * kStagePitch,
                      from + std::size_t(min(row0 + copy_row + row, s.batch - 1)) * kFeatures);
  };

  float acc[kM][kN][4] = {}, part[kM][kN][4] = {};
  const bool both = gridDim.y == 1;
  for (int half = both ? 0 : blockIdx.y & 1, last = both ? 1 : half; half <= last; ++half) {
#pragma unroll 1
    for (int stage = 0; stage < min(stages, kForward2Stages); ++stage) fetch_weights(half, stage);
    const int channel = half * kSliceChannels + (tid >> 3);
    const float gamma = s.parameters[kParameters[kBn2Weight].offset + channel];
    const float beta = s.parameters[kParameters[kBn2Bias].offset + channel];
    wait_for_predecessor();  // F1: e2 and the channel sums
    // A group of copies a stage, the weights of all in the first. Two stages go ahead of the channel sums; the others
    // arrive while the statistics are finished.
    constexpr int kEarly = 2;
#pragma unroll 1
    for (int stage = 0; stage < kForward2Stages; ++stage) {
      if (stage == kEarly) sum_bn2(s, bn, half);
      if (stage < stages) fetch_rows(half, stage);
      copy_async_commit();
    }
    finish_bn2(s, bn, half, gamma, beta);
    float scale[kValues], shift[kValues];  // of the channels that this lane gets from ldmatrix
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int at = i / kLaneValues * kChunk<P> + kLaneValues * t + i % kLaneValues;
      scale[i] = bn.scale[at];
      shift[i] = bn.shift[at];
    }

#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      copy_async_wait<kForward2Stages - 2>();
      __syncthreads();  // this stage is complete, and nobody reads the one before any more
      if (stage > 0) {
        if (const int next = stage - 1 + kForward2Stages; next < stages) {
          fetch_weights(half, next);
          fetch_rows(half, next);
        }
        copy_async_commit();
      }
      const std::uint32_t at = stage % kForward2Stages * kStageBytes<kRows>;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step > 0 && step % kCellSteps == 0 && begin + stage * kStageCells<P> + step / kCellSteps >= end) break;
        std::uint32_t w[kN / 2][4];
#pragma unroll
        for (int n = 0; n < kN / 2; ++n) load_matrix_x4(w[n], weights + at + n * 16 * kStagePitch + step * 32);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          std::uint32_t a[4];
          load_matrix_x4(a, rows + at + m * 16 * kStagePitch + step * 32);
#pragma unroll
          for (int i = 0; i < 4; ++i)
            a[i] = bn2_relu<P>(a[i], scale, shift, (2 * step + i / 2) % kCellChunks * kLaneValues);
#pragma unroll
          for (int n = 0; n < kN; ++n) P::mma(part[m][n], a, w[n / 2][n % 2 * 2], w[n / 2][n % 2 * 2 + 1]);
        }
      }
      if constexpr (P::kDrainAccumulators)
#pragma unroll
        for (int i = 0; i < kM * kN * 4; ++i) {
          acc[i / 4 / kN][i / 4 % kN][i % 4] += part[i / 4 / kN][i / 4 % kN][i % 4];
          part[i / 4 / kN][i / 4 % kN][i % 4] = 0;
        }
    }
    if (half < last) __syncthreads();  // before the buffers and bn are written again
  }
  const auto& sums = P::kDrainAccumulators ? acc : part;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int row = row0 + warp_row + m * 16 + g + upper * 8;
        if (row < s.batch)
          *reinterpret_cast<float2*>(s.h_parts + (std::size_t(blockIdx.y) * s.batch + row) * kHidden + warp_hidden +
                                     n * 8 + 2 * t) = make_float2(sums[m][n][2 * upper], sums[m][n][2 * upper + 1]);
      }
}

// Sums over the warp of up to 16 values at once: lane l gets that of value l / 2.
__device__ __forceinline__ float warp_sums(float (&x)[16], int lane) {
#pragma unroll
  for (int n = 8; n > 0; n /= 2) {
    const bool upper = lane & 2 * n;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (k >= n) break;
      const float low = x[k], high = x[k + n];
      x[k] = (upper ? high : low) + __shfl_xor_sync(0xffffffffu, upper ? low : high, 2 * n);
    }
  }
  return x[0] + __shfl_xor_sync(0xffffffffu, x[0], 1);
}

// One warp a sample at a time; lane l owns hidden units 4l .. 4l+3, and class l / 2. head_sums of a block: d
// fc2.weight, d fc1.bias, d fc2.bias, loss and hits, summed over its samples in a fixed order.
template <class P>
__global__ void __launch_bounds__(kThreads, 1) head_kernel(State s, int slot) {
  __shared__ __align__(16) float sums[8][kHeadValues];
  __shared__ double moments[4][64];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const auto parameter4 = [&](std::int64_t offset) {
    return reinterpret_cast<const float4*>(s.parameters + offset)[lane];
  };
  const float4 bias = parameter4(kParameters[kFc1Bias].offset);
  float4 w[kClasses];
#pragma unroll
  for (int k = 0; k < kClasses; ++k) w[k] = parameter4(kParameters[kFc2Weight].offset + k * kHidden);
  const int my_class = lane >> 1;
  const bool stores_class = (lane & 1) == 0 && my_class < kClasses;
  const float class_bias = my_class < kClasses ? s.parameters[kParameters[kFc2Bias].offset + my_class] : 0.f;
  const float upstream = *s.upstream / float(s.batch);

  const int rows = (s.batch + gridDim.x - 1) / gridDim.x;
  const int end = min(int(blockIdx.x + 1) * rows, s.batch);
  int row = blockIdx.x * rows + warp;
  const auto label_of = [&](int row) {
    return row < end ? int(s.samples.labels[s.samples.order[std::size_t(slot) * s.batch + row]]) : 0;
  };
  int label = label_of(row);

  // The next batch's pixel moments, this block's share: they depend on nothing, so they are summed while F2 ends.
  const int column = tid & 63, group = tid >> 6;
  double moment = 0;
  if (column < kMoments)
    for (int b = blockIdx.x + group * gridDim.x; b < s.batch; b += 4 * gridDim.x)
      moment +=
          s.samples.moments[std::size_t(s.samples.order[std::size_t(slot + 1) * s.batch + b]) * kMoments + column];
  wait_for_predecessor();  // F2: h_parts
  float4 dw[kClasses] = {}, dbias = {};
  float dclass = 0, loss = 0, hits = 0;

  for (; row < end; row += 8, label = label_of(row)) {
    float4 h = bias;
    const auto slice = [&](int k) {
      return reinterpret_cast<const float4*>(s.h_parts + (std::size_t(k) * s.batch + row) * kHidden)[lane];
    };
    const auto add = [&](float4 x, int) { h.x += x.x, h.y += x.y, h.z += x.z, h.w += x.w; };
    if (s.f2_slices > 14)
      for_rows<1, 26>(s.f2_slices, 0, slice, add);
    else
      for_rows<1, 14>(s.f2_slices, 0, slice, add);
    h = make_float4(relu_keep_nan(h.x), relu_keep_nan(h.y), relu_keep_nan(h.z), relu_keep_nan(h.w));
    reinterpret_cast<float4*>(s.h + std::size_t(row) * kHidden)[lane] = h;
    float products[16] = {};
#pragma unroll
    for (int k = 0; k < kClasses; ++k) products[k] = h.x * w[k].x + h.y * w[k].y + h.z * w[k].z + h.w * w[k].w;
    const float score = warp_sums(products, lane) + class_bias;
    if (stores_class) s.logits[std::size_t(row) * kClasses + my_class] = score;
    const auto of_class = [](float x, int k) { return __shfl_sync(0xffffffffu, x, 2 * k); };
    float top = of_class(score, 0), total = 0;
    int best = 0;
#pragma unroll
    for (int k = 1; k < kClasses; ++k)
      if (const float other = of_class(score, k); other > top) top = other, best = k;
    const float power = expf(score - top);
#pragma unroll
    for (int k = 0; k < kClasses; ++k) total += of_class(power, k);
    const float log_total = logf(total);
    loss += log_total - (of_class(score, label) - top);
    hits += best == label ? 1.f : 0.f;
    const float my_d = upstream * (expf(score - top - log_total) - (my_class == label ? 1.f : 0.f));
    dclass += my_d;
    float4 dh = {};
#pragma unroll
    for (int k = 0; k < kClasses; ++k) {
      const float d = of_class(my_d, k);
      dw[k].x = fmaf(d, h.x, dw[k].x), dw[k].y = fmaf(d, h.y, dw[k].y);
      dw[k].z = fmaf(d, h.z, dw[k].z), dw[k].w = fmaf(d, h.w, dw[k].w);
      dh.x = fmaf(d, w[k].x, dh.x), dh.y = fmaf(d, w[k].y, dh.y);
      dh.z = fmaf(d, w[k].z, dh.z), dh.w = fmaf(d, w[k].w, dh.w);
    }
    dh = make_float4(h.x > 0 ? dh.x : 0.f, h.y > 0 ? dh.y : 0.f, h.z > 0 ? dh.z : 0.f, h.w > 0 ? dh.w : 0.f);
    dbias.x += dh.x, dbias.y += dh.y, dbias.z += dh.z, dbias.w += dh.w;
    auto* out = static_cast<typename P::T*>(s.dh) + std::size_t(row) * kHidden + 4 * lane;
    if constexpr (sizeof(typename P::T) == 2) {
      reinterpret_cast<__nv_bfloat162*>(out)[0] = __floats2bfloat162_rn(dh.x, dh.y);
      reinterpret_cast<__nv_bfloat162*>(out)[1] = __floats2bfloat162_rn(dh.z, dh.w);
    } else {
      *reinterpret_cast<float4*>(out) = make_float4(P::store(dh.x), P::store(dh.y), P::store(dh.z), P::store(dh.w));
    }
  }

  moments[group][column] = moment;
#pragma unroll
  for (int k = 0; k < kClasses; ++k) reinterpret_cast<float4*>(sums[warp] + k * kHidden)[lane] = dw[k];
  if (stores_class) sums[warp][kClasses * kHidden + kHidden + my_class] = dclass;
  reinterpret_cast<float4*>(sums[warp] + kClasses * kHidden)[lane] = dbias;
  if (lane == 0) {
    sums[warp][kHeadValues - 2] = loss;
    sums[warp][kHeadValues - 1] = hits;
  }
  __syncthreads();
  for (int i = tid; i < kHeadValues; i += kThreads) {
    float total = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) total += sums[k][i];
    s.head_sums[std::size_t(blockIdx.x) * kHeadValues + i] = total;
  }
  if (tid < kMoments)
    s.moment_sums[std::size_t(blockIdx.x) * kMoments + tid] =
        (moments[0][tid] + moments[1][tid]) + (moments[2][tid] + moments[3][tid]);
}

}  // namespace mnist::fused
