// gradient: what reaches a convolution through pool, relu and batch norm, for one value at a time: dz is never stored.
#pragma once

#include <cstdint>

#include "kernels/conv_bn_relu_pool/conv_bn_relu_pool.h"
#include "mnist/model.h"
#include "mnist/step.h"

namespace mnist::kernels {

// Where batch norm's backward stands: its inputs by channel.
struct BatchNormGradient {
  const float *gamma, *mean, *var, *dgamma, *dbeta;
  float per_value;  // 1/N, N values a channel
};
inline BatchNormGradient gradient_of(const PooledGradient& of, std::int64_t batch, int side) {
  return {of.gamma, of.mean, of.var, of.dgamma, of.dbeta, float(1 / (double(batch) * side * side))};
}

// dz = scale * dy + slope * (z - mean) + offset, by channel: batch norm's backward with its sums folded in.
struct ChannelGradient {
  float scale, mean, slope, offset;

  __device__ float of(float dy, float z) const { return scale * dy + (slope * (z - mean) + offset); }
};

// Of `times` dz.
__device__ inline ChannelGradient channel_gradient(const BatchNormGradient& by, int c, float times = 1) {
  const float inverse = 1 / sqrtf(by.var[c] + float(kBatchNormEpsilon)), scale = times * by.gamma[c] * inverse;
  return {scale, by.mean[c], -scale * inverse * by.dgamma[c] * by.per_value, -scale * by.dbeta[c] * by.per_value};
}

// Where images are flat, dz is nearly the same at most positions of a channel, and of its sum little is left. A number
// added to a sum a million times as large is rounded to that sum's grid: there always by the same amount, at every
// position of every image, so that these errors do not cancel. So an image's sums are made times a number of its own
// from 1 to 2, on whose grid it rounds otherwise.
__device__ inline float scale_of_image(std::int64_t b) { return 1 + float(b * 633 % 1024) / 1024; }  // 0.618 b mod 1

// The window of a position of a plane with `side` columns, and which of its four this is: as a route counts them.
__device__ inline int window_of(int position, int side) {
  return position / side / 2 * (side / 2) + position % side / 2;
}
__device__ inline int place_of(int position, int side) { return position / side % 2 * 2 + position % side % 2; }

// The place in its plane that a route names, of a window of `pooled` columns. `route` is not kDead.
__device__ inline int routed_position(int window, int route, int pooled) {
  return (2 * (window / pooled) + route / 2) * 2 * pooled + 2 * (window % pooled) + route % 2;
}

}  // namespace mnist::kernels
