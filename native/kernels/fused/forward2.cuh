// F2: bn2 and relu of the pooled maxima, then fc1, its sum over 3136 features cut into slices of pooled cells.
// H:  the slices added up, relu, fc2, log-softmax, the loss and the gradients of everything above fc1's output.
#pragma once

#include "kernels/fused/forward1.cuh"

namespace mnist::fused {

template <class P>
inline constexpr int kTilePitch = 64 * int(sizeof(typename P::T)) + 16;  // a row of 64 values

template <class P, int kRows>
inline constexpr int kForward2Bytes = 2 * (kHidden + kRows) * kTilePitch<P>;

// Eight consecutive values in the policy's type.
template <class P>
struct Eight {
  using T = typename P::T;
  uint4 raw[sizeof(T) / 2];
  __device__ __forceinline__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < int(sizeof(T)) / 2; ++i) raw[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& r : raw) r = make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ float operator[](int i) const { return P::load(reinterpret_cast<const T*>(raw)[i]); }
};

// bn2's scale and shift for all 64 channels in shared memory: from F1's block sums in training, from s.bn2 otherwise.
__device__ __forceinline__ void load_bn2(const State& s, float (&scale)[kConv2Channels], float (&shift)[kConv2Channels],
                                         double (&partial)[8][2 * kConv2Channels]) {
  const int tid = threadIdx.x;
  if (s.bn2_given) {
    if (tid < kConv2Channels) {
      scale[tid] = s.bn2[tid];
      shift[tid] = s.bn2[kConv2Channels + tid];
    }
    __syncthreads();
    return;
  }
  constexpr int kLoadsInFlight = 17;  // a round covers a block of F1 an SM
  const int column = tid & 31, group = tid >> 5;
  double total[4] = {};
  for (int first = group; first < s.f1_blocks; first += 8 * kLoadsInFlight) {
    float4 x[kLoadsInFlight];
#pragma unroll
    for (int k = 0; k < kLoadsInFlight; ++k) {
      const int b = first + 8 * k;
      x[k] = b < s.f1_blocks ? reinterpret_cast<const float4*>(s.z2_sums + std::size_t(b) * 128)[column] : float4{};
    }
#pragma unroll
    for (int k = 0; k < kLoadsInFlight; ++k)
      total[0] += x[k].x, total[1] += x[k].y, total[2] += x[k].z, total[3] += x[k].w;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) partial[group][4 * column + i] = total[i];
  __syncthreads();
  if (tid < 2 * kConv2Channels)
#pragma unroll
    for (int k = 1; k < 8; ++k) partial[0][tid] += partial[k][tid];
  __syncthreads();
  if (tid < kConv2Channels) {
    const double mean = partial[0][tid] * s.inv_n2;
    const double var = fmax(partial[0][64 + tid] * s.inv_n2 - mean * mean, 0.0);
    const double inv_sigma = rsqrt(var + kBatchNormEpsilon);
    const double gamma = fabs(double(s.parameters[kParameters[kBn2Weight].offset + tid]));
    const double beta = s.parameters[kParameters[kBn2Bias].offset + tid];
    scale[tid] = float(gamma * inv_sigma);
    shift[tid] = float(beta - gamma * inv_sigma * mean);
    if (blockIdx.x == 0 && blockIdx.y == 0) {
      s.bn2[tid] = scale[tid];
      s.bn2[64 + tid] = shift[tid];
      s.bn2[128 + tid] = float(mean);
      s.bn2[192 + tid] = float(inv_sigma);
    }
  }
  __syncthreads();
}

