// log_softmax and nll_loss against their definitions in long double, backward against difference quotients.
#include "reference_cases.h"

using namespace mnist;
using namespace testing;

namespace {

long double log_sum_exp(const long double* row, int classes) {
  const auto top = *std::max_element(row, row + classes);
  long double total = 0;
  for (int k = 0; k < classes; ++k) total += std::exp(row[k] - top);
  return top + std::log(total);
}

long double nll_objective(const std::vector<long double>& x, const std::vector<std::uint8_t>& labels, int classes) {
  long double sum = 0;
  for (std::size_t b = 0; b < labels.size(); ++b) {
    const auto* row = x.data() + b * classes;
    sum += log_sum_exp(row, classes) - row[labels[b]];
  }
  return sum / labels.size();
}

void test_log_softmax_nll() {
  constexpr int classes = 10;
  constexpr double upstream = 0.7;
  for (const auto batch : kBatches)
    for (const auto kind : kKinds) {
      const auto x = make_input(kind, batch * classes, 1);
      const std::string what = name("log_softmax", kind, batch);
      std::vector<std::uint8_t> labels(batch);
      for (std::int64_t b = 0; b < batch; ++b) labels[b] = std::uint8_t(7 * b % classes);
      Output log_p_out(x.size()), dx_out(x.size());
      reference::log_softmax_forward(log_p_out.data(), x.data(), batch, classes);
      const auto log_p = log_p_out.values();
      reference::log_softmax_nll_backward(dx_out.data(), log_p.data(), labels.data(), upstream, batch, classes);
      const auto dx = dx_out.values();
      const double loss = reference::nll_loss_forward(log_p.data(), labels.data(), batch, classes);
      if (kind == Kind::kOneNaN) {
        for (std::size_t k = 0; k < x.size(); ++k) {
          const bool hit = k / classes == x.size() / 2 / classes;  // the row that holds the NaN
          CHECK(std::isnan(log_p[k]) == hit && std::isnan(dx[k]) == hit);
        }
        continue;
      }
      std::vector<long double> xl(x.begin(), x.end());
      for (std::size_t k = 0; k < x.size(); ++k) {
        const auto want = x[k] - log_sum_exp(xl.data() + k / classes * classes, classes);
        CHECK(std::fabs(log_p[k] - want) <= 4 * kEpsilon * (1 + std::fabs(want)));
      }
      CHECK(std::fabs(loss - nll_objective(xl, labels, classes)) <= 1e-13 * (1 + std::fabs(loss)));
      const auto objective = [&] { return upstream * nll_objective(xl, labels, classes); };
      const auto want = difference_quotients(xl, 1e-5L, objective);
      CHECK_CLOSE(dx, want, 1e-8, what + " dx");
      for (std::int64_t b = 0; b < batch; ++b) {
        double sum = 0;
        for (int k = 0; k < classes; ++k) sum += dx[b * classes + k];
        CHECK(std::fabs(sum) <= 20 * kEpsilon);
      }
    }
}

}  // namespace

int main() {
  test_log_softmax_nll();
  return finish();
}
