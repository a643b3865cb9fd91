// The least that an op has to move and to compute, by its sizes, and what multiplies: what a roof is laid over. Host
// code only.
//
// Arrays have elements of `element` bytes, or of 4, decisions (pass, route) and images of one byte. Each is read or
// written once, and arrays by channel or by output, which are small compared with the rest, are left out. A
// multiply-add is two operations; flops over bytes is the op's arithmetic intensity. `n` is the number of elements of
// the op's result. What a kernel moves beyond this stands in its own header.
#pragma once

#include <cstdint>

namespace mnist::kernels {

// What multiplies: float32 multiply-adds, or tensor cores; x3 makes one float32 product of three. kInt8: dp4a of four
// products of 8 bits; kSparseBf16: tensor cores that leave two zeros of four out.
enum class Unit { kFma, kTensorTf32, kTensorTf32x3, kTensorBf16, kTensorFp16, kTensorFp16x3, kInt8, kSparseBf16 };

constexpr const char* name_of(Unit unit) {
  constexpr const char* kNames[] = {"fma", "tf32", "3xtf32", "bf16", "fp16", "3xfp16", "int8", "2:4 bf16"};
  return kNames[int(unit)];
}

struct Cost {
  double bytes = 0, flops = 0;
};
constexpr Cost operator+(const Cost& a, const Cost& b) { return {a.bytes + b.bytes, a.flops + b.flops}; }

// Forward, backward data or backward weight: each reads two of x, y and w (or their gradients) and writes the third.
constexpr Cost conv2d_cost(std::int64_t batch, int in, int out, int side, int element = 4) {
  const double images = double(batch) * side * side, weights = 9.0 * in * out;
  return {element * (images * in + images * out + weights), 2 * images * weights};
}

// Forward, backward data or backward weight, likewise.
constexpr Cost linear_cost(std::int64_t batch, int in, int out, int element = 4) {
  const double x = double(batch) * in, y = double(batch) * out, w = double(in) * out;
  return {element * (x + y + w), 2 * x * out};
}

// dx, dw and dbias together: dy is read once.
constexpr Cost linear_backward_cost(std::int64_t batch, int in, int out, int element = 4) {
  const double x = double(batch) * in, y = double(batch) * out, w = double(in) * out;
  return {element * (2 * x + y + 2 * w), 4 * x * out};
}

constexpr Cost normalize_cost(std::int64_t n, int element = 4) { return {(1.0 + element) * n, 2.0 * n}; }

// Mean and variance; then y by given statistics. A training forward is both: there is no y before the last x was read.
constexpr Cost batch_norm_statistics_cost(std::int64_t n, int element = 4) { return {1.0 * element * n, 4.0 * n}; }
constexpr Cost batch_norm_forward_cost(std::int64_t n, int element = 4) { return {2.0 * element * n, 4.0 * n}; }
// dy and x for the two sums, both again for dx.
constexpr Cost batch_norm_backward_cost(std::int64_t n, int element = 4) { return {5.0 * element * n, 11.0 * n}; }

// Forward or backward.
constexpr Cost relu_cost(std::int64_t n, int element = 4) { return {(1.0 + 2 * element) * n, 1.0 * n}; }

// n counts the pooled values.
constexpr Cost relu_max_pool2d_forward_cost(std::int64_t n, int element = 4) {
  return {(1.0 + 5 * element) * n, 4.0 * n};
}
constexpr Cost relu_max_pool2d_backward_cost(std::int64_t n, int element = 4) { return {(1.0 + 5 * element) * n, 0}; }

// A whole layer, conv2d to max_pool2d: x and w once, a and its decisions; backward da and the decisions, x and w once,
// dw, and dx where it is asked for. Nothing between has to be moved.
constexpr Cost conv_bn_relu_pool_cost(std::int64_t batch, int in, int out, int side) {
  const double area = double(batch) * side * side, weights = 9.0 * in * out;
  return {4 * (area * in + weights) + 5 * area * out / 4, 2 * area * weights};
}
constexpr Cost conv_bn_relu_pool_backward_cost(std::int64_t batch, int in, int out, int side, bool dx) {
  const double area = double(batch) * side * side, weights = 9.0 * in * out;
  return {4 * (area * in * (dx ? 2 : 1) + 2 * weights) + 5 * area * out / 4, (dx ? 4 : 2) * area * weights};
}
// Of layer 1: 54 sums of the pixels' bytes under a filter.
constexpr Cost pixel_moments_cost(std::int64_t pixels) { return {1.0 * pixels, 2.0 * 54 * pixels}; }

constexpr Cost log_softmax_forward_cost(std::int64_t n, int element = 4) { return {2.0 * element * n, 4.0 * n}; }
constexpr Cost log_softmax_nll_backward_cost(std::int64_t n, int element = 4) { return {2.0 * element * n, 3.0 * n}; }

constexpr Cost transpose_cost(std::int64_t n) { return {8.0 * n, 0}; }

// n numbers are summed, in `rows` sums; each row has a length and a place in the order.
constexpr Cost row_sums_cost(std::int64_t n, std::int64_t rows) { return {4.0 * n + 12.0 * rows, 1.0 * n}; }

constexpr Cost histogram_cost(std::int64_t pixels) { return {1.0 * pixels, 0}; }

constexpr Cost sgd_cost(std::int64_t n, int element = 4) { return {3.0 * element * n, 2.0 * n}; }

// The ends of a step: a batch by index (images, labels, order), and its mean loss and right answers.
constexpr Cost gather_cost(std::int64_t batch) { return {batch * (2.0 * 785 + 4), 0}; }
constexpr Cost record_cost(std::int64_t batch) { return {batch * 81.0, batch * 12.0}; }

}  // namespace mnist::kernels
