// What each launch of the fused step has to move and to compute.
#pragma once

#include "kernels/fused/kernels.h"
#include "kernels/variant.h"

namespace mnist::fused {

struct LaunchCost {
  const char *phase, *does;  // as profile() has them
  kernels::Cost cost;
  kernels::Unit unit = kernels::Unit::kFma;
};

// Every array that passes from launch to launch is written once and read once by each launch that uses it, and the
// operations are those of the ops' formulas: what a launch repeats does not count.
inline std::array<LaunchCost, std::size_t(Phase::kUpdateWithFc1) + 1> launch_costs(const Plan& plan, const State& s,
                                                                                   Precision precision) {
  using namespace kernels;
  const bool fp32 = precision == Precision::kFp32;
  const Unit unit = fp32 ? Unit::kTensorTf32x3 : precision == Precision::kBf16 ? Unit::kTensorBf16 : Unit::kTensorFp16;
  const Unit terms = fp32 ? Unit::kTensorFp16x3 : unit;  // of conv2, and by wgmma of fc1
  const double batch = s.batch, value = fp32 ? 4 : 2;
  // Bytes of the arrays of a batch; State says what they are.
  const double cells1 = plan[Phase::kConv2Backward].layout != Layout::kPixels ? kChunkedImage / 16 : kCells1;
  const double images = batch * kImagePixels, a1 = batch * (kConv1Channels * cells1 * value + kRoute1Words * 4),
               z2 = batch * cells1 * kConv2Channels * value, pooled = batch * kFeatures * value,
               h_slices = batch * s.fc1_forward_slices * kHidden * 4.0, h = batch * (kHidden + kClasses) * 4,
               dh = batch * kHidden * value;
  // And of weights, and of the sums that update adds up.
  const double fc1 = double(kParameters[kFc1Weight].size), fc2 = 4.0 * kClasses * kHidden,
               head_sums = 4.0 * s.head_blocks * kHeadValues,
               conv_sums = 4.0 * s.conv2_backward_blocks * (kConv2Values + kConv1Channels * kRoutedTapColumns);
  const double conv1 = conv2d_cost(s.batch, 1, kConv1Channels, kImageSide).flops,
               conv2 = conv2d_cost(s.batch, kConv1Channels, kConv2Channels, kPool1Side).flops,
               linear1 = linear_cost(s.batch, kFeatures, kHidden).flops,
               linear2 = linear_cost(s.batch, kHidden, kClasses).flops;
  // fc1.weight: read for the gradient of its input, updated, and where that is a copy, stored once more.
  const double fc1_update = fc1 * (fp32 && !s.fc1_backward_wgmma ? 8 : 8 + 2 * value);
  std::array<LaunchCost, std::size_t(Phase::kUpdateWithFc1) + 1> costs{{
      {"conv_forward",
       "conv1, bn1, pool1, conv2",
       {images + kConv2Values * value + a1 + z2 + pooled, conv1 + conv2},
       terms},
      {"fc1_forward",
       "bn2, pool2, fc1",
       {pooled + fc1 * value + h_slices, linear1},
       plan[Phase::kFc1Forward].wgmma ? terms : unit},
      {"head", "fc2, loss, fc2 backward", {h_slices + fc2 + h + dh + head_sums, 3 * linear2}},
      {"fc1_backward",
       "fc1 backward, its SGD",
       {dh + 2 * pooled + fc1_update, 2 * linear1 + 2 * fc1},
       s.fc1_backward_wgmma ? terms : unit},
      {"conv2_backward",
       "conv2 backward",
       {images + a1 + z2 + pooled + kConv2Values * value + conv_sums,
        2 * conv2 + 2.0 * (kTaps + 1) * batch * kPool1Size},
       terms},
      {"update", "conv1 backward, SGD", {conv_sums + head_sums + kConv2Values * (8 + 2 * value), 2.0 * kConv2Values}},
  }};
  costs[std::size_t(Phase::kFc)] = {"fc",
                                    "bn2, pool2, fc1, fc2, loss, back to pool2",
                                    {2 * pooled + fc1 * value + fc2 + h + dh + head_sums, 2 * linear1 + 3 * linear2},
                                    unit};
  LaunchCost& update = costs[std::size_t(Phase::kUpdateWithFc1)] = costs[std::size_t(Phase::kUpdate)];
  update.does = "fc1's and conv1's gradients, SGD";
  update.cost.bytes += dh + pooled + fc1_update + fc1 * value;
  update.cost.flops += linear1 + 2 * fc1;
  return costs;
}

}  // namespace mnist::fused
