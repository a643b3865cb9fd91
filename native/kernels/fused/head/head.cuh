// head: the slices of fc1 added up, relu, fc2, log-softmax, the loss and the gradients of everything above fc1's
// output. Beside that the pixel moments of the next batch are summed, for update's bn1.
#pragma once

#include "kernels/device/dependent_launch.cuh"
#include "kernels/device/loads.cuh"
#include "kernels/fused/shared/blocks.h"
#include "kernels/fused/shared/models.cuh"
#include "kernels/fused/shared/policy.cuh"
#include "kernels/fused/state.h"

namespace mnist::fused {

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

// Where a lane's four values of dh go that fc1_backward reads by wgmma.
template <class P>
__device__ __forceinline__ typename P::T* dh_chunk(const State& s, int row, int lane) {
  const int chunk = row / kDhTile * (kHidden / 8) + lane / 2;
  return static_cast<typename P::T*>(s.dh) + (std::size_t(chunk) * kDhTile + row % kDhTile) * 8 + lane % 2 * 4;
}

// One warp a sample at a time; lane l owns hidden units 4l .. 4l+3, and class l / 2. head_sums of a block: d
// fc2.weight, d fc1.bias, d fc2.bias, loss and hits, summed over its samples in a fixed order.
template <class P, class Models>
__global__ void __launch_bounds__(kThreads, 1) head_kernel(Models models, int graph_step) {
  const auto& s = state_of_block(models);
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
    return row < end ? int(s.samples.labels[s.samples.order[std::size_t(graph_step) * s.batch + row]]) : 0;
  };
  int label = label_of(row);

  // The next batch's pixel moments, this block's share: they depend on nothing, so they are summed while fc1_forward
  // ends.
  const int column = tid & 63, group = tid >> 6;
  double moment = 0;
  if (column < kMoments)
    for (int b = blockIdx.x + group * gridDim.x; b < s.batch; b += 4 * gridDim.x)
      moment +=
          s.samples
              .moments[std::size_t(s.samples.order[std::size_t(graph_step + 1) * s.batch + b]) * kMoments + column];
  wait_for_predecessor();  // fc1_forward: h_slices
  float4 dw[kClasses] = {}, dbias = {};
  float dclass = 0, loss = 0, hits = 0;

  for (; row < end; row += 8, label = label_of(row)) {
    float4 h = bias;
    const auto slice = [&](int k) {
      return reinterpret_cast<const float4*>(s.h_slices + (std::size_t(k) * s.batch + row) * kHidden)[lane];
    };
    const auto add = [&](float4 x, int) { h.x += x.x, h.y += x.y, h.z += x.z, h.w += x.w; };
    if constexpr (std::is_same_v<Models, Pack>)
      for_rows<1, 8>(s.fc1_forward_slices, 0, slice, add);
    else if (s.fc1_forward_slices > 14)
      for_rows<1, 26>(s.fc1_forward_slices, 0, slice, add);
    else
      for_rows<1, 14>(s.fc1_forward_slices, 0, slice, add);
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
      if (s.fc1_backward_wgmma) out = dh_chunk<P>(s, row, lane);
      reinterpret_cast<__nv_bfloat162*>(out)[0] = __floats2bfloat162_rn(dh.x, dh.y);
      reinterpret_cast<__nv_bfloat162*>(out)[1] = __floats2bfloat162_rn(dh.z, dh.w);
    } else {
      *reinterpret_cast<float4*>(out) = make_float4(P::store(dh.x), P::store(dh.y), P::store(dh.z), P::store(dh.w));
    }
  }

  if constexpr (sizeof(typename P::T) == 2)
    if (s.fc1_backward_wgmma) {  // zeros up to the end of the last tile
      const int tiles_end = (s.batch + kDhTile - 1) / kDhTile * kDhTile;
      for (int beyond = s.batch + int(blockIdx.x) * 8 + warp; beyond < tiles_end; beyond += int(gridDim.x) * 8)
        *reinterpret_cast<uint2*>(dh_chunk<P>(s, beyond, lane)) = make_uint2(0, 0);
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