// h_parts[slice] = relu(bn2(e2)) fc1^T over the slice's cells. Grid: (row tiles, slices). Warp w makes hidden units
// 16w .. 16w+15 of all kRows rows.
template <class P, int kRows>
__global__ void __launch_bounds__(kThreads) forward2_kernel(State s) {
  using T = typename P::T;
  constexpr int kItems = kRows * 8 / kThreads > 0 ? kRows * 8 / kThreads : 1;  // eights of a tile a thread loads
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float scale[kConv2Channels], shift[kConv2Channels];
  __shared__ double partial[8][2 * kConv2Channels];
  unsigned char* weight_tile[2] = {shared, shared + kHidden * kTilePitch<P>};
  unsigned char* row_tile[2] = {shared + 2 * kHidden * kTilePitch<P>, shared + (2 * kHidden + kRows) * kTilePitch<P>};
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int row0 = blockIdx.x * kRows;
  const int cells = (kCells2 + gridDim.y - 1) / gridDim.y;
  const int begin = blockIdx.y * cells, end = min(begin + cells, kCells2);

  const auto fetch_weights = [&](int cell, int buffer) {
    constexpr int kChunks = 64 * int(sizeof(T)) / 16;
    const int part = tid % kChunks;
#pragma unroll
    for (int row = tid / kChunks; row < kHidden; row += kThreads / kChunks)
      copy_async_16(shared_address(weight_tile[buffer]) + row * kTilePitch<P> + part * 16,
                    static_cast<const T*>(s.fc1) + std::size_t(row) * kFeatures + cell * 64 + part * kChunk<P>);
    copy_async_commit();
  };
  Eight<P> e[kItems];
  const int eight = tid & 7;
  const auto fetch_rows = [&](int cell) {
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int row = (tid >> 3) + k * (kThreads / 8);
      if (row < kRows && row0 + row < s.batch)
        e[k].load(static_cast<const T*>(s.e2) + (std::size_t(row0 + row) * kCells2 + cell) * 64 + eight * 8);
      else
        e[k].clear();
    }
  };
  fetch_weights(begin, 0);
  wait_for_predecessor();  // F1: e2 and the channel sums
  fetch_rows(begin);
  load_bn2(s, scale, shift, partial);
  float my_scale[8], my_shift[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) my_scale[i] = scale[eight * 8 + i], my_shift[i] = shift[eight * 8 + i];

  float acc[kRows / 16][2][4] = {};
  for (int cell = begin; cell < end; ++cell) {
    const int buffer = (cell - begin) & 1;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int row = (tid >> 3) + k * (kThreads / 8);
      if (row < kRows) {
        float a[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) a[i] = relu_keep_nan(fmaf(my_scale[i], e[k][i], my_shift[i]));
        store_8<P>(reinterpret_cast<T*>(row_tile[buffer] + row * kTilePitch<P>) + eight * 8, a);
      }
    }
    copy_async_wait<0>();
    __syncthreads();  // this cell's tiles are complete, and nobody reads the other buffer any more
    if (cell + 1 < end) {
      fetch_weights(cell + 1, buffer ^ 1);
      fetch_rows(cell + 1);
    }
    const std::uint32_t weights =
        shared_address(weight_tile[buffer]) + warp * 16 * kTilePitch<P> + b_lane_offset(lane, kTilePitch<P>);
    const std::uint32_t rows = shared_address(row_tile[buffer]) + a_lane_offset(lane, kTilePitch<P>);
    float part[kRows / 16][2][4] = {};
#pragma unroll
    for (int step = 0; step < 64 / kStep<P>; ++step) {
      std::uint32_t w[4];
      load_matrix_x4(w, weights + step * 32);
#pragma unroll
      for (int m = 0; m < kRows / 16; ++m) {
        std::uint32_t a[4];
        load_matrix_x4(a, rows + m * 16 * kTilePitch<P> + step * 32);
        P::mma(part[m][0], a, w[0], w[1]);
        P::mma(part[m][1], a, w[2], w[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) acc[i >> 3][i >> 2 & 1][i & 3] += part[i >> 3][i >> 2 & 1][i & 3];
  }
#pragma unroll
  for (int m = 0; m < kRows / 16; ++m)
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row0 + m * 16 + g + half * 8;
        if (row < s.batch)
          *reinterpret_cast<float2*>(s.h_parts + (std::size_t(blockIdx.y) * s.batch + row) * kHidden + warp * 16 +
                                     n * 8 + 2 * t) = make_float2(acc[m][n][2 * half], acc[m][n][2 * half + 1]);
      }
}

