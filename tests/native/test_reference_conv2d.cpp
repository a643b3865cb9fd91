// The ops that are sums of products, conv2d, linear and sgd, against their definitions in long double.
#include "reference_cases.h"

using namespace mnist;
using namespace testing;

namespace {

// Visits every (b, o, i, u, v, p, q) of a convolution whose input position lies inside the image.
template <class Visit>
void for_each_product(std::int64_t batch, int in, int out, int side, Visit visit) {
  for (std::int64_t b = 0; b < batch; ++b)
    for (int o = 0; o < out; ++o)
      for (int i = 0; i < in; ++i)
        for (int p = 0; p < side; ++p)
          for (int q = 0; q < side; ++q)
            for (int u = 0; u < 3; ++u)
              for (int v = 0; v < 3; ++v) {
                const int r = p + u - 1, s = q + v - 1;
                if (r < 0 || r >= side || s < 0 || s >= side) continue;
                visit(((b * out + o) * side + p) * side + q, ((b * in + i) * side + r) * side + s,
                      ((o * in + i) * 3 + u) * 3 + v);
              }
}

void test_conv2d() {
  constexpr struct {
    int in, out, side;
  } shapes[] = {{1, 3, 6}, {3, 2, 5}, {2, 2, 1}, {1, 1, 2}};
  for (const auto [in, out, side] : shapes)
    for (const auto batch : kBatches)
      for (const auto kind : kKinds) {
        const std::int64_t x_size = batch * in * side * side, y_size = batch * out * side * side;
        const auto x = make_input(kind, x_size, 1), dy = make_input(kind, y_size, 2);
        const auto w = random_normal<double>(out * in * kTaps, 3), bias = random_normal<double>(out, 4);
        std::vector<Sum> y_want(y_size), dx_want(x_size), dw_want(w.size());
        for (std::int64_t k = 0; k < y_size; ++k) y_want[k].add(bias[k / (side * side) % out]);
        for_each_product(batch, in, out, side, [&](std::int64_t at_y, std::int64_t at_x, std::int64_t at_w) {
          y_want[at_y].add((long double)w[at_w] * x[at_x]);
          dx_want[at_x].add((long double)w[at_w] * dy[at_y]);
          dw_want[at_w].add((long double)dy[at_y] * x[at_x]);
        });
        Output y(y_size), dx(x_size), dw(w.size());
        reference::conv2d_forward(y.data(), x.data(), w.data(), bias.data(), batch, in, out, side);
        reference::conv2d_backward_data(dx.data(), dy.data(), w.data(), batch, in, out, side);
        reference::conv2d_backward_weight(dw.data(), dy.data(), x.data(), batch, in, out, side);
        check_sums(y.values(), y_want, name("conv2d forward", kind, batch));
        check_sums(dx.values(), dx_want, name("conv2d backward data", kind, batch));
        check_sums(dw.values(), dw_want, name("conv2d backward weight", kind, batch));
      }
}

void test_linear() {
  constexpr int in = 7, out = 5;
  for (const auto batch : kBatches)
    for (const auto kind : kKinds) {
      const auto x = make_input(kind, batch * in, 1), dy = make_input(kind, batch * out, 2);
      const auto w = random_normal<double>(out * in, 3), bias = random_normal<double>(out, 4);
      std::vector<Sum> y_want(batch * out), dx_want(batch * in), dw_want(out * in), dbias_want(out);
      for (std::int64_t b = 0; b < batch; ++b)
        for (int o = 0; o < out; ++o) {
          y_want[b * out + o].add(bias[o]);
          dbias_want[o].add(dy[b * out + o]);
          for (int i = 0; i < in; ++i) {
            y_want[b * out + o].add((long double)x[b * in + i] * w[o * in + i]);
            dx_want[b * in + i].add((long double)dy[b * out + o] * w[o * in + i]);
            dw_want[o * in + i].add((long double)dy[b * out + o] * x[b * in + i]);
          }
        }
      Output y(batch * out), dx(batch * in), dw(out * in), dbias(out), dw_alone(out * in), dbias_alone(out);
      reference::linear_forward(y.data(), x.data(), w.data(), bias.data(), batch, in, out);
      reference::linear_backward(dx.data(), dw.data(), dbias.data(), dy.data(), x.data(), w.data(), batch, in, out);
      reference::linear_backward<double>(nullptr, dw_alone.data(), dbias_alone.data(), dy.data(), x.data(), w.data(),
                                         batch, in, out);
      check_sums(y.values(), y_want, name("linear forward", kind, batch));
      check_sums(dx.values(), dx_want, name("linear dx", kind, batch));
      check_sums(dw.values(), dw_want, name("linear dw", kind, batch));
      check_sums(dbias.values(), dbias_want, name("linear dbias", kind, batch));
      check_sums(dw_alone.values(), dw_want, name("linear dw without dx", kind, batch));
      check_sums(dbias_alone.values(), dbias_want, name("linear dbias without dx", kind, batch));
    }
}

void test_sgd() {
  for (const auto kind : kKinds)
    for (const std::size_t count : {1, 2, 3, 33}) {
      const auto before = random_normal<double>(count, 1), dw = make_input(kind, count, 2);
      Output w_out(count);
      std::ranges::copy(before, w_out.data());
      reference::sgd_update(w_out.data(), dw.data(), 0.05, std::int64_t(count));
      std::vector<Sum> want(count);
      for (std::size_t k = 0; k < count; ++k) want[k].add(before[k]), want[k].add(-0.05L * dw[k]);
      check_sums(w_out.values(), want, name("sgd", kind, std::int64_t(count)));
    }
}

}  // namespace

int main() {
  test_conv2d();
  test_linear();
  test_sgd();
  return finish();
}
