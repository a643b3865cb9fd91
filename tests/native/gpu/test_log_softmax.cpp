// Every row of the ladder of log_softmax, and the mean nll_loss with its gradient, against the reference.
#include "cpu/reference_ops.h"
#include "gpu_testing.h"
#include "kernels/log_softmax/log_softmax.h"
#include "kernels/log_softmax/naive_ops.h"

using namespace mnist;
using namespace testing;
using namespace mnist::kernels::naive;

int main() {
  require_gpu();
  const auto ladder = present(bench::log_softmax_forward_ladder(), "log_softmax");
  const auto backward = present(bench::log_softmax_nll_backward_ladder(), "log_softmax_nll backward");
  for (const auto batch : kBatches)
    for (const int classes : {10, 1, 37})
      for (const auto& input : inputs(batch * classes, 1)) {
        const std::string what = std::string("log_softmax of ") + input.name + ", batch " + std::to_string(batch) +
                                 ", " + std::to_string(classes) + " classes";
        std::vector<std::uint8_t> labels(batch);
        for (std::int64_t b = 0; b < batch; ++b) labels[b] = std::uint8_t(b * 7 % classes);
        std::vector<double> log_p(batch * classes), dx(batch * classes);
        reference::log_softmax_forward(log_p.data(), widen(input.values).data(), batch, classes);
        reference::log_softmax_nll_backward(dx.data(), log_p.data(), labels.data(), -1.7, batch, classes);

        const Guarded<float> x(input.values), gp(batch * classes);
        for (const auto& rung : ladder) {
          const std::string name = std::string(rung.name) + " " + what;
          const Guarded<float> got(batch * classes);
          rung.run(got.data(), x.data(), batch, classes, nullptr);
          check_near(got.read(name), log_p, std::max(norm(log_p), 1e-30), std::max(5e-7, rung.own_error), name);
        }
        const Guarded<std::uint8_t> glabels(labels);
        log_softmax_forward(gp.data(), x.data(), batch, classes, nullptr);
        // Scores of 1e4 have an absolute error of 1e-3, which the exponential turns into a relative one.
        const double bound = input.name == std::string("huge") ? 2e-3 : 1e-6;
        const Guarded<float> upstream(std::vector<float>{-1.7f}), by_pointer(batch * classes), loss(1);
        log_softmax_nll_backward_by_pointer(by_pointer.data(), gp.data(), glabels.data(), upstream.data(), batch,
                                            classes, nullptr);
        check_near(by_pointer.read(what), dx, std::max(norm(dx), 1.7 / double(batch)), bound, what + " upstream");
        nll_loss_forward(loss.data(), gp.data(), glabels.data(), batch, classes, nullptr);
        const double mean = reference::nll_loss_forward(widen(gp.read(what)).data(), labels.data(), batch, classes);
        check_near(loss.read(what), {mean}, std::max(std::abs(mean), 1e-30), 1e-7, what + " loss");
        for (const auto& rung : backward) {
          const std::string name = std::string(rung.name) + " backward of " + what;
          const Guarded<float> gdx(batch * classes);
          rung.run(gdx.data(), gp.data(), glabels.data(), -1.7, batch, classes, nullptr);
          check_near(gdx.read(name), dx, std::max(norm(dx), 1.7 / double(batch)), std::max(bound, rung.own_error),
                     name);
        }
      }
  std::vector<float> x(20, 1.0f);
  x[3] = std::nanf("");
  std::vector<double> want(20);
  reference::log_softmax_forward(want.data(), widen(x).data(), 2, 10);
  const Guarded<float> gx(x);
  for (const auto& rung : ladder) {
    const Guarded<float> gp(20);
    rung.run(gp.data(), gx.data(), 2, 10, nullptr);
    check_same_nans(gp.read("NaN"), want, std::string("log_softmax_forward ") + rung.name);
  }
  const Guarded<float> some(std::vector<float>(20, -1.0f)), loss(1);
  for (const std::uint8_t label : {9, 10, 255}) {
    const Guarded<std::uint8_t> labels(std::vector<std::uint8_t>{0, label});
    nll_loss_forward(loss.data(), some.data(), labels.data(), 2, 10, nullptr);
    const float found = loss.read("loss")[0];
    CHECK(label < 10 ? found == 1 : std::isnan(found));
  }
  return finish_on_gpu();
}
