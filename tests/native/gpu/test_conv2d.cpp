// conv2d against the reference: every row of the ladders; those of libraries on the network's own layers.
#include "cpu/reference_ops.h"
#include "gpu_testing.h"
#include "kernels/chunks.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/conv2d/naive_ops.h"
#include "mnist/model.h"

using namespace mnist;
using namespace testing;
using mnist::kernels::naive::chunk_count;

namespace {

struct Shape {
  int in, out, side;
  bool own_layer() const { return in * out > 6; }  // of the network
};

struct Ladders {
  bench::Ladder<kernels::Conv2dForward> forward = present(bench::conv2d_forward_ladder(), "conv2d forward");
  bench::Ladder<kernels::Conv2dBackwardData> data = present(bench::conv2d_backward_data_ladder(), "conv2d data");
  bench::Ladder<kernels::Conv2dBackwardWeight> weight =
      present(bench::conv2d_backward_weight_ladder(), "conv2d weight");
};

// Terms that one thread of the weight gradient adds, and then the tree and the chunks. naive's threads share the
// positions of an image; those of the other rows walk all of them, in chunks of at least one image.
std::int64_t weight_terms(const std::string& rung, std::int64_t batch, const Shape& s) {
  const std::int64_t area = s.side * s.side;
  if (rung == "naive") return batch * area / chunk_count(batch) / 128 + 7 + chunk_count(batch);
  const std::int64_t chunks = kernels::conv2d_backward_weight_chunks(batch, s.in, s.out, s.side);
  return (batch + chunks - 1) / chunks * area + chunks;
}

void test(const Ladders& ladders, std::int64_t batch, const Shape& s, const Input& input, const std::vector<float>& w,
          const std::vector<float>& bias, const std::vector<float>& upstream) {
  const std::int64_t area = s.side * s.side, x_size = batch * s.in * area, y_size = batch * s.out * area;
  const std::string what = std::string(" ") + input.name + ", batch " + std::to_string(batch) + ", " +
                           std::to_string(s.in) + "->" + std::to_string(s.out) + ", side " + std::to_string(s.side);
  const auto X = widen(input.values), W = widen(w), Bias = widen(bias), DY = widen(upstream);
  // On the tensor cores a block makes a whole tile of any image, which takes the emulator long.
  const auto left_out = [&](const auto& rung) {
    return (rung.library && (!s.own_layer() || input.slack > 1)) || (kEmulated && rung.needs && batch > 3);
  };
  std::vector<double> want(y_size);

  reference::conv2d_forward(want.data(), X.data(), W.data(), Bias.data(), batch, s.in, s.out, s.side);
  for (const auto& rung : ladders.forward) {
    if (left_out(rung)) continue;
    const std::string name = rung.name + what;
    const Guarded<float> x(to_order_of(rung, input.values, s.in, area)), weight(to_order_of(rung, w, s.in, kTaps)),
        b(bias), y(y_size);
    rung.run(y.data(), x.data(), weight.data(), b.data(), batch, s.in, s.out, s.side, nullptr);
    CHECK_CLOSE(from_order_of(rung, y.read(name), s.out, area), want, std::max(sum_bound(9 * s.in), rung.own_error),
                name);
  }

  want.assign(x_size, 0);
  reference::conv2d_backward_data(want.data(), DY.data(), W.data(), batch, s.in, s.out, s.side);
  for (const auto& rung : ladders.data) {
    if (left_out(rung) || (rung.library && s.in == 1)) continue;  // nobody asks for the image's gradient
    const std::string name = std::string("data of ") + rung.name + what;
    const Guarded<float> dy(to_order_of(rung, upstream, s.out, area)), weight(to_order_of(rung, w, s.in, kTaps)),
        dx(x_size);
    rung.run(dx.data(), dy.data(), weight.data(), batch, s.in, s.out, s.side, nullptr);
    CHECK_CLOSE(from_order_of(rung, dx.read(name), s.in, area), want, std::max(sum_bound(9 * s.out), rung.own_error),
                name);
  }

  want.assign(w.size(), 0);
  reference::conv2d_backward_weight(want.data(), DY.data(), X.data(), batch, s.in, s.out, s.side);
  // The terms of a constant image cancel: the error is measured against what was added, not what was left.
  const double scale = std::max(norm(want), norm(input.values) * norm(upstream) / std::sqrt(double(batch * area)));
  for (const auto& rung : ladders.weight) {
    if (left_out(rung)) continue;
    const std::string name = std::string("weight of ") + rung.name + what;
    const Guarded<float> dy(to_order_of(rung, upstream, s.out, area)), x(to_order_of(rung, input.values, s.in, area)),
        dw(std::int64_t(w.size())), partial(kernels::conv2d_backward_weight_partial_size(batch, s.in, s.out));
    rung.run(dw.data(), partial.data(), dy.data(), x.data(), batch, s.in, s.out, s.side, nullptr);
    check_near(from_order_of(rung, dw.read(name), s.in, kTaps), want, scale,
               std::max(input.slack * sum_bound(weight_terms(rung.name, batch, s)), rung.own_error), name);
    partial.read("scratch of " + name);
  }
}

// Whose outputs a NaN reaches is certain of our direct kernels only: a transform spreads it.
void test_nan() {
  const int batch = 2, in = 3, out = 4, side = 14, area = side * side;
  auto x = random_normal<float>(batch * in * area, 1);
  x[area + 20] = std::nanf("");
  const auto w = random_normal<float>(out * in * 9, 2), bias = random_normal<float>(out, 3);
  const Guarded<float> X(x), W(w), Bias(bias);
  std::vector<double> want(batch * out * area);
  reference::conv2d_forward(want.data(), widen(x).data(), widen(w).data(), widen(bias).data(), batch, in, out, side);
  for (const auto& variant : present(bench::own_rungs(kernels::conv2d_forward_variants()), "conv2d forward")) {
    const Guarded<float> y(batch * out * area);
    variant.run(y.data(), X.data(), W.data(), Bias.data(), batch, in, out, side, nullptr);
    check_same_nans(y.read("NaN"), want, std::string("conv2d_forward ") + variant.name);
  }
}

}  // namespace

int main() {
  require_gpu();
  const Ladders ladders;
  // The network's own layers while the reference is quick, thin ones for large batches, and sides that fit nothing.
  for (const auto batch : kBatches)
    for (const Shape& s :
         {Shape{1, 32, 28}, Shape{32, 64, 14}, Shape{3, 2, 14}, Shape{1, 2, 28}, Shape{2, 3, 1}, Shape{2, 3, 17}}) {
      const std::int64_t work = batch * s.in * s.out * s.side * s.side;
      if (too_large(9 * work, s.own_layer() ? 117'000'000 : 45'000'000)) continue;
      const auto w = random_normal<float>(s.out * s.in * 9, 2), bias = random_normal<float>(s.out, 3);
      const auto upstream = random_normal<float>(batch * s.out * s.side * s.side, 4);
      for (const auto& input : inputs(batch * s.in * s.side * s.side, 1))
        if (batch <= 3 || (!s.own_layer() && work < 600'000) || input.name == std::string("normal") ||
            input.name == std::string("digits"))
          test(ladders, batch, s, input, w, bias, upstream);
    }
  test_nan();
  return finish_on_gpu();
}
