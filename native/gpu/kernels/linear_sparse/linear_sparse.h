// The ladder of linear with sparse weights: y = x w^T + bias, where of four neighbours of a row of w at most two are
// not 0 (2:4 sparsity); sets.
//
//   shapes   y (B,O) <- x (B,I), w (O,I), bias (O), float32; groups of four begin at multiples of 4; any B, I, O >= 1
//   cost     linear_cost (profile/cost.h): that of the dense product, of which the tensor cores do half
//   numerics an approximation: x and w are rounded to bf16, products summed in float32, the slices first to last.
//            Rounding to 8 significant bits changes a factor by at most 2^-8 of it and a term of a sum by at most 2^-7,
//            which is own_error, 8e-3; of many terms with random signs the error is about 2.3e-3
// What is computed is the product with the weights that are given, not with those before pruning: how much accuracy a
// network loses by pruning is no matter of this op.
#pragma once

#include <span>

#include "kernels/linear/linear.h"

namespace mnist::kernels {

std::span<const Variant<LinearForward>> linear_sparse_forward_variants();

// linear_sparse_forward_dense: by mma.sync m16n8k16 in bf16, zeros included.
//   launch   one block of 4 warps per 64x64 tile of y and slice of I, 32x32 per warp; then one thread per output,
//            which adds the slices
//   needs    compute capability 8.0
//   why      what the next row is compared with
void linear_sparse_forward_dense(float* y, float* partial, const float* x, const float* w, const float* bias,
                                 std::int64_t batch, int in, int out, cudaStream_t stream);

// linear_sparse_forward_sparse: by mma.sp m16n8k32.
//   launch, needs  as dense
//   numerics as dense, but a weight that is left out multiplies nothing: 0 times infinity or NaN counts as 0
//   why      one instruction takes the two weights of each four and their places, two bits each, and picks the two
//            numbers of x that they meet: twice the terms per instruction. The block finds the places as it reads w; a
//            trained network would keep them, and read half of the bytes
void linear_sparse_forward_sparse(float* y, float* partial, const float* x, const float* w, const float* bias,
                                  std::int64_t batch, int in, int out, cudaStream_t stream);

}  // namespace mnist::kernels
