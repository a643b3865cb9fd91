// Plain loops in the order of the formulas in reference_ops.h; nothing clever.
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

template <class T>
void conv2d_forward(T* y, const T* x, const T* w, const T* bias, std::int64_t batch, int in, int out, int side) {
  const int area = side * side;
  for (std::int64_t b = 0; b < batch; ++b)
    for (int o = 0; o < out; ++o) {
      T* plane = y + (b * out + o) * area;
      std::fill(plane, plane + area, bias[o]);
      for (int i = 0; i < in; ++i)
        for (int u = 0; u < 3; ++u)
          for (int v = 0; v < 3; ++v) {
            const T weight = w[((o * in + i) * 3 + u) * 3 + v];
            for_each_tap_row(plane, x + (b * in + i) * area, u, v, side, [&](T* yr, const T* xr, int n) {
              for (int q = 0; q < n; ++q) yr[q] += weight * xr[q];
            });
          }
    }
}

template <class T>
void conv2d_backward_data(T* dx, const T* dy, const T* w, std::int64_t batch, int in, int out, int side) {
  const int area = side * side;
  std::fill(dx, dx + batch * in * area, 0.0);
  for (std::int64_t b = 0; b < batch; ++b)
    for (int o = 0; o < out; ++o)
      for (int i = 0; i < in; ++i)
        for (int u = 0; u < 3; ++u)
          for (int v = 0; v < 3; ++v) {
            const T weight = w[((o * in + i) * 3 + u) * 3 + v];
            for_each_tap_row(dy + (b * out + o) * area, dx + (b * in + i) * area, u, v, side,
                             [&](const T* dyr, T* dxr, int n) {
                               for (int q = 0; q < n; ++q) dxr[q] += weight * dyr[q];
                             });
          }
}

template <class T>
void conv2d_backward_weight(T* dw, const T* dy, const T* x, std::int64_t batch, int in, int out, int side) {
  const int area = side * side;
  for (int o = 0; o < out; ++o)
    for (int i = 0; i < in; ++i)
      for (int u = 0; u < 3; ++u)
        for (int v = 0; v < 3; ++v) {
          double sum = 0;
          for (std::int64_t b = 0; b < batch; ++b)
            for_each_tap_row(dy + (b * out + o) * area, x + (b * in + i) * area, u, v, side,
                             [&](const T* dyr, const T* xr, int n) {
                               for (int q = 0; q < n; ++q) sum += dyr[q] * xr[q];
                             });
          dw[((o * in + i) * 3 + u) * 3 + v] = sum;
        }
}

