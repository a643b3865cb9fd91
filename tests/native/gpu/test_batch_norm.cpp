// batch_norm against the reference: every variant of the statistics and of backward, every row of forward.
#include "cpu/reference_ops.h"
#include "gpu_testing.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/batch_norm/naive_ops.h"
#include "mnist/model.h"

using namespace mnist;
using namespace testing;
using namespace mnist::kernels::naive;

namespace {

using Ladder = bench::Ladder<kernels::BatchNormForward>;

void test(const Ladder& forward, std::int64_t batch, int channels, int area, const Input& input) {
  const std::int64_t count = batch * channels * area;
  const std::string what = std::string(" ") + input.name + ", batch " + std::to_string(batch) + ", " +
                           std::to_string(channels) + " channels, area " + std::to_string(area);
  const auto gamma = random_normal<float>(channels, 2), beta = random_normal<float>(channels, 3),
             dy = random_normal<float>(count, 4);
  const auto X = widen(input.values), Gamma = widen(gamma), Beta = widen(beta), DY = widen(dy);
  std::vector<double> mean(channels), var(channels), want(count), dgamma(channels), dbeta(channels);
  reference::batch_norm_statistics(mean.data(), var.data(), X.data(), batch, channels, area);

  const Guarded<float> x(input.values), g(gamma), b(beta), d(dy), m(channels), v(channels),
      partial(batch_norm_partial_size(batch, channels));
  // A mean is as exact as the numbers it is taken of are large; a variance is compared with epsilon.
  const double rms = norm(input.values) / std::sqrt(double(count));
  for (const auto& variant : kernels::batch_norm_statistics_variants()) {
    const std::string name = std::string(" ") + variant.name + what;
    const bool plain = variant.own_error == 0;
    const Guarded<float> gm(channels), gv(channels);
    variant.run(gm.data(), gv.data(), partial.data(), x.data(), batch, channels, area, nullptr);
    // An idea that brings an error of its own may also take denormals for 0.
    const double scale = rms * std::sqrt(double(channels)) + (plain ? 1e-45 : 1e-35);
    check_near(gm.read("mean" + name), mean, scale, std::max(1e-6, variant.own_error) * input.slack, "mean" + name);
    auto spread = var;
    for (auto& value : spread) value += kBatchNormEpsilon;
    check_near(gv.read("var" + name), var, 2e-6 * norm(spread) + variant.own_error * rms * scale, 1, "var" + name);
  }
  batch_norm_statistics(m.data(), v.data(), partial.data(), x.data(), batch, channels, area, nullptr);
  // A flat channel leaves nothing but the rounding of its mean, a few times 2^-24 of it, over sqrt(epsilon).
  double bound = 2e-6;
  for (int c = 0; c < channels; ++c)
    bound = std::max(bound, std::abs(mean[c]) * std::ldexp(1.0, -21) / std::sqrt(var[c] + kBatchNormEpsilon));
  reference::batch_norm_forward(want.data(), X.data(), Gamma.data(), Beta.data(), mean.data(), var.data(), batch,
                                channels, area);
  for (const auto& rung : forward) {
    if (rung.library && (channels < 32 || input.slack > 1)) continue;  // on the network's layers, without denormals
    const std::string name = std::string("forward ") + rung.name + what;
    const Guarded<float> in(to_order_of(rung, input.values, channels, area)), y(count), statistics(2 * channels);
    rung.run(y.data(), statistics.data(), partial.data(), in.data(), g.data(), b.data(), batch, channels, area,
             nullptr);
    statistics.read(name);
    CHECK_CLOSE(from_order_of(rung, y.read(name), channels, area), want, std::max(bound, rung.own_error), name);
  }

  reference::batch_norm_backward(want.data(), dgamma.data(), dbeta.data(), DY.data(), X.data(), Gamma.data(),
                                 mean.data(), var.data(), batch, channels, area);
  // dy times gamma/sigma, less its two projections: with one value a channel nothing is left of it.
  double steepest = 0;
  for (int c = 0; c < channels; ++c)
    steepest = std::max(steepest, std::abs(gamma[c]) / std::sqrt(var[c] + kBatchNormEpsilon));
  const double scale = std::max(norm(want), steepest * norm(dy) / std::sqrt(double(channels)));
  for (const auto& variant : kernels::batch_norm_backward_variants()) {
    const std::string name = std::string(" ") + variant.name + what;
    const Guarded<float> dx(count), dg(channels), db(channels);
    variant.run(dx.data(), dg.data(), db.data(), partial.data(), d.data(), x.data(), g.data(), m.data(), v.data(),
                nullptr, batch, channels, area, nullptr);
    check_near(db.read("dbeta" + name), dbeta, norm(dy), 1e-6, "dbeta" + name);
    check_near(dg.read("dgamma" + name), dgamma, norm(dy), bound, "dgamma" + name);
    check_near(dx.read("dx" + name), want, scale, bound, "dx" + name);
  }
  partial.read("scratch" + what);
}

}  // namespace

int main() {
  require_gpu();
  const auto forward = present(bench::batch_norm_forward_ladder(), "batch_norm forward");
  for (const auto batch : kBatches)
    for (const auto& [channels, area] : {std::pair{32, 784}, {64, 196}, {3, 1}, {2, 257}}) {
      if (too_large(10 * batch * channels * area, 80'000'000)) continue;  // forward and backward take ten an element
      for (const auto& input : inputs(batch * channels * area, 1))
        if (batch <= 64 || input.name == std::string("normal") || input.name == std::string("digits"))
          test(forward, batch, channels, area, input);
    }
  return finish_on_gpu();
}
