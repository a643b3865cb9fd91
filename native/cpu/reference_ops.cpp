// Float64 loops in the order of the formulas in reference_ops.h; nothing clever.
#include "cpu/reference_ops.h"

#include <algorithm>
#include <cmath>

#include "mnist/engine.h"

namespace mnist::reference {
namespace {

// Calls visit(row of a, row of b, length) for each pair of row pieces that filter tap (u,v) connects: a at (p,q),
// b at (p+u-1, q+v-1), both inside a side x side image.
template <class A, class B, class Visit>
void for_each_tap_row(A* a, B* b, int u, int v, int side, Visit visit) {
  const int q0 = std::max(0, 1 - v), q1 = std::min(side, side + 1 - v);
  for (int p = std::max(0, 1 - u); p < std::min(side, side + 1 - u); ++p)
    visit(a + p * side + q0, b + (p + u - 1) * side + q0 + v - 1, q1 - q0);
}

}  // namespace

void conv2d_forward(double* y, const double* x, const double* w, const double* bias, std::int64_t batch, int in,
                    int out, int side) {
  const int area = side * side;
  for (std::int64_t b = 0; b < batch; ++b)
    for (int o = 0; o < out; ++o) {
      double* plane = y + (b * out + o) * area;
      std::fill(plane, plane + area, bias[o]);
      for (int i = 0; i < in; ++i)
        for (int u = 0; u < 3; ++u)
          for (int v = 0; v < 3; ++v) {
            const double weight = w[((o * in + i) * 3 + u) * 3 + v];
            for_each_tap_row(plane, x + (b * in + i) * area, u, v, side, [&](double* yr, const double* xr, int n) {
              for (int q = 0; q < n; ++q) yr[q] += weight * xr[q];
            });
          }
    }
}

void conv2d_backward_data(double* dx, const double* dy, const double* w, std::int64_t batch, int in, int out,
                          int side) {
  const int area = side * side;
  std::fill(dx, dx + batch * in * area, 0.0);
  for (std::int64_t b = 0; b < batch; ++b)
    for (int o = 0; o < out; ++o)
      for (int i = 0; i < in; ++i)
        for (int u = 0; u < 3; ++u)
          for (int v = 0; v < 3; ++v) {
            const double weight = w[((o * in + i) * 3 + u) * 3 + v];
            for_each_tap_row(dy + (b * out + o) * area, dx + (b * in + i) * area, u, v, side,
                             [&](const double* dyr, double* dxr, int n) {
                               for (int q = 0; q < n; ++q) dxr[q] += weight * dyr[q];
                             });
          }
}

void conv2d_backward_weight(double* dw, const double* dy, const double* x, std::int64_t batch, int in, int out,
                            int side) {
  const int area = side * side;
  for (int o = 0; o < out; ++o)
    for (int i = 0; i < in; ++i)
      for (int u = 0; u < 3; ++u)
        for (int v = 0; v < 3; ++v) {
          double sum = 0;
          for (std::int64_t b = 0; b < batch; ++b)
            for_each_tap_row(dy + (b * out + o) * area, x + (b * in + i) * area, u, v, side,
                             [&](const double* dyr, const double* xr, int n) {
                               for (int q = 0; q < n; ++q) sum += dyr[q] * xr[q];
                             });
          dw[((o * in + i) * 3 + u) * 3 + v] = sum;
        }
}

void batch_norm_statistics(double* mean, double* var, const double* x, std::int64_t batch, int channels, int area) {
  const double n = double(batch) * area;
  for (int c = 0; c < channels; ++c) {
    double sum = 0, squares = 0;
    for (std::int64_t b = 0; b < batch; ++b)
      for (int k = 0; k < area; ++k) sum += x[(b * channels + c) * area + k];
    mean[c] = sum / n;
    for (std::int64_t b = 0; b < batch; ++b)
      for (int k = 0; k < area; ++k) {
        const double centred = x[(b * channels + c) * area + k] - mean[c];
        squares += centred * centred;
      }
    var[c] = squares / n;
  }
}

void batch_norm_forward(double* y, const double* x, const double* gamma, const double* beta, const double* mean,
                        const double* var, std::int64_t batch, int channels, int area) {
  for (std::int64_t b = 0; b < batch; ++b)
    for (int c = 0; c < channels; ++c) {
      const double sigma = std::sqrt(var[c] + kBatchNormEpsilon);
      const std::int64_t plane = (b * channels + c) * area;
      for (int k = 0; k < area; ++k) y[plane + k] = gamma[c] * (x[plane + k] - mean[c]) / sigma + beta[c];
    }
}

void batch_norm_backward(double* dx, double* dgamma, double* dbeta, const double* dy, const double* x,
                         const double* gamma, const double* mean, const double* var, std::int64_t batch, int channels,
                         int area) {
  const double n = double(batch) * area;
  for (int c = 0; c < channels; ++c) {
    const double sigma = std::sqrt(var[c] + kBatchNormEpsilon);
    const auto xhat = [&](std::int64_t k) { return (x[k] - mean[c]) / sigma; };
    double sum = 0, sum_xhat = 0;
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t k = (b * channels + c) * area, end = k + area; k < end; ++k) {
        sum += dy[k];
        sum_xhat += dy[k] * xhat(k);
      }
    dbeta[c] = sum;
    dgamma[c] = sum_xhat;
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t k = (b * channels + c) * area, end = k + area; k < end; ++k)
        dx[k] = gamma[c] / sigma * (dy[k] - sum / n - xhat(k) * sum_xhat / n);
  }
}

