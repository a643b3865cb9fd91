// relu: max(0, x), with the decision kept for backward.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace mnist::kernels::naive {

// relu_forward: pass = x > 0 (a NaN passes), y = x where it passes, 0 elsewhere.
//   shapes   y float32, pass uint8 <- x float32, count elements; sets
//   launch   one thread an element; block 256
//   cost     bytes 9n, flops 1n; memory bound
//   numerics exact
void relu_forward(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream);

// relu_backward: dx = dy where it passed, 0 elsewhere.
//   shapes   dx <- dy, pass, count elements; sets
//   launch, cost, numerics as forward
void relu_backward(float* dx, const float* dy, const std::uint8_t* pass, std::int64_t count, cudaStream_t stream);

}  // namespace mnist::kernels::naive
