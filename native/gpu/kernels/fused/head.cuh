// head: the slices of fc1 added up, relu, fc2, log-softmax, the loss and the gradients of everything above fc1's
// output. It also sums the pixel moments of the next batch, for update's bn1.
#pragma once

#include "kernels/fused/shared/phase.cuh"

namespace mnist::fused {

// Sums over the warp of up to 16 values at once, kCount times: lane l gets the sum of value l / 2.
template <int kCount>
__device__ __forceinline__ void warp_sums(float (&sums)[kCount], float (&x)[kCount][16], int lane) {
#pragma unroll
  for (int n = 8; n > 0; n /= 2) {
    const bool upper = lane & 2 * n;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (k >= n) break;
#pragma unroll
      for (int r = 0; r < kCount; ++r) {
        const float low = x[r][k], high = x[r][k + n];
        x[r][k] = (upper ? high : low) + __shfl_xor_sync(0xffffffffu, upper ? low : high, 2 * n);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kCount; ++r) sums[r] = x[r][0] + __shfl_xor_sync(0xffffffffu, x[r][0], 1);
}

// relu, fc2, log-softmax and the loss of kCount samples, by a warp: `h` is fc1's output and becomes relu's; `score` and
// `d`, the logits and the gradients with respect to them, are those of the lane's class; loss and hits are added up.
template <int kCount>
__device__ __forceinline__ void classify(float4 (&h)[kCount], const float4 (&w)[kClasses], float class_bias,
                                         const int (&label)[kCount], float upstream, float (&score)[kCount],
                                         float (&d)[kCount], float& loss, float& hits) {
  const int lane = threadIdx.x & 31, my_class = lane >> 1;
  float products[kCount][16] = {}, top[kCount], total[kCount] = {};
  int best[kCount] = {};
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    float4& x = h[r];
    x = make_float4(relu_keep_nan(x.x), relu_keep_nan(x.y), relu_keep_nan(x.z), relu_keep_nan(x.w));
#pragma unroll
    for (int k = 0; k < kClasses; ++k) products[r][k] = x.x * w[k].x + x.y * w[k].y + x.z * w[k].z + x.w * w[k].w;
  }
  warp_sums(score, products, lane);
  const auto of_class = [](float x, int k) { return __shfl_sync(0xffffffffu, x, 2 * k); };
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    score[r] += class_bias;
    top[r] = of_class(score[r], 0);
  }
#pragma unroll
  for (int k = 1; k < kClasses; ++k)
#pragma unroll
    for (int r = 0; r < kCount; ++r)
      if (const float other = of_class(score[r], k); other > top[r]) top[r] = other, best[r] = k;
  float power[kCount];
#pragma unroll
  for (int r = 0; r < kCount; ++r) power[r] = expf(score[r] - top[r]);
#pragma unroll
  for (int k = 0; k < kClasses; ++k)
#pragma unroll
    for (int r = 0; r < kCount; ++r) total[r] += of_class(power[r], k);
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    const float log_total = logf(total[r]);
    loss += log_total - (of_class(score[r], label[r]) - top[r]);
    hits += best[r] == label[r] ? 1.f : 0.f;
    d[r] = upstream * (expf(score[r] - top[r] - log_total) - (my_class == label[r] ? 1.f : 0.f));
  }
}

// Where a lane's four values of dh go if fc1_backward reads them by wgmma, all of a value's terms at once.
template <class P>
__device__ __forceinline__ std::uint16_t* dh_chunk(const State& s, int row, int lane, int term = 0) {
  const int chunk = (row / kSamplesPerDhTile * kTerms<P> + term) * (kHidden / 8) + lane / 2;
  return static_cast<std::uint16_t*>(s.dh) + (std::size_t(chunk) * kSamplesPerDhTile + row % kSamplesPerDhTile) * 8 +
         lane % 2 * 4;
}

