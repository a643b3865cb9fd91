// The tables of linear.
#include "kernels/linear/linear.h"

#include "cuda/architectures.h"
#include "cuda/capability.h"
#include "kernels/linear/naive_ops.h"

namespace mnist::kernels {

std::span<const Variant<LinearForward>> linear_forward_variants() {
  static constexpr Variant<LinearForward> kTable[] = {
      {"naive", naive::linear_forward_row, "one thread per output; a warp reads 32 rows of w at once"},
      // A warp's load of w takes 4 sectors instead of 32, because its lanes read neighbours.
      {"coalesced", linear_forward_coalesced, "one warp per output; it reads 128 adjacent bytes"},
      // A number that is read from memory serves 32 products instead of one.
      {"tiled", linear_forward_tiled,
       "32x32 tiles in shared memory; slices of the sum, because few outputs make few blocks"},
      // Two loads of 16 bytes from shared memory serve 16 products, where every product took two loads.
      {"register_tiled", linear_forward_register_tiled, "64x64 tiles and slices; 4x4 outputs per thread in registers"},
      // Four loads of 16 bytes serve 64 products, and the next tile is on its way while this one is multiplied.
      {"prefetched", linear_forward_prefetched, "8x8 outputs per thread; the next tile loads while one is multiplied"},
      // One instruction of a warp makes 1,024 products instead of 32; what is left is loads and launches.
      {"tensor_cores", MNIST_IF_SM80(linear_forward_tensor_cores),
       "prefetched by mma.sync in tf32, two tiles on their way by cp.async: 0.86x prefetched's time and 1.1x "
       "cuBLASLt's at B=256 on an H200, 0.81x and 1.7x at 1024",
       1e-3, Unit::kTensorTf32, cuda::kTensorCapability},
      // Slower: register_tiled by four products of 8-bit numbers per instruction; rounding to 8 bits is the price.
      {"int8", linear_forward_int8,
       "register_tiled by dp4a of numbers rounded to 8 bits: within 2e-2 of the float64 product, usually 1e-2; 0.79x "
       "register_tiled's time at B=256 on an H200",
       2e-2, Unit::kInt8},
  };
  return kTable;
}

std::span<const Variant<LinearBackward>> linear_backward_variants() {
  static constexpr Variant<LinearBackward> kTable[] = {
      {"naive", naive::linear_backward_row, "one thread per dx, dw and dbias; neighbours read adjacent values"},
      // A number that is read from memory serves 32 products instead of one.
      {"tiled", linear_backward_tiled, "32x32 tiles in shared memory; dbias by 32 threads per output"},
      // Four loads of 16 bytes from shared memory serve 64 products, where every product took two loads.
      {"prefetched", linear_backward_prefetched,
       "8x8 outputs per thread, the next tile on its way; slices of the batch for dw"},
  };
  return kTable;
}

}  // namespace mnist::kernels