void relu_max_pool2d_forward(double* y, std::uint8_t* route, const double* x, std::int64_t planes, int side) {
  for (std::int64_t plane = 0; plane < planes; ++plane)
    for (int p = 0; p < side; ++p)
      for (int q = 0; q < side; ++q) {
        const double* window = x + (plane * 2 * side + 2 * p) * 2 * side + 2 * q;
        double best = window[0];
        std::uint8_t where = 0;
        for (std::uint8_t k = 1; k < 4; ++k) {
          const double value = window[(k / 2) * 2 * side + k % 2];
          if (value > best || (std::isnan(value) && !std::isnan(best))) best = value, where = k;
        }
        const bool dead = best <= 0;
        const std::int64_t cell = (plane * side + p) * side + q;
        y[cell] = dead ? 0 : best;
        route[cell] = dead ? Routing::kDead : where;
      }
}

void relu_max_pool2d_forward_routed(double* y, const double* x, const std::uint8_t* route, std::int64_t planes,
                                    int side) {
  for (std::int64_t plane = 0; plane < planes; ++plane)
    for (int p = 0; p < side; ++p)
      for (int q = 0; q < side; ++q) {
        const std::int64_t cell = (plane * side + p) * side + q;
        const int k = route[cell];
        y[cell] = k == Routing::kDead ? 0 : x[(plane * 2 * side + 2 * p + k / 2) * 2 * side + 2 * q + k % 2];
      }
}

void relu_max_pool2d_backward(double* dx, const double* dy, const std::uint8_t* route, std::int64_t planes, int side) {
  std::fill(dx, dx + planes * 4 * side * side, 0.0);
  for (std::int64_t plane = 0; plane < planes; ++plane)
    for (int p = 0; p < side; ++p)
      for (int q = 0; q < side; ++q) {
        const std::int64_t cell = (plane * side + p) * side + q;
        const int k = route[cell];
        if (k != Routing::kDead) dx[(plane * 2 * side + 2 * p + k / 2) * 2 * side + 2 * q + k % 2] = dy[cell];
      }
}

void linear_forward(double* y, const double* x, const double* w, const double* bias, std::int64_t batch, int in,
                    int out) {
  for (std::int64_t b = 0; b < batch; ++b)
    for (int o = 0; o < out; ++o) {
      double sum = bias[o];
      for (int i = 0; i < in; ++i) sum += w[std::int64_t(o) * in + i] * x[b * in + i];
      y[b * out + o] = sum;
    }
}

void linear_backward(double* dx, double* dw, double* dbias, const double* dy, const double* x, const double* w,
                     std::int64_t batch, int in, int out) {
  if (dx) std::fill(dx, dx + batch * in, 0.0);
  std::fill(dw, dw + std::int64_t(out) * in, 0.0);
  std::fill(dbias, dbias + out, 0.0);
  for (std::int64_t b = 0; b < batch; ++b)
    for (int o = 0; o < out; ++o) {
      const double d = dy[b * out + o];
      dbias[o] += d;
      for (int i = 0; i < in; ++i) dw[std::int64_t(o) * in + i] += d * x[b * in + i];
      if (dx)
        for (int i = 0; i < in; ++i) dx[b * in + i] += d * w[std::int64_t(o) * in + i];
    }
}

void relu_forward(double* y, std::uint8_t* pass, const double* x, std::int64_t count, bool decide) {
  for (std::int64_t k = 0; k < count; ++k) {
    if (decide) pass[k] = !(x[k] <= 0);
    y[k] = pass[k] ? x[k] : 0;
  }
}

void relu_backward(double* dx, const double* dy, const std::uint8_t* pass, std::int64_t count) {
  for (std::int64_t k = 0; k < count; ++k) dx[k] = pass[k] ? dy[k] : 0;
}

void log_softmax_forward(double* log_p, const double* x, std::int64_t batch, int classes) {
  for (std::int64_t b = 0; b < batch; ++b) {
    const double* row = x + b * classes;
    const double top = *std::max_element(row, row + classes);
    double sum = 0;
    for (int k = 0; k < classes; ++k) sum += std::exp(row[k] - top);
    for (int k = 0; k < classes; ++k) log_p[b * classes + k] = row[k] - top - std::log(sum);
  }
}

double nll_loss_forward(const double* log_p, const std::uint8_t* labels, std::int64_t batch, int classes) {
  double sum = 0;
  for (std::int64_t b = 0; b < batch; ++b) sum -= log_p[b * classes + labels[b]];
  return sum / double(batch);
}

void log_softmax_nll_backward(double* dx, const double* log_p, const std::uint8_t* labels, double upstream,
                              std::int64_t batch, int classes) {
  for (std::int64_t b = 0; b < batch; ++b)
    for (int k = 0; k < classes; ++k)
      dx[b * classes + k] = upstream / double(batch) * (std::exp(log_p[b * classes + k]) - (k == labels[b]));
}

void sgd_update(double* w, const double* dw, double learning_rate, std::int64_t count) {
  for (std::int64_t k = 0; k < count; ++k) w[k] -= learning_rate * dw[k];
}

}  // namespace mnist::reference
