// sgd: plain stochastic gradient descent on a slab of parameters.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace mnist::kernels {

// T is float or double. w[i] -= *learning_rate * dw[i], i < count. The learning rate is read from the GPU's memory, so
// that one captured step serves every value of it.
//   launch   one thread an element; block 256
//   cost     bytes 12n in float, flops 2n; memory bound
//   numerics one fused multiply-add
template <class T>
void sgd_update(T* w, const T* dw, const T* learning_rate, std::int64_t count, cudaStream_t stream);

}  // namespace mnist::kernels
