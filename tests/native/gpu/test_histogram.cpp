// histogram: every row exact, also where all pixels share a counter, and the same in every run.
#include "gpu_testing.h"

using namespace mnist;
using namespace testing;

int main() {
  require_gpu();
  const auto ladder = present(bench::histogram_ladder(), "histogram");
  for (const std::int64_t count : {1, 255, 256, 4095, 4097, 32768, 40000, 1'000'000})
    for (const int kind : {0, 1, 2}) {  // digits, all values, one value
      if (too_large(20 * count, 100'000'000)) continue;
      std::vector<std::uint8_t> pixels(count);
      const auto normal = random_normal<float>(count, 1);
      for (std::int64_t k = 0; k < count; ++k)
        pixels[k] = std::uint8_t(kind == 2 || (kind == 0 && normal[k / 7] < 0.8f) ? kind / 2 * 255 : k * 7);
      std::vector<int> want(kernels::kHistogramBins);
      for (const auto pixel : pixels) ++want[pixel];
      const Guarded<std::uint8_t> gpixels(pixels);
      for (const auto& rung : ladder) {
        const std::string name =
            std::string("histogram ") + rung.name + " of " + std::to_string(count) + ", kind " + std::to_string(kind);
        const Guarded<int> counts(kernels::kHistogramBins);
        for (int run = 0; run < 2; ++run) {
          rung.run(counts.data(), gpixels.data(), count, nullptr);
          report(counts.read(name) == want, name, __FILE__, __LINE__);
        }
      }
    }
  return finish_on_gpu();
}
