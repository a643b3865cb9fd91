// linear against the reference: every row of the ladders.
#include "cpu/reference_ops.h"
#include "gpu_testing.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/slices.h"
#include "mnist/model.h"

using namespace mnist;
using namespace testing;

namespace {

// Of every row.
std::int64_t scratch_of(std::int64_t batch, int in, int out) {
  return std::max(kernels::linear_partial_size(batch, in, out), kernels::linear_int8_partial_size(batch, in, out));
}

struct Ladders {
  bench::Ladder<kernels::LinearForward> forward = present(bench::linear_forward_ladder(), "linear forward");
  bench::Ladder<kernels::LinearBackward> backward = present(bench::linear_backward_ladder(), "linear backward");
};

void test(const Ladders& ladders, std::int64_t batch, int in, int out, const Input& input) {
  const std::string what = std::string(" ") + input.name + ", batch " + std::to_string(batch) + ", " +
                           std::to_string(in) + "->" + std::to_string(out);
  const auto w = random_normal<float>(in * out, 2), bias = random_normal<float>(out, 3),
             upstream = random_normal<float>(batch * out, 4);
  const auto X = widen(input.values), W = widen(w), DY = widen(upstream);
  std::vector<double> y(batch * out), dx(batch * in), dw(in * out), dbias(out);
  reference::linear_forward(y.data(), X.data(), W.data(), widen(bias).data(), batch, in, out);
  reference::linear_backward(dx.data(), dw.data(), dbias.data(), DY.data(), X.data(), W.data(), batch, in, out);

  const Guarded<float> gx(input.values), gw(w), gbias(bias), gdy(upstream);
  // Where the terms cancel, the error is measured against what was added.
  const double added = norm(input.values) * std::sqrt(double(out));
  // Libraries are held to the network's layers, and what becomes of denormals is theirs to decide.
  const bool with_libraries = (in == kFeatures || in == kHidden) && input.slack == 1;
  for (const auto& rung : ladders.forward) {
    if (rung.library && !with_libraries) continue;
    if (kEmulated && rung.needs && input.name != std::string("normal")) continue;  // whole tiles take it long
    const std::string name = rung.name + what;
    const Guarded<float> gy(batch * out), gpartial(scratch_of(batch, in, out));
    rung.run(gy.data(), gpartial.data(), gx.data(), gw.data(), gbias.data(), batch, in, out, nullptr);
    check_near(gy.read(name), y, std::max(norm(y), added), std::max(sum_bound(in), rung.own_error), name);
    gpartial.read("scratch of " + name);
  }
  for (const auto& rung : ladders.backward) {
    if (rung.library && !with_libraries) continue;
    const std::string name = rung.name + what;
    const Guarded<float> gdx(batch * in), gdw(in * out), gdbias(out),
        gpartial(kernels::linear_backward_partial_size(batch, in, out));
    rung.run(gdx.data(), gdw.data(), gdbias.data(), gpartial.data(), gdy.data(), gx.data(), gw.data(), batch, in, out,
             nullptr);
    const auto bound = [&](double plain) { return std::max(plain, rung.own_error); };
    CHECK_CLOSE(gdx.read("dx of " + name), dx, bound(sum_bound(out)), "dx of " + name);
    check_near(gdw.read("dw of " + name), dw, std::max(norm(dw), added), bound(input.slack * sum_bound(batch)),
               "dw of " + name);
    gpartial.read("scratch of " + name);
    CHECK_CLOSE(gdbias.read("dbias of " + name), dbias, bound(4 * sum_bound(batch)), "dbias of " + name);
  }
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
  for (const auto& variant : present(bench::own_rungs(kernels::linear_forward_variants()), "linear forward")) {
    const Guarded<float> gy(batch * out), gpartial(scratch_of(batch, in, out));
    variant.run(gy.data(), gpartial.data(), gx.data(), gw.data(), gbias.data(), batch, in, out, nullptr);
    check_same_nans(gy.read("NaN"), want, std::string("linear_forward ") + variant.name);
  }
}

}  // namespace

int main() {
  require_gpu();
  const Ladders ladders;
  for (const auto batch : kBatches)
    for (const auto& [in, out] : {std::pair{3136, 128}, {128, 10}, {5, 3}, {130, 129}}) {
      if (too_large(batch * in * out, 52'000'000)) continue;
      for (const auto& input : inputs(batch * in, 1))
        if (batch <= 3 || in * out < 10'000 || input.name == std::string("normal"))
          test(ladders, batch, in, out, input);
    }
  test_nan();
  return finish_on_gpu();
}
