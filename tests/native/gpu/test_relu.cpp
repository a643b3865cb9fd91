// relu: every variant exact, with its decisions; naive's backward.
#include "cpu/reference_ops.h"
#include "gpu_testing.h"
#include "kernels/relu/naive_ops.h"
#include "kernels/relu/relu.h"

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

      const Guarded<float> x(input.values), dy(upstream), dx(count);
      const Guarded<std::uint8_t> gpass(pass);
      for (const auto& variant : kernels::relu_forward_variants()) {
        const std::string name = std::string(variant.name) + " " + what;
        const Guarded<float> y(count);
        const Guarded<std::uint8_t> p(count);
        variant.run(y.data(), p.data(), x.data(), count, nullptr);
        const auto got = y.read(name);
        if (with_nan)
          check_same_nans(got, want, name);
        else
          CHECK_CLOSE(got, want, 0, name);
        report(p.read(name) == pass, name + ": decisions", __FILE__, __LINE__);
      }
      relu_backward(dx.data(), dy.data(), gpass.data(), count, nullptr);
      CHECK_CLOSE(dx.read(what), dwant, 0, what + " backward");
    }
  return finish_on_gpu();
}
