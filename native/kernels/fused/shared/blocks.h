// How many threads the blocks of the fused kernels have, and the groups that they are divided into.
#pragma once

#include "kernels/fused/shared/device.cuh"

namespace mnist::fused {

inline constexpr int kConvThreads = 512;  // conv_forward, fc1_backward and conv2_backward
inline constexpr int kConvWarps = kConvThreads / 32;
inline constexpr int kRoleThreads = kConvThreads / 2;  // where two halves of a block do different things
inline constexpr int kGroupThreads = 128;              // of a warpgroup
inline constexpr int kThreads = 256;                   // fc1_forward and head

}  // namespace mnist::fused
