// conv2 of one image by Winograd's F(2x2, 3x3), where an output tile is a pool window: 16 products of small matrices
// do the work of 36, and the transforms are additions of whole channel vectors.
//
// With d a 4x4 piece of the padded input, w a 3x3 filter and y the 2x2 outputs they make (Lavin and Gray, "Fast
// Algorithms for Convolutional Neural Networks", 2015):
//   y = A^T [ (G w G^T) * (B^T d B) ] A,   * elementwise over the 16 frequencies and summed over input channels,
//         | 1  0 -1  0 |       | 1    0    0  |
//   B^T = | 0  1  1  0 |   G = | 1/2  1/2 1/2 |   A^T = | 1 1  1  0 |
//         | 0 -1  1  0 |       | 1/2 -1/2 1/2 |         | 0 1 -1 -1 |
//         | 0  1  0 -1 |       | 0    0    1  |
// Every map is linear, so its transpose gives the backward pass: m' = A dy A^T serves both gradients,
//   du[f] = v[f]^T m'[f],  dw = G^T du G;   dv[f] = m'[f] u[f]^T,  dd = B dv B^T, tiles overlapping by two.
// Where the input is constant along an axis the differences are exactly 0 and the outputs exactly equal, so that ties
// in flat background stay ties.
#pragma once

#include "cpu/simd/gemm.h"

