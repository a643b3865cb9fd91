// relu and relu_max_pool2d over every window that six telling values can make.
#include <array>

#include "reference_cases.h"

using namespace mnist;
using namespace testing;

namespace {

// Every 2x2 window that can be made of six values, as one plane of 36x36 windows.
void test_relu_max_pool2d() {
  constexpr double values[] = {-1, 0, kDenormal, 1, kInfinity, kNaN};
  constexpr int side = 36, cells = side * side;
  std::vector<double> x(4 * cells);
  const auto at = [](int cell, int k) { return (2 * (cell / side) + k / 2) * 2 * side + 2 * (cell % side) + k % 2; };
  for (int cell = 0; cell < cells; ++cell)
    for (int k = 0, rest = cell; k < 4; ++k, rest /= 6) x[at(cell, k)] = values[rest % 6];

  Output y_out(cells), again_out(cells), dx_out(4 * cells);
  std::vector<std::uint8_t> route(cells + 1, 77);
  const auto dy = random_normal<double>(cells, 1);
  reference::relu_max_pool2d_forward(y_out.data(), route.data(), x.data(), 1, side);
  reference::relu_max_pool2d_forward_routed(again_out.data(), x.data(), route.data(), 1, side);
  reference::relu_max_pool2d_backward(dx_out.data(), dy.data(), route.data(), 1, side);
  const auto y = y_out.values(), again = again_out.values(), dx = dx_out.values();
  CHECK(route[cells] == 77);
  for (int cell = 0; cell < cells; ++cell) {
    int want = Routing::kDead;  // the first NaN, else the first of the greatest, if that is positive
    for (int k = 3; k >= 0; --k)
      if (x[at(cell, k)] > 0 &&
          std::ranges::none_of(std::array{0, 1, 2, 3}, [&](int other) { return x[at(cell, other)] > x[at(cell, k)]; }))
        want = k;
    for (int k = 3; k >= 0; --k)
      if (std::isnan(x[at(cell, k)])) want = k;
    const double maximum = want == Routing::kDead ? 0 : x[at(cell, want)];
    const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    CHECK(route[cell] == want);
    CHECK(same(y[cell], maximum) && same(again[cell], maximum));
    for (int k = 0; k < 4; ++k) CHECK(dx[at(cell, k)] == (k == want ? dy[cell] : 0));
  }

  // Two planes of other decisions: the ones given are followed.
  const std::vector<double> planes{1, 2, 3, 4, 5, 6, 7, -8};
  const std::vector<std::uint8_t> given{1, 3};
  Output picked(2);
  reference::relu_max_pool2d_forward_routed(picked.data(), planes.data(), given.data(), 2, 1);
  CHECK(picked.values() == (std::vector<double>{2, -8}));
}

void test_relu() {
  const std::vector<double> x{-1, -0.0, 0, kDenormal, 1, kInfinity, -kInfinity, kNaN}, dy{1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<std::uint8_t> want{0, 0, 0, 1, 1, 1, 0, 1}, given{1, 0, 1, 0, 1, 0, 0, 0};
  auto pass = std::vector<std::uint8_t>(x.size(), 77);
  Output y_out(x.size()), forced_out(x.size()), dx_out(x.size());
  reference::relu_forward(y_out.data(), pass.data(), x.data(), x.size(), true);
  reference::relu_backward(dx_out.data(), dy.data(), pass.data(), x.size());
  CHECK(pass == want);
  pass = given;
  reference::relu_forward(forced_out.data(), pass.data(), x.data(), x.size(), false);
  CHECK(pass == given);
  const auto y = y_out.values(), forced = forced_out.values(), dx = dx_out.values();
  for (std::size_t k = 0; k < x.size(); ++k) {
    CHECK(std::isnan(x[k]) ? std::isnan(y[k]) : y[k] == std::max(x[k], 0.0));
    CHECK(dx[k] == (want[k] ? dy[k] : 0));
    CHECK(forced[k] == (given[k] ? x[k] : 0));
  }
}

}  // namespace

int main() {
  test_relu_max_pool2d();
  test_relu();
  return finish();
}
