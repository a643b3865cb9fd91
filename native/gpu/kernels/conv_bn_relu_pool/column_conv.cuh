// column_conv: a 3x3 convolution of whole 14x14 planes by a block, with room for a prologue and an epilogue: what is
// convolved may be computed as it is loaded, and the sums are still in registers when the function returns.
#pragma once

#include <cstdint>

#include "kernels/conv_bn_relu_pool/gradient.cuh"
#include "mnist/model.h"

namespace mnist::kernels {

inline constexpr int kConvSide = kPool1Side, kConvArea = kConvSide * kConvSide;
inline constexpr int kConvWindows = kConvArea / 4;          // of a plane
inline constexpr int kConvPitch = kConvSide + 2;            // of a plane with its border of zeros
inline constexpr int kConvPlane = kConvPitch * kConvPitch;  // 256
inline constexpr int kConvRows = 7, kConvRuns = 2;          // of a column: a thread has 7 rows of one
inline constexpr int kConvLanes = kConvRuns * kConvSide;    // of a warp that have a column; 4 of 32 have none
static_assert(kConvRows * kConvRuns == kConvSide && kConvLanes <= 32);

// Where position n of a plane with its border lies in the plane itself; -1 on the border.
__device__ inline int inside_border(int n) {
  const int r = n / kConvPitch - 1, s = n % kConvPitch - 1;
  return r >= 0 && r < kConvSide && s >= 0 && s < kConvSide ? r * kConvSide + s : -1;
}

// What is convolved as it lies in memory. An Input has fetch(plane, position), which only loads, so that the loads of
// a stage are in flight together, and value(element, plane), which computes when they have arrived.
struct PlainInput {
  using Element = float;
  const float* image;
  __device__ float fetch(int plane, int position) const { return image[plane * kConvArea + position]; }
  __device__ float value(float element, int) const { return element; }
};

// dz of an image, made of z, da and route.
struct GradientInput {
  struct Element {
    float z, da;
    int route;
  };
  const float *z, *da;  // of the image
  const std::uint8_t* route;
  const ChannelGradient* channels;  // in shared memory

  __device__ Element fetch(int plane, int position) const {
    const int window = plane * kConvWindows + window_of(position, kConvSide);
    // place_of() goes into the route here, where the position is known: 0 says that the gradient comes this way.
    return {z[plane * kConvArea + position], da[window], route[window] - place_of(position, kConvSide)};
  }
  __device__ float value(const Element& e, int plane) const { return channels[plane].of(e.route == 0 ? e.da : 0, e.z); }
};

// A block of 32 x kGroups threads makes kEach x kGroups channels of an image, a thread 7 rows of a column of kEach
// channels. A warp has all positions of its channels, so sums over an image are shuffles.
template <int kEach, int kGroups>
struct ColumnConv {
  static constexpr int kThreads = 32 * kGroups, kChannels = kEach * kGroups;
  static constexpr int kPlanes = 16 / kEach;          // input channels of a stage: with fewer sums a stage has more
  static constexpr int kFilterPitch = kChannels + 4;  // a multiple of 4 for float4 reads
  static constexpr int kPositions = kConvPlane / kThreads;  // of a plane that a thread loads
  static constexpr int kWeights = kPlanes * kTaps * kChannels, kWeightLoads = (kWeights + kThreads - 1) / kThreads;
  static constexpr int kPlaneFloats = kPlanes * kConvPlane, kFilterFloats = kPlanes * kTaps * kFilterPitch;
  static constexpr int kSharedFloats = 2 * (kPlaneFloats + kFilterFloats);

