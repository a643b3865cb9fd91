// conv2d against the reference: every variant of forward, and naive's backwards.
#include "cpu/reference_ops.h"
#include "gpu_testing.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/naive/chunks.h"
#include "kernels/naive/conv2d.h"

using namespace mnist;
using namespace testing;
using namespace mnist::kernels::naive;

namespace {

struct Shape {
  int in, out, side;
};

// Terms that one thread of the weight gradient adds, and then the tree and the chunks.
std::int64_t weight_terms(std::int64_t batch, int side) {
  return batch * side * side / chunk_count(batch) / 128 + 7 + chunk_count(batch);
}

void test(std::int64_t batch, const Shape& s, const Input& input, const std::vector<float>& w,
          const std::vector<float>& bias, const std::vector<float>& upstream) {
  const std::int64_t area = s.side * s.side, x_size = batch * s.in * area, y_size = batch * s.out * area;
  const std::string what = std::string(" ") + input.name + ", batch " + std::to_string(batch) + ", " +
                           std::to_string(s.in) + "->" + std::to_string(s.out) + ", side " + std::to_string(s.side);
  const auto X = widen(input.values), W = widen(w), Bias = widen(bias), DY = widen(upstream);
  const Guarded<float> x(input.values), weight(w), b(bias), dy(upstream), dx(x_size), dw(std::int64_t(w.size())),
      partial(conv2d_partial_size(batch, s.in, s.out));
  std::vector<double> want(y_size);

  reference::conv2d_forward(want.data(), X.data(), W.data(), Bias.data(), batch, s.in, s.out, s.side);
  for (const auto& variant : kernels::conv2d_forward_variants()) {
    const std::string name = variant.name + what;
    const Guarded<float> y(y_size);
    variant.run(y.data(), x.data(), weight.data(), b.data(), batch, s.in, s.out, s.side, nullptr);
    CHECK_CLOSE(y.read(name), want, std::max(sum_bound(9 * s.in), variant.own_error), name);
  }

  want.assign(x_size, 0);
  reference::conv2d_backward_data(want.data(), DY.data(), W.data(), batch, s.in, s.out, s.side);
  conv2d_backward_data(dx.data(), dy.data(), weight.data(), batch, s.in, s.out, s.side, nullptr);
  CHECK_CLOSE(dx.read("data" + what), want, sum_bound(9 * s.out), "data" + what);

  want.assign(w.size(), 0);
  reference::conv2d_backward_weight(want.data(), DY.data(), X.data(), batch, s.in, s.out, s.side);
  conv2d_backward_weight(dw.data(), partial.data(), dy.data(), x.data(), batch, s.in, s.out, s.side, nullptr);
  // The terms of a constant image cancel: the error is measured against what was added, not what was left.
  const double scale = std::max(norm(want), norm(input.values) * norm(upstream) / std::sqrt(double(batch * area)));
  check_near(dw.read("weight" + what), want, scale, input.slack * sum_bound(weight_terms(batch, s.side)),
             "weight" + what);
  partial.read("weight's scratch" + what);
}

void test_nan() {
  const int batch = 2, in = 3, out = 4, side = 14, area = side * side;
  auto x = random_normal<float>(batch * in * area, 1);
  x[area + 20] = std::nanf("");
  const auto w = random_normal<float>(out * in * 9, 2), bias = random_normal<float>(out, 3);
  const Guarded<float> X(x), W(w), Bias(bias);
  std::vector<double> want(batch * out * area);
  reference::conv2d_forward(want.data(), widen(x).data(), widen(w).data(), widen(bias).data(), batch, in, out, side);
  for (const auto& variant : kernels::conv2d_forward_variants()) {
    const Guarded<float> y(batch * out * area);
    variant.run(y.data(), X.data(), W.data(), Bias.data(), batch, in, out, side, nullptr);
    check_same_nans(y.read("NaN"), want, std::string("conv2d_forward ") + variant.name);
  }
}

}  // namespace

int main() {
  require_gpu();
  // The network's own layers while the reference is quick, thin ones for large batches, and sides that fit nothing.
  for (const auto batch : kBatches)
    for (const Shape& s :
         {Shape{1, 32, 28}, Shape{32, 64, 14}, Shape{3, 2, 14}, Shape{1, 2, 28}, Shape{2, 3, 1}, Shape{2, 3, 17}}) {
      const std::int64_t work = batch * s.in * s.out * s.side * s.side;
      const bool whole = s.in * s.out > 6;
      if (work > (whole ? 13'000'000 : 5'000'000)) continue;
      const auto w = random_normal<float>(s.out * s.in * 9, 2), bias = random_normal<float>(s.out, 3);
      const auto upstream = random_normal<float>(batch * s.out * s.side * s.side, 4);
      for (const auto& input : inputs(batch * s.in * s.side * s.side, 1))
        if (batch <= 3 || (!whole && work < 600'000) || input.name == std::string("normal") ||
            input.name == std::string("digits"))
          test(batch, s, input, w, bias, upstream);
    }
  test_nan();
  return finish();
}
