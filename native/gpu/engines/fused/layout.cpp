// Packed words, spelled out flag by flag.
#include "engines/fused/layout.h"

#include <bit>

namespace mnist::fused {

std::vector<std::uint8_t> unpack_route1(std::span<const std::uint32_t> words) {
  std::vector<std::uint8_t> route(words.size() / kRoute1Words * kPool1Size);
  for (std::int64_t k = 0; k < std::int64_t(words.size()); ++k) {
    const int lane = k & 31, plane = k >> 5 & 1, half = k >> 6 & 1;
    const auto row = k >> 7;  // of all images
    for (int i = 0; i < 4; ++i) {
      const int slot = 2 * (lane & 3) + (i & 1), x = plane == 0 ? 2 * slot - 1 : 2 * slot;
      const int channel = half * 16 + (i >> 1) * 8 + (lane >> 2);
      const auto flags = std::uint8_t(words[k] >> 8 * i);
      if (x >= 0 && x < kPool1Side)
        route[((row / kPool1Side * kConv1Channels + channel) * kPool1Side + row % kPool1Side) * kPool1Side + x] =
            flags == 0 ? Routing::kDead : std::uint8_t(std::countl_zero(flags));
    }
  }
  return route;
}

}  // namespace mnist::fused
