// row_sums: every row of the ladder, for rows of all lengths from none to whole.
#include <numeric>

#include "gpu_testing.h"
#include "kernels/row_sums/row_sums.h"

using namespace mnist;
using namespace testing;

int main() {
  require_gpu();
  for (const std::int64_t rows : {1, 31, 33, 256, 1000})
    for (const int columns : {1, 5, 33, 196}) {
      std::vector<int> length(rows), order(rows);
      for (std::int64_t r = 0; r < rows; ++r) length[r] = int(r * 7 % (columns + 1));
      length[rows / 2] = columns;
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](int a, int b) { return length[a] > length[b]; });
      for (const auto& input : inputs(rows * columns, 1)) {
        const std::string what =
            std::string(" ") + input.name + ", " + std::to_string(rows) + "x" + std::to_string(columns);
        std::vector<double> want;
        for (std::int64_t r = 0; r < rows; ++r) {
          const auto row = input.values.begin() + r * columns;
          want.push_back(std::accumulate(row, row + length[r], 0.0));
        }
        const Guarded<float> x(input.values);
        const Guarded<int> glength(length), gorder(order);
        for (const auto& variant : kernels::row_sums_variants()) {
          const std::string name = variant.name + what;
          const Guarded<float> y(rows);
          variant.run(y.data(), x.data(), glength.data(), gorder.data(), rows, columns, nullptr);
          check_near(y.read(name), want, std::max(norm(want), norm(input.values)), input.slack * sum_bound(columns),
                     "row_sums " + name);
        }
      }
    }
  return finish_on_gpu();
}
