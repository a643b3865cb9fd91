// The ladders of relu_max_pool2d; what they compute stands in kernels/relu_max_pool2d/naive_ops.h.
//
//   cost     relu_max_pool2d_forward_cost, relu_max_pool2d_backward_cost (profile/cost.h); memory bound
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/variant.h"

namespace mnist::kernels {

using ReluMaxPool2dForward = void (*)(float* y, std::uint8_t* route, const float* x, std::int64_t planes, int side,
                                      cudaStream_t stream);
std::span<const Variant<ReluMaxPool2dForward>> relu_max_pool2d_forward_variants();

using ReluMaxPool2dBackward = void (*)(float* dx, const float* dy, const std::uint8_t* route, std::int64_t planes,
                                       int side, cudaStream_t stream);
std::span<const Variant<ReluMaxPool2dBackward>> relu_max_pool2d_backward_variants();

// relu_max_pool2d_forward_float2: all windows in one row of threads, each window in two 8-byte loads.
//   launch   one thread a window; block 256
//   needs    x aligned to 8 bytes (checked)
//   numerics exact
//   why      neighbours in a warp read 256 bytes that lie together, and no thread of a small plane is idle
void relu_max_pool2d_forward_float2(float* y, std::uint8_t* route, const float* x, std::int64_t planes, int side,
                                    cudaStream_t stream);

// relu_max_pool2d_backward_float2: likewise, a window's gradient in two 8-byte stores.
//   launch, numerics as forward
//   needs    dx aligned to 8 bytes (checked)
//   why      naive's four stores a window touch the same 256 bytes twice, each time every other word
void relu_max_pool2d_backward_float2(float* dx, const float* dy, const std::uint8_t* route, std::int64_t planes,
                                     int side, cudaStream_t stream);

}  // namespace mnist::kernels
