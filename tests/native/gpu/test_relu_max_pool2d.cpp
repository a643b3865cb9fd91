// relu_max_pool2d: values and decisions equal to the reference's, ties and NaN included.
#include "cpu/reference_ops.h"
#include "gpu_testing.h"
#include "kernels/naive/relu_max_pool2d.h"

using namespace mnist;
using namespace testing;
using namespace mnist::kernels::naive;

namespace {

void test(std::int64_t planes, int side, const Input& input) {
  const std::int64_t pooled = planes * side * side;
  const std::string what =
      std::string(" ") + input.name + ", planes " + std::to_string(planes) + ", side " + std::to_string(side);
  const auto X = widen(input.values);
  const auto upstream = random_normal<float>(pooled, 2);
  std::vector<double> want(pooled), dwant(4 * pooled);
  std::vector<std::uint8_t> route(pooled);
  reference::relu_max_pool2d_forward(want.data(), route.data(), X.data(), planes, side);
  reference::relu_max_pool2d_backward(dwant.data(), widen(upstream).data(), route.data(), planes, side);

  const Guarded<float> x(input.values), dy(upstream), y(pooled), dx(4 * pooled);
  const Guarded<std::uint8_t> r(pooled);
  relu_max_pool2d_forward(y.data(), r.data(), x.data(), planes, side, nullptr);
  CHECK_CLOSE(y.read("forward" + what), want, 0, "forward" + what);
  report(r.read("route" + what) == route, "route" + what, __FILE__, __LINE__);
  relu_max_pool2d_backward(dx.data(), dy.data(), r.data(), planes, side, nullptr);
  CHECK_CLOSE(dx.read("backward" + what), dwant, 0, "backward" + what);
}

void test_nan() {
  auto x = random_normal<float>(16, 1);
  x[5] = x[10] = x[11] = std::nanf("");  // once alone in its window, twice together
  std::vector<double> want(4);
  std::vector<std::uint8_t> route(4);
  reference::relu_max_pool2d_forward(want.data(), route.data(), widen(x).data(), 1, 2);
  const Guarded<float> X(x), y(4);
  const Guarded<std::uint8_t> r(4);
  relu_max_pool2d_forward(y.data(), r.data(), X.data(), 1, 2, nullptr);
  check_same_nans(y.read("NaN"), want, "relu_max_pool2d_forward");
  CHECK(r.read("NaN") == route);
}

}  // namespace

int main() {
  require_gpu();
  for (const auto batch : kBatches)
    for (const auto& [channels, side] : {std::pair{32, 14}, {64, 7}, {1, 1}, {3, 9}}) {
      const std::int64_t planes = batch * channels;
      if (planes * side * side > 2'000'000) continue;
      for (const auto& input : inputs(planes * 4 * side * side, 1))
        if (batch <= 64 || input.name == std::string("digits")) test(planes, side, input);
    }
  test_nan();
  return finish();
}
