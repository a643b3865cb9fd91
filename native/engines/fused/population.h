// Population statistics in the fused engine's terms, on the host: from sums over the data set, and into scales and
// shifts.
//
// `parameters` is a slab in PyTorch's order, `statistics` one as in model.h.
#pragma once

#include "mnist/engine.h"

namespace mnist::fused {

// bn1's mean and variance over `images` images, exactly, from the sums of their pixel moments.
void set_bn1_statistics(std::span<double> statistics, std::span<const double> parameters,
                        std::span<const double> moments, double images);

// bn2's, from sum[64] and sum of squares[64] of the sign-folded conv2 output.
void set_bn2_statistics(std::span<double> statistics, std::span<const double> parameters, std::span<const double> sums,
                        double images);

// What State::bn1 and State::bn2 hold while images are scored under these statistics.
std::vector<float> bn1_operand(Precision precision, std::span<const double> parameters,
                               std::span<const double> statistics);
std::vector<float> bn2_operand(std::span<const double> parameters, std::span<const double> statistics);

}  // namespace mnist::fused
