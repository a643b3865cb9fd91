// transpose: every row exact, on tiles that are full and that are not.
#include "gpu_testing.h"
#include "kernels/transpose/transpose.h"

using namespace mnist;
using namespace testing;

int main() {
  require_gpu();
  for (const std::int64_t rows : {1, 31, 32, 33, 64, 100, 1000})
    for (const int columns : {1, 3, 32, 65, 784}) {
      if (too_large(64 * rows * columns, 64'000'000)) continue;
      const std::string what = std::to_string(rows) + "x" + std::to_string(columns);
      const auto x = random_normal<float>(rows * columns, 1);
      std::vector<double> want;
      for (int c = 0; c < columns; ++c)
        for (std::int64_t r = 0; r < rows; ++r) want.push_back(x[r * columns + c]);
      const Guarded<float> gx(x);
      for (const auto& variant : kernels::transpose_variants()) {
        const std::string name = std::string("transpose ") + variant.name + " " + what;
        const Guarded<float> y(rows * columns);
        variant.run(y.data(), gx.data(), rows, columns, nullptr);
        CHECK_CLOSE(y.read(name), want, 0, name);
      }
    }
  return finish_on_gpu();
}
