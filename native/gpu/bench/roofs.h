// Measures what a GPU can do at its best: bytes moved, float32 multiply-adds, tensor-core products.
#pragma once

#include "cuda/stream.h"
#include "mnist/op_bench.h"

namespace mnist::bench {

Roofs measure_roofs(const cuda::Stream& stream);

// Sets tf32_flops and bf16_flops. Of a build with code for compute capability 8.0, which the selected GPU has to run.
void measure_tensor_cores(Roofs& roofs, const cuda::Stream& stream);

}  // namespace mnist::bench
