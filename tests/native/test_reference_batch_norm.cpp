// batch_norm: statistics and forward against their definitions, backward against difference quotients of them.
#include "reference_cases.h"

using namespace mnist;
using namespace testing;

namespace {

// One channel's values, wherever they lie in (B,C,area).
std::vector<long double> channel_of(const std::vector<double>& x, int c, int channels, int area) {
  std::vector<long double> values;
  for (std::size_t k = 0; k < x.size(); ++k)
    if (int(k / area) % channels == c) values.push_back(x[k]);
  return values;
}

struct Moments {
  long double mean = 0, var = 0, magnitude = 0;  // magnitude: mean of |x|
  explicit Moments(const std::vector<long double>& x) {
    for (const auto v : x) mean += v / x.size(), magnitude += std::fabs(v) / x.size();
    for (const auto v : x) var += (v - mean) * (v - mean) / x.size();
  }
};

// sum of dy * batch_norm(x) of one channel: what batch_norm_backward differentiates.
long double batch_norm_objective(const std::vector<long double>& x, const std::vector<long double>& dy,
                                 long double gamma, long double beta) {
  const Moments m(x);
  long double sum = 0;
  for (std::size_t k = 0; k < x.size(); ++k)
    sum += dy[k] * (gamma * (x[k] - m.mean) / std::sqrt(m.var + kBatchNormEpsilon) + beta);
  return sum;
}

void test_batch_norm() {
  constexpr int channels = 3, area = 4;
  for (const auto batch : kBatches)
    for (const auto kind : kKinds) {
      const std::int64_t size = batch * channels * area;
      const auto x = make_input(kind, size, 1), dy = random_normal<double>(size, 2);
      const auto gamma = random_normal<double>(channels, 3), beta = random_normal<double>(channels, 4);
      Output mean_out(channels), var_out(channels), y_out(size), dx_out(size), dgamma_out(channels),
          dbeta_out(channels);
      reference::batch_norm_statistics(mean_out.data(), var_out.data(), x.data(), batch, channels, area);
      const auto mean = mean_out.values(), var = var_out.values();
      reference::batch_norm_forward(y_out.data(), x.data(), gamma.data(), beta.data(), mean.data(), var.data(), batch,
                                    channels, area);
      reference::batch_norm_backward(dx_out.data(), dgamma_out.data(), dbeta_out.data(), dy.data(), x.data(),
                                     gamma.data(), mean.data(), var.data(), batch, channels, area);
      const auto y = y_out.values(), dx = dx_out.values(), dgamma = dgamma_out.values(), dbeta = dbeta_out.values();
      for (int c = 0; c < channels; ++c) {
        auto xc = channel_of(x, c, channels, area);
        const auto dyc = channel_of(dy, c, channels, area), yc = channel_of(y, c, channels, area);
        const auto dxc = channel_of(dx, c, channels, area);
        const std::string what = name("batch_norm", kind, batch);
        if (std::ranges::any_of(xc, [](auto v) { return std::isnan(v); })) {
          const auto is_nan = [](auto v) { return std::isnan(v); };
          CHECK(is_nan(mean[c]) && is_nan(var[c]) && is_nan(dgamma[c]) && !is_nan(dbeta[c]));
          CHECK(std::ranges::all_of(yc, is_nan) && std::ranges::all_of(dxc, is_nan));
          continue;
        }
        const Moments m(xc);
        const double n = double(xc.size()), rounding = n * kEpsilon;
        CHECK(std::fabs(mean[c] - m.mean) <= rounding * m.magnitude + n * kDenormal);
        CHECK(std::fabs(var[c] - m.var) <= 4 * rounding * m.var + std::pow(rounding * m.magnitude, 2) + kDenormal);
        const auto sigma = std::sqrt(m.var + kBatchNormEpsilon);
        for (std::size_t k = 0; k < xc.size(); ++k) {
          const auto scale = std::fabs(gamma[c]) * (std::fabs(xc[k]) + m.magnitude) / sigma + std::fabs(beta[c]);
          CHECK(std::fabs(yc[k] - (gamma[c] * (xc[k] - m.mean) / sigma + beta[c])) <= 4 * rounding * scale);
        }
        std::vector<long double> g{gamma[c]}, b{beta[c]};
        const auto objective = [&] { return batch_norm_objective(xc, dyc, g[0], b[0]); };
        const auto step = 1e-7L * (1 + std::sqrt(m.var));
        CHECK_CLOSE(std::vector<double>(dxc.begin(), dxc.end()), difference_quotients(xc, step, objective), 1e-7,
                    what + " dx");
        CHECK_CLOSE(std::vector{dbeta[c]}, difference_quotients(b, 1e-3L, objective), 1e-12, what + " dbeta");
        // On a constant channel dgamma is 0 except for rounding, so its bound is absolute.
        CHECK(std::fabs(dgamma[c] - difference_quotients(g, 1e-3L, objective)[0]) <= 1e-11 * n);
      }
    }
}

}  // namespace

int main() {
  test_batch_norm();
  return finish();
}