// One warp a sample at a time; lane l owns hidden units 4l .. 4l+3, and class l / 2. head_sums of a block: d
// fc2.weight, d fc1.bias, d fc2.bias, loss and hits, summed over its samples in a fixed order.
template <class P, class Models>
__global__ void __launch_bounds__(kThreads, 1) head_kernel(Models models, int graph_step) {
  static_assert(kHidden == 32 * 4 && 2 * kClasses <= 32, "a lane owns a float4 of hidden units, two lanes a class");
  static_assert(kMoments <= 64 && kThreads == 4 * 64, "four groups of threads sum the moments");
  const auto& s = state_of_block(models);
  __shared__ __align__(16) float sums[8][kHeadValues];
  __shared__ double moments[4][64];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  trace(s, Phase::kHead, 0, tid == 0);
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
  float dh_scale = 1, largest_dh = 0;
  if constexpr (kHasScales<P>) {
    float largest = 0;
#pragma unroll
    for (int k = 0; k < kClasses; ++k)
      largest = fmaxf(largest, fmaxf(fmaxf(fabsf(w[k].x), fabsf(w[k].y)), fmaxf(fabsf(w[k].z), fabsf(w[k].w))));
    dh_scale = scale_of(2 * fabsf(upstream) * warp_max(largest));
  }

  const int rows = (s.batch + gridDim.x - 1) / gridDim.x;
  const int end = min(int(blockIdx.x + 1) * rows, s.batch);
  int row = blockIdx.x * rows + warp;
  const auto label_of = [&](int row) {
    return row < end ? int(s.samples.labels[s.samples.order[std::size_t(graph_step) * s.batch + row]]) : 0;
  };
  int label[2] = {label_of(row), label_of(row + 8)};

  // The next batch's pixel moments, this block's share: they depend on nothing, so they are summed while fc1_forward
  // ends. Each takes two loads, one after the other, so those of several images are in flight at once.
  const int column = tid & 63, group = tid >> 6;
  const int first = blockIdx.x + group * gridDim.x, stride = 4 * gridDim.x;
  double moment = 0;
  for_rows<1, 8>(
      first < s.batch ? (s.batch - 1 - first) / stride + 1 : 0, 0,
      [&](int k) {
        const int sample = s.samples.order[std::size_t(graph_step + 1) * s.batch + first + k * stride];
        return s.samples.moments[std::size_t(sample) * kMoments + min(column, kMoments - 1)];
      },
      [&](double x, int) { moment += x; });
  if constexpr (P::kScaled)
    if (blockIdx.x == 0 && warp == 0) {  // for fc1_backward, which changes these weights
      const float largest = largest_of<2 * kCells2 * kGradientWarps>(s.fc1_max(), lane);
      if (lane == 0) {
        s.scales[kDhScale] = dh_scale;
        s.scales[kLargestFc1] = largest;
        s.scales[kNextFc1Scale] = weight_scale(largest);
      }
    }
  if constexpr (P::kFp16Terms > 0)
    if (s.fc1_backward_wgmma && blockIdx.x == 0 && tid == 0) s.scales[kDhScale] = dh_scale;
  wait_for_predecessor();  // fc1_forward: h_slices
  trace(s, Phase::kHead, 1, tid == 0);
  float4 dw[kClasses] = {}, dbias = {};
  float dclass = 0, loss = 0, hits = 0;

  // kCount samples, row, row + 8, ...: a warp has their chains of instructions under way at the same time.
  const auto samples = [&]<int kLoads, int kCount>(std::integral_constant<int, kLoads>, int row,
                                                   const int (&label)[kCount]) {
    struct Rows {
      float4 of[kCount];
    } h;
#pragma unroll
    for (int r = 0; r < kCount; ++r) h.of[r] = bias;
    const auto slice = [&](int k) {
      Rows x;
#pragma unroll
      for (int r = 0; r < kCount; ++r)
        x.of[r] =
            reinterpret_cast<const float4*>(s.h_slices + (std::size_t(k) * s.batch + row + 8 * r) * kHidden)[lane];
      return x;
    };
    for_rows<1, kLoads>(s.fc1_forward_slices, 0, slice, [&](const Rows& x, int) {
#pragma unroll
      for (int r = 0; r < kCount; ++r)
        h.of[r].x += x.of[r].x, h.of[r].y += x.of[r].y, h.of[r].z += x.of[r].z, h.of[r].w += x.of[r].w;
    });
    float score[kCount], my_d[kCount];
    classify(h.of, w, class_bias, label, upstream, score, my_d, loss, hits);
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      reinterpret_cast<float4*>(s.h + std::size_t(row + 8 * r) * kHidden)[lane] = h.of[r];
      if (stores_class) s.logits[std::size_t(row + 8 * r) * kClasses + my_class] = score[r];
      dclass += my_d[r];
    }
    const auto of_class = [](float x, int k) { return __shfl_sync(0xffffffffu, x, 2 * k); };
    float4 dh[kCount] = {};
#pragma unroll
    for (int k = 0; k < kClasses; ++k)
#pragma unroll
      for (int r = 0; r < kCount; ++r) {
        const float d = of_class(my_d[r], k);
        const float4& x = h.of[r];
        dw[k].x = fmaf(d, x.x, dw[k].x), dw[k].y = fmaf(d, x.y, dw[k].y);
        dw[k].z = fmaf(d, x.z, dw[k].z), dw[k].w = fmaf(d, x.w, dw[k].w);
        dh[r].x = fmaf(d, w[k].x, dh[r].x), dh[r].y = fmaf(d, w[k].y, dh[r].y);
        dh[r].z = fmaf(d, w[k].z, dh[r].z), dh[r].w = fmaf(d, w[k].w, dh[r].w);
      }
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const float4& x = h.of[r];
      const float4 d = make_float4(x.x > 0 ? dh[r].x : 0.f, x.y > 0 ? dh[r].y : 0.f, x.z > 0 ? dh[r].z : 0.f,
                                   x.w > 0 ? dh[r].w : 0.f);
      dbias.x += d.x, dbias.y += d.y, dbias.z += d.z, dbias.w += d.w;
      const int sample = row + 8 * r;
      auto* out = static_cast<typename P::T*>(s.dh) + std::size_t(sample) * kHidden + 4 * lane;
      if constexpr (sizeof(typename P::T) == 2) {
        if (s.fc1_backward_wgmma) out = reinterpret_cast<typename P::T*>(dh_chunk<P>(s, sample, lane));
        const auto store = [&](int i, float x, float y) {
          if constexpr (P::kScaled) {
            x = round_dh(s, x * inverse_of(dh_scale), sample, 4 * lane + 2 * i);
            y = round_dh(s, y * inverse_of(dh_scale), sample, 4 * lane + 2 * i + 1);
          }
          const auto pair = P::pack(x, y);
          reinterpret_cast<typename P::Pair*>(out)[i] = pair;
          if constexpr (P::kScaled) {
            const float2 two = P::unpack(pair);
            largest_dh = fmaxf(largest_dh, fmaxf(fabsf(two.x), fabsf(two.y)));
          }
        };
        store(0, d.x, d.y);
        store(1, d.z, d.w);
      } else if (P::kFp16Terms > 0 && s.fc1_backward_wgmma) {
        const float inverse = inverse_of(dh_scale);
        __half2 terms[2][2];
        split(d.x * inverse, d.y * inverse, terms[0]);
        split(d.z * inverse, d.w * inverse, terms[1]);
#pragma unroll
        for (int term = 0; term < 2; ++term)
          *reinterpret_cast<uint2*>(dh_chunk<P>(s, sample, lane, term)) =
              make_uint2(reinterpret_cast<const std::uint32_t&>(terms[0][term]),
                         reinterpret_cast<const std::uint32_t&>(terms[1][term]));
      } else {
        *reinterpret_cast<float4*>(out) = make_float4(P::store(d.x), P::store(d.y), P::store(d.z), P::store(d.w));
      }
    }
  };
  for (; row + 8 < end; row += 16) {
    const int next[2] = {label_of(row + 16), label_of(row + 24)};
    samples(std::integral_constant<int, 6>(), row, label);
    label[0] = next[0], label[1] = next[1];
  }
  if (row < end) {
    const int last[1] = {label[0]};
    if constexpr (std::is_same_v<Models, Pack>)
      samples(std::integral_constant<int, 8>(), row, last);
    else if (s.fc1_forward_slices > 14)
      samples(std::integral_constant<int, 26>(), row, last);
    else
      samples(std::integral_constant<int, 14>(), row, last);
  }

  if (s.fc1_backward_wgmma) {  // zeros up to the end of the last tile
    const int tiles_end = (s.batch + kSamplesPerDhTile - 1) / kSamplesPerDhTile * kSamplesPerDhTile;
    for (int beyond = s.batch + int(blockIdx.x) * 8 + warp; beyond < tiles_end; beyond += int(gridDim.x) * 8)
#pragma unroll
      for (int term = 0; term < kTerms<P>; ++term)
        *reinterpret_cast<uint2*>(dh_chunk<P>(s, beyond, lane, term)) = make_uint2(0, 0);
  }

  trace(s, Phase::kHead, 2, tid == 0);
  moments[group][column] = moment;
