// A step of stochastic gradient descent.
#pragma once

namespace mnist::fused {

__device__ __forceinline__ float sgd(float value, float gradient, float rate) { return value - rate * gradient; }

}  // namespace mnist::fused