// One warp a sample at a time; lane l owns hidden units 4l .. 4l+3. head_sums of a block: d fc2.weight, d fc1.bias,
// d fc2.bias, loss and hits, summed over its samples in a fixed order.
template <class P>
__global__ void __launch_bounds__(kThreads) head_kernel(State s, int slot) {
  constexpr int kSlicesInFlight = 13;
  __shared__ __align__(16) float sums[8][kHeadValues];
  __shared__ double moments[4][64];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const auto parameter4 = [&](std::int64_t offset) {
    return reinterpret_cast<const float4*>(s.parameters + offset)[lane];
  };
  const float4 bias = parameter4(kParameters[kFc1Bias].offset);
  float4 w[kClasses];
  float class_bias[kClasses];
#pragma unroll
  for (int k = 0; k < kClasses; ++k) {
    w[k] = parameter4(kParameters[kFc2Weight].offset + k * kHidden);
    class_bias[k] = s.parameters[kParameters[kFc2Bias].offset + k];
  }
  const float upstream = s.scalars[1] / float(s.batch);

  // The next batch's pixel moments, this block's share: they depend on nothing, so they are summed while F2 ends.
  const int column = tid & 63, group = tid >> 6;
  double moment = 0;
  if (column < kMoments)
    for (int b = blockIdx.x + group * gridDim.x; b < s.batch; b += 4 * gridDim.x)
      moment +=
          s.samples.moments[std::size_t(s.samples.order[std::size_t(slot + 1) * s.batch + b]) * kMoments + column];
  wait_for_predecessor();  // F2: h_parts
  float4 dw[kClasses] = {}, dbias = {};
  float dclass[kClasses] = {}, loss = 0, hits = 0;

  const int rows = (s.batch + gridDim.x - 1) / gridDim.x;
  const int end = min(int(blockIdx.x + 1) * rows, s.batch);
  for (int row = blockIdx.x * rows + warp; row < end; row += 8) {
    const int label = s.samples.labels[s.samples.order[std::size_t(slot) * s.batch + row]];
    float4 h = bias;
    for (int first = 0; first < s.f2_slices; first += kSlicesInFlight) {
      float4 part[kSlicesInFlight];
#pragma unroll
      for (int k = 0; k < kSlicesInFlight; ++k)
        part[k] =
            first + k < s.f2_slices
                ? reinterpret_cast<const float4*>(s.h_parts + (std::size_t(first + k) * s.batch + row) * kHidden)[lane]
                : float4{};
#pragma unroll
      for (int k = 0; k < kSlicesInFlight; ++k) h.x += part[k].x, h.y += part[k].y, h.z += part[k].z, h.w += part[k].w;
    }
    h = make_float4(relu_keep_nan(h.x), relu_keep_nan(h.y), relu_keep_nan(h.z), relu_keep_nan(h.w));
    reinterpret_cast<float4*>(s.h + std::size_t(row) * kHidden)[lane] = h;
    float score[kClasses];
#pragma unroll
    for (int k = 0; k < kClasses; ++k)
      score[k] = warp_sum(h.x * w[k].x + h.y * w[k].y + h.z * w[k].z + h.w * w[k].w) + class_bias[k];
    float top = score[0], total = 0, of_label = 0;
    int best = 0;
#pragma unroll
    for (int k = 1; k < kClasses; ++k)
      if (score[k] > top) top = score[k], best = k;
#pragma unroll
    for (int k = 0; k < kClasses; ++k) {
      total += expf(score[k] - top);
      if (k == label) of_label = score[k];
      if (lane == k) s.logits[std::size_t(row) * kClasses + k] = score[k];
    }
    const float log_total = logf(total);
    loss += log_total - (of_label - top);
    hits += best == label ? 1.f : 0.f;
    float4 dh = {};
#pragma unroll
    for (int k = 0; k < kClasses; ++k) {
      const float d = upstream * (expf(score[k] - top - log_total) - (k == label ? 1.f : 0.f));
      dclass[k] += d;
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
  for (int k = 0; k < kClasses; ++k) {
    reinterpret_cast<float4*>(sums[warp] + k * kHidden)[lane] = dw[k];
    if (lane == k) sums[warp][kClasses * kHidden + kHidden + k] = dclass[k];
  }
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