#pragma unroll
  for (int k = 0; k < kClasses; ++k) reinterpret_cast<float4*>(sums[warp] + k * kHidden)[lane] = dw[k];
  if (stores_class) sums[warp][kClasses * kHidden + kHidden + my_class] = dclass;
  reinterpret_cast<float4*>(sums[warp] + kClasses * kHidden)[lane] = dbias;
  if (lane == 0) {
    sums[warp][kHeadValues - 2] = loss;
    sums[warp][kHeadValues - 1] = hits;
  }
  if constexpr (P::kScaled) {
    __shared__ float largest[kThreads / 32];
    largest_dh = warp_max(largest_dh);
    if (lane == 0) largest[warp] = largest_dh;
    __syncthreads();
    if (warp == 0) largest_dh = warp_max(largest[lane % (kThreads / 32)]);
    if (tid == 0) s.dh_max()[blockIdx.x] = dh_scale * largest_dh;
  }
  __syncthreads();
  for (int i = tid; i < kHeadValues; i += kThreads) {
    float total = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) total += sums[k][i];
    s.head_sums[std::size_t(blockIdx.x) * kHeadValues + i] = total;
  }
  trace(s, Phase::kHead, 7, tid == 0);
  if (tid < kMoments)
    s.moment_sums[std::size_t(blockIdx.x) * kMoments + tid] =
        (moments[0][tid] + moments[1][tid]) + (moments[2][tid] + moments[3][tid]);
}

}  // namespace mnist::fused
