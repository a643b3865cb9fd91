// The pixel moments of the fused engine: sums over 3x3 patches of normalised pixels, on their grid.
#include "fused_phase.h"

using namespace testing;

int main() {
  require_gpu();
  require_code(cuda::kTensorCapability);
  constexpr int kImages = 5;  // black, white, and noise of three kinds
  std::vector<std::uint8_t> images(kImages * kImagePixels, 0);
  std::mt19937 rng(11);
  for (std::size_t i = kImagePixels; i < images.size(); ++i) {
    const auto noise = std::uint8_t(rng());
    const auto kind = i / kImagePixels;
    images[i] = kind == 1 ? 255 : kind == 2 ? noise : kind == 3 ? std::uint8_t(noise < 50 ? 255 : 0) : noise % 34;
  }
  const Guarded<std::uint8_t> gimages(images);
  const Guarded<double> got(kImages * fused::kMoments);
  fused::image_moments(got.data(), gimages.data(), kImages, nullptr);
  const auto values = got.read("image_moments");
  for (int n = 0; n < kImages; ++n) {
    const auto want = moments_of(images.data() + n * kImagePixels);
    for (int i = 0; i < fused::kMoments; ++i) {
      const double value = values[n * fused::kMoments + i];
      CHECK(value * 2048 == std::round(value * 2048));
      CHECK(std::abs(value - want[i]) <= 1.0 / 4096 + 1e-6);
    }
  }
  return finish();
}