namespace mnist::cpu {
namespace {

constexpr int kInputTile = kTiles * kConv1Channels;   // floats from one frequency of v to the next
constexpr int kOutputTile = kTiles * kConv2Channels;  // the same of m

// ---- weights -------------------------------------------------------------------------------------------------------

void conv2_weight(float* u, float* ut, const float* w, const float* sign, int channel) {
  w += channel * kTaps * kConv2Channels;
  for (int c = 0; c < kConv2Channels; c += kLanes) {
    const Vec half = broadcast(0.5f), s = load(sign + c);
    Vec rows[4][3];  // G w
    MNIST_UNROLL
    for (int j = 0; j < 3; ++j) {
      const Vec w0 = s * load(w + j * kConv2Channels + c), w1 = s * load(w + (3 + j) * kConv2Channels + c),
                w2 = s * load(w + (6 + j) * kConv2Channels + c);
      rows[0][j] = w0;
      rows[1][j] = half * (w0 + w1 + w2);
      rows[2][j] = half * (w0 - w1 + w2);
      rows[3][j] = w2;
    }
    MNIST_UNROLL
    for (int i = 0; i < 4; ++i) {
      const Vec* r = rows[i];
      const Vec out[4] = {r[0], half * (r[0] + r[1] + r[2]), half * (r[0] - r[1] + r[2]), r[2]};
      MNIST_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int f = 4 * i + j;
        store(u + (f * kConv1Channels + channel) * kConv2Channels + c, out[j]);
        for (int lane = 0; lane < kLanes; ++lane)
          ut[(f * kConv2Channels + c + lane) * kConv1Channels + channel] = out[j][lane];
      }
    }
  }
}

void conv2_weight_gradient(float* dw, const float* du, std::int64_t stride, int count, const float* sign, int channel) {
  for (int c = 0; c < kConv2Channels; c += kLanes) {
    Vec sum[4][4] = {};
    for (int n = 0; n < count; ++n) {
      const float* from = du + n * stride + channel * kConv2Channels + c;
      MNIST_UNROLL
      for (int f = 0; f < kFrequencies; ++f) sum[f / 4][f % 4] += load(from + f * kConv1Channels * kConv2Channels);
    }
    const Vec half = broadcast(0.5f), s = load(sign + c);
    Vec rows[3][4];  // G^T du
    MNIST_UNROLL
    for (int j = 0; j < 4; ++j) {
      const Vec plus = half * (sum[1][j] + sum[2][j]), minus = half * (sum[1][j] - sum[2][j]);
      rows[0][j] = sum[0][j] + plus;
      rows[1][j] = minus;
      rows[2][j] = sum[3][j] + plus;
    }
    MNIST_UNROLL
    for (int i = 0; i < 3; ++i) {
      const Vec* r = rows[i];
      const Vec plus = half * (r[1] + r[2]), minus = half * (r[1] - r[2]);
      float* to = dw + 3 * i * kConv2Channels + c;
      store(to, s * (r[0] + plus));
      store(to + kConv2Channels, s * minus);
      store(to + 2 * kConv2Channels, s * (r[3] + plus));
    }
  }
}

// ---- transforms ----------------------------------------------------------------------------------------------------

// v = B^T d B of every tile.
void input_transform(float* v, const float* a1) {
  for (int tile = 0; tile < kTiles; ++tile)
    for (int c = 0; c < kConv1Channels; c += kLanes) {
      const float* d = a1 + tile / kPool2Side * 2 * kA1Row + tile % kPool2Side * 2 * kConv1Channels + c;
      float* to = v + tile * kConv1Channels + c;
      Vec rows[4][4];  // B^T d
      MNIST_UNROLL
      for (int j = 0; j < 4; ++j) {
        const Vec d0 = load(d + j * kConv1Channels), d1 = load(d + kA1Row + j * kConv1Channels),
                  d2 = load(d + 2 * kA1Row + j * kConv1Channels), d3 = load(d + 3 * kA1Row + j * kConv1Channels);
        rows[0][j] = d0 - d2;
        rows[1][j] = d1 + d2;
        rows[2][j] = d2 - d1;
        rows[3][j] = d1 - d3;
      }
      MNIST_UNROLL
      for (int i = 0; i < 4; ++i) {
        const Vec* r = rows[i];
        store(to + (4 * i) * kInputTile, r[0] - r[2]);
        store(to + (4 * i + 1) * kInputTile, r[1] + r[2]);
        store(to + (4 * i + 2) * kInputTile, r[2] - r[1]);
        store(to + (4 * i + 3) * kInputTile, r[1] - r[3]);
      }
    }
}

// da1 = sum over tiles of B dv B^T.
void input_transform_backward(float* da1, const float* dv) {
  for (int i = 0; i < kA1Size; i += kLanes) store(da1 + i, Vec{});
  for (int tile = 0; tile < kTiles; ++tile)
    for (int c = 0; c < kConv1Channels; c += kLanes) {
      const float* from = dv + tile * kConv1Channels + c;
      float* d = da1 + tile / kPool2Side * 2 * kA1Row + tile % kPool2Side * 2 * kConv1Channels + c;
      Vec rows[4][4];  // B dv
      MNIST_UNROLL
      for (int j = 0; j < 4; ++j) {
        const Vec v0 = load(from + j * kInputTile), v1 = load(from + (4 + j) * kInputTile),
                  v2 = load(from + (8 + j) * kInputTile), v3 = load(from + (12 + j) * kInputTile);
        rows[0][j] = v0;
        rows[1][j] = v1 - v2 + v3;
        rows[2][j] = v1 + v2 - v0;
        rows[3][j] = -v3;
      }
      MNIST_UNROLL
      for (int i = 0; i < 4; ++i) {
        const Vec* r = rows[i];
        const Vec out[4] = {r[0], r[1] - r[2] + r[3], r[1] + r[2] - r[0], -r[3]};
        MNIST_UNROLL
        for (int j = 0; j < 4; ++j) {
          float* to = d + i * kA1Row + j * kConv1Channels;
          store(to, load(to) + out[j]);
        }
      }
    }
}

// z = A^T m A, e its extremum in each window, and the image's share of batch norm's sums.
void output_transform(float* z, float* e, float* sums, const float* m, const std::int32_t* live) {
  constexpr int kVectors = kConv2Channels / kLanes;
  Vec sum[kVectors] = {}, square[kVectors] = {};
  for (int tile = 0; tile < kTiles; ++tile)
    for (int v = 0; v < kVectors; ++v) {
      const int c = v * kLanes;
      const Mask alive = load(live + c);
      const float* from = m + tile * kConv2Channels + c;
      Vec top[4], bottom[4];  // A^T m
      MNIST_UNROLL
      for (int j = 0; j < 4; ++j) {
        const Vec m0 = load(from + j * kOutputTile), m1 = load(from + (4 + j) * kOutputTile),
                  m2 = load(from + (8 + j) * kOutputTile), m3 = load(from + (12 + j) * kOutputTile);
        top[j] = m0 + m1 + m2;
        bottom[j] = m1 - m2 - m3;
      }
      const Vec y[4] = {top[0] + top[1] + top[2], top[1] - top[2] - top[3], bottom[0] + bottom[1] + bottom[2],
                        bottom[1] - bottom[2] - bottom[3]};
      Vec best = y[0];
      MNIST_UNROLL
      for (int k = 0; k < 4; ++k) {
        store(z + (tile * 4 + k) * kConv2Channels + c, y[k]);
        best = (y[k] > best) & alive ? y[k] : best;
        square[v] += y[k] * y[k];
      }
      sum[v] += (y[0] + y[1]) + (y[2] + y[3]);
      store(e + tile * kConv2Channels + c, best);
    }
  for (int v = 0; v < kVectors; ++v) {
    store(sums + v * kLanes, sum[v]);
    store(sums + kConv2Channels + v * kLanes, square[v]);
  }
}

// m' = A dz A^T with dz = scale * (g at the window's first maximum) + alpha + kappa * z.
void output_transform_backward(float* m, const float* g, const float* z, const Affine2& affine) {
  for (int tile = 0; tile < kTiles; ++tile)
    for (int c = 0; c < kConv2Channels; c += kLanes) {
      const Vec scale = load(affine.scale + c), alpha = load(affine.alpha + c), kappa = load(affine.kappa + c);
      const Mask alive = load(affine.live + c);
      Vec y[4];
      MNIST_UNROLL
      for (int k = 0; k < 4; ++k) y[k] = load(z + (tile * 4 + k) * kConv2Channels + c);
      Vec best = y[0];
      Mask where = {};
      MNIST_UNROLL
      for (int k = 1; k < 4; ++k) {
        const Mask better = (y[k] > best) & alive;
        best = better ? y[k] : best;
        where = better ? Mask{} + k : where;
      }
      const Vec gradient = scale * load(g + tile * kConv2Channels + c);
      Vec dz[4];
      MNIST_UNROLL
      for (int k = 0; k < 4; ++k) dz[k] = kappa * y[k] + alpha + (where == Mask{} + k ? gradient : Vec{});
      const Vec rows[4][2] = {
          {dz[0], dz[1]}, {dz[0] + dz[2], dz[1] + dz[3]}, {dz[0] - dz[2], dz[1] - dz[3]}, {-dz[2], -dz[3]}};
      float* to = m + tile * kConv2Channels + c;
      MNIST_UNROLL
      for (int i = 0; i < 4; ++i) {
        store(to + (4 * i) * kOutputTile, rows[i][0]);
        store(to + (4 * i + 1) * kOutputTile, rows[i][0] + rows[i][1]);
        store(to + (4 * i + 2) * kOutputTile, rows[i][0] - rows[i][1]);
        store(to + (4 * i + 3) * kOutputTile, -rows[i][1]);
      }
    }
}

// ---- the layer -----------------------------------------------------------------------------------------------------

void conv2_forward(float* z, float* e, float* sums, const float* a1, const float* u, const std::int32_t* live,
                   const Scratch& scratch) {
  using Tiles = Strides<kConv1Channels, 1>;  // rows of the product are tiles, depth is the input channel
  input_transform(scratch.input_tiles, a1);
  for (int f = 0; f < kFrequencies; ++f) {
    prefetch(z + f * (kZ2Size / kFrequencies), kZ2Size / kFrequencies);  // z is far away and needed right after
    gemm<kTiles, kConv2Channels, Tiles, kConv2Channels, kConv2Channels, false>(
        scratch.output_tiles + f * kOutputTile, scratch.input_tiles + f * kInputTile,
        u + f * kConv1Channels * kConv2Channels, kConv1Channels);
  }
  output_transform(z, e, sums, scratch.output_tiles, live);
}

template <bool kAdd>
void conv2_backward_products(float* du, float* v, const float* m, const float* ut) {
  using Channels = Strides<1, kConv1Channels>;  // du: rows are input channels, depth is the tile
  using Tiles = Strides<kConv2Channels, 1>;     // dv: rows are tiles, depth is the output channel
  constexpr int kSize = kConv1Channels * kConv2Channels;
  for (int f = 0; f < kFrequencies; ++f, du += kSize, ut += kSize, v += kInputTile, m += kOutputTile) {
    gemm<kConv1Channels, kConv2Channels, Channels, kConv2Channels, kConv2Channels, kAdd>(du, v, m, kTiles);
    gemm<kTiles, kConv1Channels, Tiles, kConv1Channels, kConv1Channels, false>(v, m, ut, kConv2Channels);  // v is done
  }
}

void conv2_backward(float* da1, float* du, bool first, const float* g, const float* z, const float* a1,
                    const Affine2& affine, const float* ut, const Scratch& scratch) {
  input_transform(scratch.input_tiles, a1);
  output_transform_backward(scratch.output_tiles, g, z, affine);
  if (first)
    conv2_backward_products<false>(du, scratch.input_tiles, scratch.output_tiles, ut);
  else
    conv2_backward_products<true>(du, scratch.input_tiles, scratch.output_tiles, ut);
  input_transform_backward(da1, scratch.input_tiles);
}

}  // namespace
}  // namespace mnist::cpu
