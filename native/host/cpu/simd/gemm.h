// Small matrix products with all strides known at compile time: c[m][n] (+)= sum over k of a[m][k] * b[k][n].
//
// A block of c lives in registers while k runs: each step loads one row of b's vectors and multiplies it by `Rows`
// broadcast elements of a. The operands are the activations and weights as they lie in memory; nothing is packed.
#pragma once

#include "cpu/simd/vec.h"
#include "mnist/ceil_div.h"

namespace mnist::cpu {
namespace {

// Element (m,k) of a is a[m * kRow + k * kStep].
template <int kRowStride, int kStepStride>
struct Strides {
  static constexpr int kRow = kRowStride, kStep = kStepStride;
};

// c (Rows, Vectors * kLanes) stays in Rows * Vectors registers.
template <int kRows, int kVectors, class A, int kLdb, int kLdc, bool kAdd>
inline __attribute__((always_inline)) void gemm_block(float* c, const float* a, const float* b, int depth) {
  Vec acc[kRows][kVectors] = {};
  for (int k = 0; k < depth; ++k, a += A::kStep, b += kLdb) {
    Vec row[kVectors];
    MNIST_UNROLL
    for (int j = 0; j < kVectors; ++j) row[j] = load(b + j * kLanes);
    MNIST_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const Vec value = broadcast(a[i * A::kRow]);
      MNIST_UNROLL
      for (int j = 0; j < kVectors; ++j) acc[i][j] += value * row[j];
    }
  }
  MNIST_UNROLL
  for (int i = 0; i < kRows; ++i) MNIST_UNROLL
  for (int j = 0; j < kVectors; ++j) {
    float* to = c + i * kLdc + j * kLanes;
    store(to, kAdd ? load(to) + acc[i][j] : acc[i][j]);
  }
}

// The widest block of c that fits the registers together with one row of b and one element of a.
constexpr int block_vectors(int columns) {
  const int vectors = columns / kLanes, most = kRegisters == 32 ? 4 : 2;
  return vectors < most ? vectors : most;
}
constexpr int block_rows(int vectors) {
  return (kRegisters - 1) / vectors - 1 > 14 ? 14 : (kRegisters - 1) / vectors - 1;
}

// All of c (kM, kN), the rows shared out evenly among as few blocks as possible.
template <int kM, int kN, class A, int kLdb, int kLdc, bool kAdd>
inline void gemm(float* c, const float* a, const float* b, int depth) {
  constexpr int vectors = block_vectors(kN), most = block_rows(vectors);
  constexpr int blocks = ceil_div(kM, most), rows = ceil_div(kM, blocks);
  constexpr int big = kM - blocks * (rows - 1);  // blocks of `rows`, the others have one less
  static_assert(kN % (vectors * kLanes) == 0);
  for (int n = 0; n < kN; n += vectors * kLanes) {
    for (int m = 0; m < big * rows; m += rows)
      gemm_block<rows, vectors, A, kLdb, kLdc, kAdd>(c + m * kLdc + n, a + m * A::kRow, b + n, depth);
    if constexpr (big * rows < kM)
      for (int m = big * rows; m < kM; m += rows - 1)
        gemm_block<rows - 1, vectors, A, kLdb, kLdc, kAdd>(c + m * kLdc + n, a + m * A::kRow, b + n, depth);
  }
}

// The same for a number of rows known only at run time.
template <int kRows, int kVectors, class A, int kLdb, int kLdc, bool kAdd>
inline void gemm_tail(float* c, const float* a, const float* b, int rows, int depth) {
  if constexpr (kRows > 0) {
    if (rows == kRows)
      gemm_block<kRows, kVectors, A, kLdb, kLdc, kAdd>(c, a, b, depth);
    else
      gemm_tail<kRows - 1, kVectors, A, kLdb, kLdc, kAdd>(c, a, b, rows, depth);
  }
}

template <int kN, class A, int kLdb, int kLdc, bool kAdd>
inline void gemm(float* c, const float* a, const float* b, int rows, int depth) {
  constexpr int vectors = block_vectors(kN), most = block_rows(vectors);
  static_assert(kN % (vectors * kLanes) == 0);
  for (int n = 0; n < kN; n += vectors * kLanes) {
    int m = 0;
    for (; m + most <= rows; m += most)
      gemm_block<most, vectors, A, kLdb, kLdc, kAdd>(c + m * kLdc + n, a + m * A::kRow, b + n, depth);
    gemm_tail<most - 1, vectors, A, kLdb, kLdc, kAdd>(c + m * kLdc + n, a + m * A::kRow, b + n, rows - m, depth);
  }
}

}  // namespace
}  // namespace mnist::cpu
