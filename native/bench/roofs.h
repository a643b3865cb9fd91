// Measures what a GPU can do at its best: bytes moved, float32 multiply-adds, tensor-core products.
#pragma once

#include "cuda/stream.h"
#include "mnist/op_bench.h"

namespace mnist::bench {

Roofs measure_roofs(const cuda::Stream& stream);

}  // namespace mnist::bench
