// The least that an op has to move and to compute, by its sizes: what a roof is laid over. Host code only.
//
// Arrays are float32, decisions (pass, route) and images bytes. Each is read or written once, and arrays by channel or
// by output, which are small beside the rest, are left out. A multiply-add is two operations. `n` is the number of
// elements of the op's result. What a kernel moves beyond this stands in its own header.
#pragma once

#include <cstdint>

namespace mnist::kernels {

struct Cost {
  double bytes = 0, flops = 0;
};
constexpr Cost operator+(const Cost& a, const Cost& b) { return {a.bytes + b.bytes, a.flops + b.flops}; }

// Forward, backward data or backward weight: each reads two of x, y and w (or their gradients) and writes the third.
constexpr Cost conv2d_cost(std::int64_t batch, int in, int out, int side) {
  const double images = double(batch) * side * side, weights = 9.0 * in * out;
  return {4 * (images * in + images * out + weights), 2 * images * weights};
}

// Forward, backward data or backward weight, likewise.
constexpr Cost linear_cost(std::int64_t batch, int in, int out) {
  const double x = double(batch) * in, y = double(batch) * out, w = double(in) * out;
  return {4 * (x + y + w), 2 * x * out};
}

// dx, dw and dbias together: dy is read once.
constexpr Cost linear_backward_cost(std::int64_t batch, int in, int out) {
  const double x = double(batch) * in, y = double(batch) * out, w = double(in) * out;
  return {4 * (2 * x + y + 2 * w), 4 * x * out};
}

constexpr Cost normalize_cost(std::int64_t n) { return {5.0 * n, 2.0 * n}; }

// Mean and variance; then y by given statistics. A training forward is both: there is no y before the last x was read.
constexpr Cost batch_norm_statistics_cost(std::int64_t n) { return {4.0 * n, 4.0 * n}; }
constexpr Cost batch_norm_forward_cost(std::int64_t n) { return {8.0 * n, 4.0 * n}; }
// dy and x for the two sums, both again for dx.
constexpr Cost batch_norm_backward_cost(std::int64_t n) { return {20.0 * n, 11.0 * n}; }

constexpr Cost relu_cost(std::int64_t n) { return {9.0 * n, 1.0 * n}; }  // forward or backward

// n counts the pooled values.
constexpr Cost relu_max_pool2d_forward_cost(std::int64_t n) { return {21.0 * n, 4.0 * n}; }
constexpr Cost relu_max_pool2d_backward_cost(std::int64_t n) { return {21.0 * n, 0}; }

constexpr Cost log_softmax_forward_cost(std::int64_t n) { return {8.0 * n, 4.0 * n}; }
constexpr Cost log_softmax_nll_backward_cost(std::int64_t n) { return {8.0 * n, 3.0 * n}; }

constexpr Cost sgd_cost(std::int64_t n) { return {12.0 * n, 2.0 * n}; }

}  // namespace mnist::kernels
