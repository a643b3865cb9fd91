// The pixel moments of the fused engine: sums over 3x3 patches of normalised pixels, on their grid.
#include "gpu_testing.h"
#include "kernels/fused/state.h"

using namespace mnist;
using namespace testing;

namespace {

// Moment by moment as moments.cu defines them, before rounding to the grid.
std::vector<double> moments_of(const std::uint8_t* image) {
  const auto value = [&](int y, int x, int tap) {
    const int p = y + tap / 3 - 1, q = x + tap % 3 - 1;
    const bool inside = p >= 0 && p < kImageSide && q >= 0 && q < kImageSide;
    return inside ? image[p * kImageSide + q] - 255 * kPixelMean : 0.0;
  };
  std::vector<double> moments;
  const auto add = [&](int j, int k) {
    double total = 0;
    for (int y = 0; y < kImageSide; ++y)
      for (int x = 0; x < kImageSide; ++x) total += value(y, x, j) * (k < 0 ? 1.0 : value(y, x, k));
    moments.push_back(total);
  };
  for (int j = 0; j < kTaps; ++j) add(j, -1);
  for (int j = 0; j < kTaps; ++j)
    for (int k = j; k < kTaps; ++k) add(j, k);
  return moments;
}

}  // namespace

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
