// The table of linear with sparse weights.
#include "kernels/linear_sparse/linear_sparse.h"

#include "cuda/architectures.h"
#include "cuda/capability.h"

namespace mnist::kernels {

std::span<const Variant<LinearForward>> linear_sparse_forward_variants() {
  static constexpr Variant<LinearForward> kTable[] = {
      {"dense", MNIST_IF_SM80(linear_sparse_forward_dense),
       "mma.sync in bf16, zeros included: within 8e-3 of the float64 product with the pruned weights", 8e-3,
       Unit::kTensorBf16, cuda::kTensorCapability},
      // It is not at this size: half of the instructions and of the weights' bytes, but both wait for loads.
      {"sparse", MNIST_IF_SM80(linear_sparse_forward_sparse),
       "mma.sp in bf16: the two weights of each four and their places, half the instructions; the same 8e-3; "
       "1.1x dense's time at B=256 on an H200",
       8e-3, Unit::kSparseBf16, cuda::kTensorCapability},
  };
  return kTable;
}

}  // namespace mnist::kernels
