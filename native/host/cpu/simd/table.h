// The kernels of this translation unit's instruction set as one table.
#pragma once

#include "cpu/simd/conv1.h"
#include "cpu/simd/conv2.h"
#include "cpu/simd/linear.h"

namespace mnist::cpu {
namespace {

constexpr Kernels kernel_table(const char* isa) {
  return {isa,          patch_moments, conv1_forward,       conv1_backward,
          conv2_weight, conv2_forward, conv2_backward,      conv2_weight_gradient,
          bn2_relu,     fc1_forward,   fc1_backward,        fc1_transpose,
          fc2_forward,  fc2_backward,  fc2_weight_gradient, sgd_update};
}

}  // namespace
}  // namespace mnist::cpu
