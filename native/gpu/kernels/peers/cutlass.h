// linear forward by CUTLASS, NVIDIA's templates of matrix products, in a build that found their headers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

namespace mnist::kernels {

// Why this build has it not; empty if it has.
std::string cutlass_absent();

// y (B,O) = x (B,I) w^T (O,I) + bias (O); partial: scratch of linear_partial_size(B,I,O) floats (linear.h).
//   launch   GemmSplitKParallel: one block a 64x64 tile of y and slice of I; then its reduction, with the bias in the
//            epilogue
//   numerics float32 multiply-adds; the slices first to last
//   why      `register_tiled` in a page of template parameters: tiles, warps, stages and epilogue are CUTLASS's
// Throws UnavailableError where cutlass_absent() says something.
void linear_forward_cutlass(float* y, float* partial, const float* x, const float* w, const float* bias,
                            std::int64_t batch, int in, int out, cudaStream_t stream);

}  // namespace mnist::kernels
