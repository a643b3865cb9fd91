// normalize: bytes to the numbers that the network sees.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace mnist::kernels::naive {

// normalize_forward: x = (u/255 - kPixelMean) / kPixelStd.
//   shapes   x (count) of T, float or double, <- u (count) uint8; sets
//   launch   one thread a pixel; block 256
//   cost     bytes 5n in float, flops 2n; memory bound
//   numerics one fused multiply-add with constants folded in float64
template <class T>
void normalize_forward(T* x, const std::uint8_t* u, std::int64_t count, cudaStream_t stream);

}  // namespace mnist::kernels::naive
