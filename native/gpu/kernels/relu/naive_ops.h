// relu: max(0, x), with the decision kept for backward. T is float or double; bytes are those of float.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace mnist::kernels::naive {

// relu_forward: pass = x > 0 (a NaN passes), y = x where it passes, 0 elsewhere.
//   shapes   y of T, pass uint8 <- x of T, count elements; sets
//   launch   one thread an element; block 256
//   cost     bytes 9n, flops 1n; memory bound
//   numerics exact
template <class T>
void relu_forward(T* y, std::uint8_t* pass, const T* x, std::int64_t count, cudaStream_t stream);

// relu_backward: dx = dy where it passed, 0 elsewhere.
//   shapes   dx <- dy, pass, count elements; sets
//   launch, cost, numerics as forward
// With x and y for dy and dx it is also the forward that follows given decisions.
template <class T>
void relu_backward(T* dx, const T* dy, const std::uint8_t* pass, std::int64_t count, cudaStream_t stream);

}  // namespace mnist::kernels::naive
