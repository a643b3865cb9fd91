// linear against the reference: every variant of forward, and naive's backward.
#include "cpu/reference_ops.h"
#include "gpu_testing.h"
#include "kernels/linear/linear.h"
#include "kernels/naive/linear.h"

using namespace mnist;
using namespace testing;
using namespace mnist::kernels::naive;

namespace {

void test(std::int64_t batch, int in, int out, const Input& input) {
  const std::string what = std::string(" ") + input.name + ", batch " + std::to_string(batch) + ", " +
                           std::to_string(in) + "->" + std::to_string(out);
  const auto w = random_normal<float>(in * out, 2), bias = random_normal<float>(out, 3),
             upstream = random_normal<float>(batch * out, 4);
  const auto X = widen(input.values), W = widen(w), DY = widen(upstream);
  std::vector<double> y(batch * out), dx(batch * in), dw(in * out), dbias(out);
  reference::linear_forward(y.data(), X.data(), W.data(), widen(bias).data(), batch, in, out);
  reference::linear_backward(dx.data(), dw.data(), dbias.data(), DY.data(), X.data(), W.data(), batch, in, out);

  const Guarded<float> gx(input.values), gw(w), gbias(bias), gdy(upstream), gdx(batch * in), gdw(in * out), gdbias(out);
  linear_backward(gdx.data(), gdw.data(), gdbias.data(), gdy.data(), gx.data(), gw.data(), batch, in, out, nullptr);
  // Where the terms cancel, the error is measured against what was added.
  const double added = norm(input.values) * std::sqrt(double(out));
  for (const auto& variant : kernels::linear_forward_variants()) {
    const std::string name = variant.name + what;
    const Guarded<float> gy(batch * out);
    variant.run(gy.data(), gx.data(), gw.data(), gbias.data(), batch, in, out, nullptr);
    check_near(gy.read(name), y, std::max(norm(y), added), std::max(sum_bound(in), variant.own_error), name);
  }
  CHECK_CLOSE(gdx.read("dx" + what), dx, sum_bound(out), "dx" + what);
  check_near(gdw.read("dw" + what), dw, std::max(norm(dw), added), input.slack * sum_bound(batch), "dw" + what);
  CHECK_CLOSE(gdbias.read("dbias" + what), dbias, 4 * sum_bound(batch), "dbias" + what);
}

// A NaN in one row of x reaches all of that row's outputs and no other.
void test_nan() {
  const int batch = 40, in = 70, out = 50;
  auto x = random_normal<float>(batch * in, 1);
  x[17 * in + 33] = std::nanf("");
  const auto w = random_normal<float>(in * out, 2), bias = random_normal<float>(out, 3);
  std::vector<double> want(batch * out);
  reference::linear_forward(want.data(), widen(x).data(), widen(w).data(), widen(bias).data(), batch, in, out);
  const Guarded<float> gx(x), gw(w), gbias(bias);
  for (const auto& variant : kernels::linear_forward_variants()) {
    const Guarded<float> gy(batch * out);
    variant.run(gy.data(), gx.data(), gw.data(), gbias.data(), batch, in, out, nullptr);
    check_same_nans(gy.read("NaN"), want, std::string("linear_forward ") + variant.name);
  }
}

}  // namespace

int main() {
  require_gpu();
  for (const auto batch : kBatches)
    for (const auto& [in, out] : {std::pair{3136, 128}, {128, 10}, {5, 3}, {130, 129}}) {
      if (batch * in * out > 52'000'000) continue;
      for (const auto& input : inputs(batch * in, 1))
        if (batch <= 3 || in * out < 10'000 || input.name == std::string("normal")) test(batch, in, out, input);
    }
  test_nan();
  return finish();
}