  // sums[k][r] += sum over i, u, v of filter(o,i,u,v) * x[i,p+u-1,q+v-1], o = first + k. kTurned false: the filter is
  // w (out,in,3,3); true, for the gradient of the input: w is (in,out,3,3), turned by half a circle. While a stage of
  // kPlanes input channels is multiplied, the next one is on its way through registers. `shared`: kSharedFloats.
  template <bool kTurned, class Input>
  static __device__ void run(float (&sums)[kEach][kConvRows], float* shared, const Input& input,
                             const float* __restrict__ w, int in, int out, int first) {
    const int t = int(threadIdx.y) * 32 + int(threadIdx.x), group = int(threadIdx.y);
    const int lane = int(threadIdx.x) < kConvLanes ? int(threadIdx.x) : 0;
    const int corner = lane / kConvSide * kConvRows * kConvPitch + lane % kConvSide;
    typename Input::Element elements[kPlanes][kPositions];
    float weights[kWeightLoads];

    const auto load = [&](int i0) {
#pragma unroll
      for (int j = 0; j < kPositions; ++j) {
        const int position = inside_border(t + j * kThreads);
#pragma unroll
        for (int i = 0; i < kPlanes; ++i)
          if (position >= 0 && i0 + i < in) elements[i][j] = input.fetch(i0 + i, position);
      }
#pragma unroll
      for (int n = 0; n < kWeightLoads; ++n) {
        const auto [i, tap, o] = weight_at<kTurned>(t + n * kThreads);
        const bool exists = t + n * kThreads < kWeights && i0 + i < in && first + o < out;
        const int at = kTurned ? ((i0 + i) * out + first + o) * kTaps + tap : ((first + o) * in + i0 + i) * kTaps + tap;
        weights[n] = exists ? w[at] : 0;
      }
    };
    const auto store = [&](int i0, float* planes, float* filters) {
#pragma unroll
      for (int j = 0; j < kPositions; ++j) {
        const int n = t + j * kThreads;
        const bool inside = inside_border(n) >= 0;
#pragma unroll
        for (int i = 0; i < kPlanes; ++i)
          planes[i * kConvPlane + n] = inside && i0 + i < in ? input.value(elements[i][j], i0 + i) : 0;
      }
#pragma unroll
      for (int n = 0; n < kWeightLoads; ++n) {
        const auto [i, tap, o] = weight_at<kTurned>(t + n * kThreads);
        if (t + n * kThreads < kWeights)
          filters[(i * kTaps + (kTurned ? kTaps - 1 - tap : tap)) * kFilterPitch + o] = weights[n];
      }
    };

    load(0);
    int stage = 0;
    for (int i0 = 0; i0 < in; i0 += kPlanes, stage ^= 1) {
      float* planes = shared + stage * kPlaneFloats;
      float* filters = shared + 2 * kPlaneFloats + stage * kFilterFloats;
      store(i0, planes, filters);
      __syncthreads();  // the stage is complete, and everyone is done with the one before the last
      if (i0 + kPlanes < in) load(i0 + kPlanes);
#pragma unroll
      for (int i = 0; i < kPlanes; ++i) {
#pragma unroll
        for (int v = 0; v < 3; ++v) {
          float column[kConvRows + 2];
#pragma unroll
          for (int r = 0; r < kConvRows + 2; ++r) column[r] = planes[i * kConvPlane + corner + r * kConvPitch + v];
#pragma unroll
          for (int u = 0; u < 3; ++u) {
            const float* from = filters + (i * kTaps + 3 * u + v) * kFilterPitch + group * kEach;
            float filter[kEach];
#pragma unroll
            for (int k = 0; k < kEach; k += 4) {
              const float4 four = *reinterpret_cast<const float4*>(from + k);
              filter[k] = four.x, filter[k + 1] = four.y, filter[k + 2] = four.z, filter[k + 3] = four.w;
            }
#pragma unroll
            for (int k = 0; k < kEach; ++k)
#pragma unroll
              for (int r = 0; r < kConvRows; ++r) sums[k][r] += filter[k] * column[r + u];
          }
        }
      }
    }
  }

  // Calls visit(k, r, position) for what this thread has: channel first + group * kEach + k, a position of the plane.
  template <class Visit>
  static __device__ void for_each_output(Visit visit) {
    const int lane = int(threadIdx.x);
    if (lane >= kConvLanes) return;
    const int position = lane / kConvSide * kConvRows * kConvSide + lane % kConvSide;
#pragma unroll
    for (int k = 0; k < kEach; ++k)
#pragma unroll
      for (int r = 0; r < kConvRows; ++r) visit(k, r, position + r * kConvSide);
  }

 private:
  struct Weight {
    int i, tap, o;
  };
  // Neighbours in n are neighbours in w.
  template <bool kTurned>
  static __device__ Weight weight_at(int n) {
    if (kTurned) return {n / (kTaps * kChannels), n % kTaps, n / kTaps % kChannels};
    return {n / kTaps % kPlanes, n % kTaps, n / (kTaps * kPlanes)};
  }
};

// The sum over a warp, in every lane.
__device__ inline float warp_total(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
  return value;
}

}  // namespace mnist::kernels
