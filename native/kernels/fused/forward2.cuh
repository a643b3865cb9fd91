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
// Threads 4c .. 4c + 3 finish channel c, whose gamma and beta they bring.
struct __align__(16) Bn2 {
  float scale[kConv2Channels], shift[kConv2Channels];
  double partial[kThreads / 32][2][kConv2Channels + 8];  // padded: sums and squares of a channel lie in other banks
};

__device__ __forceinline__ void load_bn2(const State& s, Bn2& bn, float gamma, float beta) {
  const int tid = threadIdx.x;
  if (s.bn2_given) {
    if (tid < kConv2Channels) {
      bn.scale[tid] = s.bn2[tid];
      bn.shift[tid] = s.bn2[kConv2Channels + tid];
    }
    __syncthreads();
    return;
  }
  constexpr int kGroups = kThreads / 32;
  const int column = tid & 31, group = tid >> 5;
  // Four rows are added in float: conversions to double are slow.
  float4 four = {};
  double total[4] = {};
  const auto flush = [&] {
    total[0] += four.x, total[1] += four.y, total[2] += four.z, total[3] += four.w;
    four = {};
  };
  const auto load = [&](int row) {
    return reinterpret_cast<const float4*>(s.z2_sums + std::size_t(row) * 2 * kConv2Channels)[column];
  };
  const auto add = [&](float4 x, int k) {
    four.x += x.x, four.y += x.y, four.z += x.z, four.w += x.w;
    if (k % 4 == 3) flush();
  };
  if (s.z2_rows > kGroups * 8)
    for_rows<kGroups, 17>(s.z2_rows, group, load, add);  // a row an SM in one round
  else
    for_rows<kGroups, 8>(s.z2_rows, group, load, add);
  flush();
#pragma unroll
  for (int i = 0; i < 4; ++i) bn.partial[group][column >> 4][4 * (column & 15) + i] = total[i];
  __syncthreads();

  const int channel = tid >> 2, which = tid & 1, half = tid >> 1 & 1;
  double sum = 0;
#pragma unroll
  for (int k = 0; k < kGroups / 2; ++k) sum += bn.partial[half * (kGroups / 2) + k][which][channel];
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  const double other = __shfl_xor_sync(0xffffffffu, sum, 1);
  const double mean = (which == 0 ? sum : other) * s.inv_n2;
  const double var = fmax((which == 0 ? other : sum) * s.inv_n2 - mean * mean, 0.0);
  const double inv_sigma = rsqrt(var + kBatchNormEpsilon);
  if ((tid & 3) == 0) {
    const double exact = fabs(double(gamma)) * inv_sigma;
    const float scale = float(exact), shift = float(beta - exact * mean);
    bn.scale[channel] = scale;
    bn.shift[channel] = shift;
    if (blockIdx.x == 0 && blockIdx.y == 0) {
      s.bn2[channel] = scale;
      s.bn2[64 + channel] = shift;
      s.bn2[128 + channel] = float(mean);
      s.bn2[192 + channel] = float(inv_sigma);
      s.bn2[256 + channel] = float(mean - double(float(mean)));
    }
  }
  __syncthreads();
}

// Blocks on an SM that the registers are to allow: batches above 512 give F2 two an SM.
template <class P, int kRows>
inline constexpr int kForward2Blocks = kRows == 64 && P::kDrainAccumulators ? 1 : 2;

// h_parts[slice] = relu(bn2(e2)) fc1^T over the slice's cells. Grid: (row tiles, slices). Warp w makes hidden units
// 16w .. 16w+15 of all kRows rows.
template <class P, int kRows>
__global__ void __launch_bounds__(kThreads, kForward2Blocks<P, kRows>) forward2_kernel(State s) {
  using T = typename P::T;
  constexpr int kItems = kRows * 8 / kThreads > 0 ? kRows * 8 / kThreads : 1;  // eights of a tile a thread loads
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Bn2 bn;
  const auto weight_tile = [&](int buffer) { return shared + buffer * kHidden * kTilePitch<P>; };
  const auto row_tile = [&](int buffer) { return shared + (2 * kHidden + buffer * kRows) * kTilePitch<P>; };
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int row0 = blockIdx.x * kRows;
  const int cells = (kCells2 + gridDim.y - 1) / gridDim.y;
  const int begin = blockIdx.y * cells, end = min(begin + cells, kCells2);

  const auto fetch_weights = [&](int cell, int buffer) {
    constexpr int kChunks = 64 * int(sizeof(T)) / 16;
    const int part = tid % kChunks;
#pragma unroll
    for (int row = tid / kChunks; row < kHidden; row += kThreads / kChunks)
      copy_async_16(shared_address(weight_tile(buffer)) + row * kTilePitch<P> + part * 16,
                    static_cast<const T*>(s.fc1) + std::size_t(row) * kFeatures + cell * 64 + part * kChunk<P>);
    copy_async_commit();
  };
  Eight<P> e[kItems], next_e[kItems];  // of this cell and of the next
  const int eight = tid & 7;
  const auto fetch_rows = [&](Eight<P>(&to)[kItems], int cell) {
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int row = (tid >> 3) + k * (kThreads / 8);
      if (row < kRows && row0 + row < s.batch && cell < end)
        to[k].load(static_cast<const T*>(s.e2) + (std::size_t(row0 + row) * kCells2 + cell) * 64 + eight * 8);
      else
        to[k].clear();
    }
  };
  fetch_weights(begin, 0);
  if (begin + 1 < end) fetch_weights(begin + 1, 1);
  const float gamma = s.parameters[kParameters[kBn2Weight].offset + (tid >> 2)];
  const float beta = s.parameters[kParameters[kBn2Bias].offset + (tid >> 2)];
  wait_for_predecessor();  // F1: e2 and the channel sums
  fetch_rows(e, begin);
  fetch_rows(next_e, begin + 1);
  load_bn2(s, bn, gamma, beta);

  float acc[kRows / 16][2][4] = {};
  for (int cell = begin; cell < end; ++cell) {
    const int buffer = (cell - begin) & 1;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int row = (tid >> 3) + k * (kThreads / 8);
      if (row < kRows) {
        float a[8];
#pragma unroll
        for (int i = 0; i < 8; ++i)
          a[i] = relu_keep_nan(fmaf(bn.scale[eight * 8 + i], e[k][i], bn.shift[eight * 8 + i]));
        store_8<P>(reinterpret_cast<T*>(row_tile(buffer) + row * kTilePitch<P>) + eight * 8, a);
      }
    }
#pragma unroll
    for (int k = 0; k < kItems; ++k) e[k] = next_e[k];
    fetch_rows(next_e, cell + 2);
    copy_async_wait<0>();
    __syncthreads();  // this cell's tiles are complete, and nobody reads the other buffer any more
    if (cell > begin && cell + 1 < end) fetch_weights(cell + 1, buffer ^ 1);
    const std::uint32_t weights =
        shared_address(weight_tile(buffer)) + warp * 16 * kTilePitch<P> + b_lane_offset(lane, kTilePitch<P>);
    const std::uint32_t rows = shared_address(row_tile(buffer)) + a_lane_offset(lane, kTilePitch<P>);
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
  const float upstream = s.scalars[1] / float(s.batch);

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
    if (s.f2_slices > 13)
      for_rows<1, 25>(s.f2_slices, 0, slice, add);
    else
      for_rows<1, 13>(s.f2_slices, 0, slice, add);
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