template <class T>
void batch_norm_statistics(T* mean, T* var, const T* x, std::int64_t batch, int channels, int area) {
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

template <class T>
void batch_norm_forward(T* y, const T* x, const T* gamma, const T* beta, const T* mean, const T* var,
                        std::int64_t batch, int channels, int area) {
  for (std::int64_t b = 0; b < batch; ++b)
    for (int c = 0; c < channels; ++c) {
      const double sigma = std::sqrt(var[c] + kBatchNormEpsilon);
      const std::int64_t plane = (b * channels + c) * area;
      for (int k = 0; k < area; ++k) y[plane + k] = gamma[c] * (x[plane + k] - mean[c]) / sigma + beta[c];
    }
}

template <class T>
void batch_norm_backward(T* dx, T* dgamma, T* dbeta, const T* dy, const T* x, const T* gamma, const T* mean,
                         const T* var, std::int64_t batch, int channels, int area) {
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

template <class T>
void relu_max_pool2d_forward(T* y, std::uint8_t* route, const T* x, std::int64_t planes, int side) {
  for (std::int64_t plane = 0; plane < planes; ++plane)
    for (int p = 0; p < side; ++p)
      for (int q = 0; q < side; ++q) {
        const T* window = x + (plane * 2 * side + 2 * p) * 2 * side + 2 * q;
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

template <class T>
void relu_max_pool2d_forward_routed(T* y, const T* x, const std::uint8_t* route, std::int64_t planes, int side) {
  for (std::int64_t plane = 0; plane < planes; ++plane)
    for (int p = 0; p < side; ++p)
      for (int q = 0; q < side; ++q) {
        const std::int64_t cell = (plane * side + p) * side + q;
        const int k = route[cell];
        y[cell] = k == Routing::kDead ? 0 : x[(plane * 2 * side + 2 * p + k / 2) * 2 * side + 2 * q + k % 2];
      }
}

template <class T>
void relu_max_pool2d_backward(T* dx, const T* dy, const std::uint8_t* route, std::int64_t planes, int side) {
  std::fill(dx, dx + planes * 4 * side * side, 0.0);
  for (std::int64_t plane = 0; plane < planes; ++plane)
    for (int p = 0; p < side; ++p)
      for (int q = 0; q < side; ++q) {
        const std::int64_t cell = (plane * side + p) * side + q;
        const int k = route[cell];
        if (k != Routing::kDead) dx[(plane * 2 * side + 2 * p + k / 2) * 2 * side + 2 * q + k % 2] = dy[cell];
      }
}

template <class T>
void linear_forward(T* y, const T* x, const T* w, const T* bias, std::int64_t batch, int in, int out) {
  for (std::int64_t b = 0; b < batch; ++b)
    for (int o = 0; o < out; ++o) {
      double sum = bias[o];
      for (int i = 0; i < in; ++i) sum += w[std::int64_t(o) * in + i] * x[b * in + i];
      y[b * out + o] = sum;
    }
}

template <class T>
void linear_backward(T* dx, T* dw, T* dbias, const T* dy, const T* x, const T* w, std::int64_t batch, int in, int out) {
  if (dx) std::fill(dx, dx + batch * in, 0.0);
  std::fill(dw, dw + std::int64_t(out) * in, 0.0);
  std::fill(dbias, dbias + out, 0.0);
  for (std::int64_t b = 0; b < batch; ++b)
    for (int o = 0; o < out; ++o) {
      const T d = dy[b * out + o];
      dbias[o] += d;
      for (int i = 0; i < in; ++i) dw[std::int64_t(o) * in + i] += d * x[b * in + i];
      if (dx)
        for (int i = 0; i < in; ++i) dx[b * in + i] += d * w[std::int64_t(o) * in + i];
    }
}

template <class T>
void relu_forward(T* y, std::uint8_t* pass, const T* x, std::int64_t count, bool decide) {
  for (std::int64_t k = 0; k < count; ++k) {
    if (decide) pass[k] = !(x[k] <= 0);
    y[k] = pass[k] ? x[k] : 0;
  }
}

template <class T>
void relu_backward(T* dx, const T* dy, const std::uint8_t* pass, std::int64_t count) {
  for (std::int64_t k = 0; k < count; ++k) dx[k] = pass[k] ? dy[k] : 0;
}

template <class T>
void log_softmax_forward(T* log_p, const T* x, std::int64_t batch, int classes) {
  for (std::int64_t b = 0; b < batch; ++b) {
    const T* row = x + b * classes;
    const double top = *std::max_element(row, row + classes);
    double sum = 0;
    for (int k = 0; k < classes; ++k) sum += std::exp(row[k] - top);
    for (int k = 0; k < classes; ++k) log_p[b * classes + k] = row[k] - top - std::log(sum);
  }
}

template <class T>
double nll_loss_forward(const T* log_p, const std::uint8_t* labels, std::int64_t batch, int classes) {
  double sum = 0;
  for (std::int64_t b = 0; b < batch; ++b) sum -= log_p[b * classes + labels[b]];
  return sum / double(batch);
}

template <class T>
void log_softmax_nll_backward(T* dx, const T* log_p, const std::uint8_t* labels, double upstream, std::int64_t batch,
                              int classes) {
  for (std::int64_t b = 0; b < batch; ++b)
    for (int k = 0; k < classes; ++k)
      dx[b * classes + k] = upstream / double(batch) * (std::exp(log_p[b * classes + k]) - (k == labels[b]));
}

void sgd_update(double* w, const double* dw, double learning_rate, std::int64_t count) {
  for (std::int64_t k = 0; k < count; ++k) w[k] -= learning_rate * dw[k];
}

#define MNIST_INSTANTIATE(T)                                                                                         \
  template void conv2d_forward(T*, const T*, const T*, const T*, std::int64_t, int, int, int);                       \
  template void conv2d_backward_data(T*, const T*, const T*, std::int64_t, int, int, int);                           \
  template void conv2d_backward_weight(T*, const T*, const T*, std::int64_t, int, int, int);                         \
  template void batch_norm_statistics(T*, T*, const T*, std::int64_t, int, int);                                     \
  template void batch_norm_forward(T*, const T*, const T*, const T*, const T*, const T*, std::int64_t, int, int);    \
  template void batch_norm_backward(T*, T*, T*, const T*, const T*, const T*, const T*, const T*, std::int64_t, int, \
                                    int);                                                                            \
  template void relu_max_pool2d_forward(T*, std::uint8_t*, const T*, std::int64_t, int);                             \
  template void relu_max_pool2d_forward_routed(T*, const T*, const std::uint8_t*, std::int64_t, int);                \
  template void relu_max_pool2d_backward(T*, const T*, const std::uint8_t*, std::int64_t, int);                      \
  template void linear_forward(T*, const T*, const T*, const T*, std::int64_t, int, int);                            \
  template void linear_backward(T*, T*, T*, const T*, const T*, const T*, std::int64_t, int, int);                   \
  template void relu_forward(T*, std::uint8_t*, const T*, std::int64_t, bool);                                       \
  template void relu_backward(T*, const T*, const std::uint8_t*, std::int64_t);                                      \
  template void log_softmax_forward(T*, const T*, std::int64_t, int);                                                \
  template double nll_loss_forward(const T*, const std::uint8_t*, std::int64_t, int);                                \
  template void log_softmax_nll_backward(T*, const T*, const std::uint8_t*, double, std::int64_t, int)
MNIST_INSTANTIATE(float);
MNIST_INSTANTIATE(double);

}  // namespace mnist::reference
