// The network as data: layer sizes, and the table of parameters with their PyTorch names, shapes and places in one
// slab.
//
//   image (28,28) uint8 -> x = (u/255 - kPixelMean) / kPixelStd
//   conv1 1->32 3x3 pad 1 -> bn1 -> relu -> max_pool 2   -> a1 (32,14,14)
//   conv2 32->64 3x3 pad 1 -> bn2 -> relu -> max_pool 2  -> a2 (64,7,7)
//   flatten 3136 -> fc1 128 -> relu -> fc2 10 -> log_softmax -> nll_loss (mean)
#pragma once

#include <array>
#include <cstdint>

namespace mnist {

inline constexpr int kImageSide = 28;
inline constexpr int kImagePixels = kImageSide * kImageSide;
inline constexpr int kConv1Channels = 32;
inline constexpr int kPool1Side = 14;
inline constexpr int kConv2Channels = 64;
inline constexpr int kPool2Side = 7;
inline constexpr int kPool1Size = kConv1Channels * kPool1Side * kPool1Side;  // 6272, a1 of one image
inline constexpr int kPool2Size = kConv2Channels * kPool2Side * kPool2Side;  // 3136, a2 of one image
inline constexpr int kFeatures = kPool2Size;
inline constexpr int kHidden = 128;
inline constexpr int kClasses = 10;
inline constexpr int kTaps = 9;  // of a 3x3 filter

inline constexpr double kPixelMean = 0.1307;
inline constexpr double kPixelStd = 0.3081;
inline constexpr double kBatchNormEpsilon = 1e-5;

struct Parameter {
  const char* name;  // in a PyTorch state_dict
  std::array<std::int64_t, 4> shape;
  int ndim;
  std::int64_t offset;  // elements from the start of the slab
  std::int64_t size;    // elements
};

// Index of a parameter in kParameters; the order is that of the PyTorch module.
enum ParameterIndex {
  kConv1Weight,
  kConv1Bias,
  kBn1Weight,
  kBn1Bias,
  kConv2Weight,
  kConv2Bias,
  kBn2Weight,
  kBn2Bias,
  kFc1Weight,
  kFc1Bias,
  kFc2Weight,
  kFc2Bias,
  kParameterTensors
};

namespace detail {
constexpr std::array<Parameter, kParameterTensors> parameter_table() {
  std::array<Parameter, kParameterTensors> table{{
      {"conv1.weight", {kConv1Channels, 1, 3, 3}, 4, 0, 0},
      {"conv1.bias", {kConv1Channels}, 1, 0, 0},
      {"bn1.weight", {kConv1Channels}, 1, 0, 0},
      {"bn1.bias", {kConv1Channels}, 1, 0, 0},
      {"conv2.weight", {kConv2Channels, kConv1Channels, 3, 3}, 4, 0, 0},
      {"conv2.bias", {kConv2Channels}, 1, 0, 0},
      {"bn2.weight", {kConv2Channels}, 1, 0, 0},
      {"bn2.bias", {kConv2Channels}, 1, 0, 0},
      {"fc1.weight", {kHidden, kFeatures}, 2, 0, 0},
      {"fc1.bias", {kHidden}, 1, 0, 0},
      {"fc2.weight", {kClasses, kHidden}, 2, 0, 0},
      {"fc2.bias", {kClasses}, 1, 0, 0},
  }};
  std::int64_t offset = 0;
  for (auto& p : table) {
    p.size = 1;
    for (int d = 0; d < p.ndim; ++d) p.size *= p.shape[d];
    p.offset = offset;
    offset += p.size;
  }
  return table;
}
}  // namespace detail

inline constexpr auto kParameters = detail::parameter_table();
inline constexpr std::int64_t kParameterCount = kParameters[kFc2Bias].offset + kParameters[kFc2Bias].size;
static_assert(kParameterCount == 421834);

// 16-byte loads of any tensor are aligned when the slab is.
static_assert([] {
  for (const auto& p : kParameters)
    if (p.offset % 4 != 0) return false;
  return true;
}());

// Population statistics, one slab too: bn1 mean, bn1 variance, bn2 mean, bn2 variance. The variances are
// biased (divided by N) and the means contain the convolution's bias, as BatchNorm2d in eval mode expects.
enum StatisticIndex { kBn1Mean, kBn1Var, kBn2Mean, kBn2Var, kStatisticTensors };

inline constexpr std::array<Parameter, kStatisticTensors> kStatistics{{
    {"bn1.running_mean", {kConv1Channels}, 1, 0, kConv1Channels},
    {"bn1.running_var", {kConv1Channels}, 1, kConv1Channels, kConv1Channels},
    {"bn2.running_mean", {kConv2Channels}, 1, 2 * kConv1Channels, kConv2Channels},
    {"bn2.running_var", {kConv2Channels}, 1, 2 * kConv1Channels + kConv2Channels, kConv2Channels},
}};
inline constexpr std::int64_t kStatisticCount = 2 * kConv1Channels + 2 * kConv2Channels;

}  // namespace mnist
