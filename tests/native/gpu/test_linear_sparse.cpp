// linear with sparse weights against the reference: zeros in every place of each four.
#include "cpu/reference_ops.h"
#include "gpu_testing.h"
#include "kernels/linear_sparse/linear_sparse.h"

using namespace mnist;
using namespace testing;

namespace {

// In each four of a row the pair of places that its number names; a third of the kept weights is 0, too.
std::vector<float> pruned(int out, int in) {
  constexpr int kPairs[6][2] = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
  auto w = random_normal<float>(std::size_t(out) * in, 2);
  for (int o = 0; o < out; ++o)
    for (int i = 0; i < in; ++i) {
      const auto& pair = kPairs[(o + i / 4) % 6];
      if ((i % 4 != pair[0] && i % 4 != pair[1]) || (o * 5 + i) % 3 == 0) w[o * in + i] = 0;
    }
  return w;
}

}  // namespace

int main() {
  require_gpu();
  const auto ladder = present(bench::own_rungs(kernels::linear_sparse_forward_variants()), "linear_sparse");
  for (const std::int64_t batch : {1, 33, 64, 127, 256})
    for (const auto& [in, out] : {std::pair{3136, 128}, {128, 10}, {5, 3}, {130, 129}, {32, 16}}) {
      if (too_large(batch * in * out, 120'000'000)) continue;
      const std::string what =
          " batch " + std::to_string(batch) + ", " + std::to_string(in) + "->" + std::to_string(out);
      const auto x = random_normal<float>(batch * in, 1), w = pruned(out, in), bias = random_normal<float>(out, 3);
      std::vector<double> want(batch * out);
      reference::linear_forward(want.data(), widen(x).data(), widen(w).data(), widen(bias).data(), batch, in, out);
      const Guarded<float> gx(x), gw(w), gbias(bias);
      for (const auto& rung : ladder) {
        const std::string name = std::string("linear_sparse ") + rung.name + what;
        const Guarded<float> y(batch * out), partial(kernels::linear_partial_size(batch, in, out));
        rung.run(y.data(), partial.data(), gx.data(), gw.data(), gbias.data(), batch, in, out, nullptr);
        CHECK_CLOSE(y.read(name), want, rung.own_error, name);
        partial.read("scratch of " + name);
      }
    }
  return finish_on_gpu();
}
