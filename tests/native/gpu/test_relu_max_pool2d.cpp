// relu_max_pool2d: every row's values equal to the reference's, and our decisions, ties and NaN included.
#include "cpu/reference_ops.h"
#include "gpu_testing.h"
#include "kernels/relu_max_pool2d/relu_max_pool2d.h"

using namespace mnist;
using namespace testing;

namespace {

using Ladder = bench::Ladder<kernels::ReluMaxPool2dForward>;

void test(const Ladder& ladder, std::int64_t planes, int channels, int side, const Input& input) {
  const std::int64_t pooled = planes * side * side;
  const std::string what =
      std::string(" ") + input.name + ", planes " + std::to_string(planes) + ", side " + std::to_string(side);
  const auto X = widen(input.values);
  const auto upstream = random_normal<float>(pooled, 2);
  std::vector<double> want(pooled), dwant(4 * pooled);
  std::vector<std::uint8_t> route(pooled);
  reference::relu_max_pool2d_forward(want.data(), route.data(), X.data(), planes, side);
  reference::relu_max_pool2d_backward(dwant.data(), widen(upstream).data(), route.data(), planes, side);

  const Guarded<float> dy(upstream);
  const Guarded<std::uint8_t> groute(route);
  const int area = side * side;
  for (const auto& rung : ladder) {
    if (rung.library && input.slack > 1) continue;  // what becomes of denormals is theirs to decide
    const std::string name = rung.name + what;
    const Guarded<float> x(to_order_of(rung, input.values, channels, 4 * area)), y(pooled);
    const Guarded<std::uint8_t> r(pooled);
    rung.run(y.data(), r.data(), x.data(), planes, side, nullptr);
    CHECK_CLOSE(from_order_of(rung, y.read(name), channels, area), want, 0, name);
    const auto decisions = r.read(name);
    report(rung.library || decisions == route, name + ": route", __FILE__, __LINE__);
  }
  for (const auto& variant : kernels::relu_max_pool2d_backward_variants()) {
    const std::string name = std::string("backward ") + variant.name + what;
    const Guarded<float> dx(4 * pooled);
    variant.run(dx.data(), dy.data(), groute.data(), planes, side, nullptr);
    CHECK_CLOSE(dx.read(name), dwant, 0, name);
  }
}

void test_nan() {
  auto x = random_normal<float>(16, 1);
  x[5] = x[10] = x[11] = std::nanf("");  // once alone in its window, twice together
  std::vector<double> want(4);
  std::vector<std::uint8_t> route(4);
  reference::relu_max_pool2d_forward(want.data(), route.data(), widen(x).data(), 1, 2);
  const Guarded<float> X(x);
  for (const auto& variant : kernels::relu_max_pool2d_forward_variants()) {
    const Guarded<float> y(4);
    const Guarded<std::uint8_t> r(4);
    variant.run(y.data(), r.data(), X.data(), 1, 2, nullptr);
    check_same_nans(y.read("NaN"), want, std::string("relu_max_pool2d_forward ") + variant.name);
    CHECK(r.read("NaN") == route);
  }
}

}  // namespace

int main() {
  require_gpu();
  for (const auto& [channels, side] : {std::pair{32, 14}, {64, 7}, {1, 1}, {3, 9}}) {
    auto ladder = present(bench::relu_max_pool2d_forward_ladder(channels), "relu_max_pool2d");
    if (channels < 32) std::erase_if(ladder, [](const auto& rung) { return rung.library; });  // not the network's
    for (const auto batch : kBatches) {
      const std::int64_t planes = batch * channels;
      if (too_large(planes * side * side, 2'000'000)) continue;
      for (const auto& input : inputs(planes * 4 * side * side, 1))
        if (batch <= 64 || input.name == std::string("digits")) test(ladder, planes, channels, side, input);
    }
  }
  test_nan();
  return finish_on_gpu();
}
