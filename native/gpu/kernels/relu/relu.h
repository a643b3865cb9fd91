// The ladder of relu forward: pass = x > 0 (a NaN passes), y = x where it passes, 0 elsewhere; sets.
//
//   cost     relu_cost (profile/cost.h); memory bound: the only question is how the bytes are moved
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/variant.h"

namespace mnist::kernels {

using ReluForward = void (*)(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream);
std::span<const Variant<ReluForward>> relu_forward_variants();

// relu_forward_float4: four elements a thread, in one load and two stores.
//   launch   one thread four elements; block 256; the rest of up to three is one thread's
//   needs    x and y aligned to 16 bytes, pass to 4 (checked)
//   numerics exact
//   why      a quarter of the instructions for the same bytes
void relu_forward_float4(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream);

}  // namespace mnist::kernels
