// relu: exact, with its decisions.
#include "cpu/reference_ops.h"
#include "gpu_testing.h"
#include "kernels/naive/relu.h"

using namespace mnist;
using namespace testing;
using namespace mnist::kernels::naive;

int main() {
  require_gpu();
  for (const std::int64_t count : {1, 255, 256, 257, 8192, 131072})
    for (auto& input : inputs(count, 1)) {
      const std::string what = std::string("relu of ") + input.name + ", " + std::to_string(count);
      auto upstream = random_normal<float>(count, 2);
      const bool with_nan = count == 8192;
      if (with_nan) input.values[77] = std::nanf("");
      std::vector<double> want(count), dwant(count);
      std::vector<std::uint8_t> pass(count);
      reference::relu_forward(want.data(), pass.data(), widen(input.values).data(), count, true);
      reference::relu_backward(dwant.data(), widen(upstream).data(), pass.data(), count);

      const Guarded<float> x(input.values), dy(upstream), y(count), dx(count);
      const Guarded<std::uint8_t> p(count);
      relu_forward(y.data(), p.data(), x.data(), count, nullptr);
      relu_backward(dx.data(), dy.data(), p.data(), count, nullptr);
      const auto got = y.read(what);
      if (with_nan)
        check_same_nans(got, want, what);
      else
        CHECK_CLOSE(got, want, 0, what);
      report(p.read(what) == pass, what + ": decisions", __FILE__, __LINE__);
      CHECK_CLOSE(dx.read(what), dwant, 0, what + " backward");
    }
  return finish();
}
