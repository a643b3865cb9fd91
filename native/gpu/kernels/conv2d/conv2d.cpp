// The tables of conv2d.
#include "kernels/conv2d/conv2d.h"

#include "cuda/architectures.h"
#include "cuda/capability.h"
#include "kernels/conv2d/naive_ops.h"

namespace mnist::kernels {

std::span<const Variant<Conv2dForward>> conv2d_forward_variants() {
  static constexpr Variant<Conv2dForward> kTable[] = {
      {"naive", naive::conv2d_forward, "one thread per output; two loads per multiply-add"},
      // A load of x serves 8 output channels; the border is a ring of zeros in shared memory.
      {"tiled", conv2d_forward_tiled, "padded planes in shared memory; 8 output channels per thread"},
      // Tiles of 64x64 halve the loads per product, but each gathered number costs a place and a test of the border.
      {"implicit_gemm", conv2d_forward_implicit_gemm, "a register-tiled matrix product whose left side is gathered"},
      // 45 loads serve 504 products, because 7 positions below each other share their pixels, and nothing is gathered.
      {"register_tiled", conv2d_forward_register_tiled,
       "tiled with 7 rows by 8 channels per thread: 45 loads of shared memory for 504 multiply-adds"},
      // One instruction of a warp makes 1,024 products instead of 32, and copies run meanwhile.
      {"tensor_cores", MNIST_IF_SM80(conv2d_forward_tensor_cores),
       "register_tiled's planes by mma.sync in tf32, the next ones on their way by cp.async: 0.61x register_tiled's "
       "time and 1.2x cuDNN's at B=256 on an H200",
       1e-3, Unit::kTensorTf32, cuda::kTensorCapability},
  };
  return kTable;
}

std::span<const Variant<Conv2dBackwardData>> conv2d_backward_data_variants() {
  static constexpr Variant<Conv2dBackwardData> kTable[] = {
      {"naive", naive::conv2d_backward_data, "one thread per pixel; two loads per multiply-add"},
      // 16 outputs per thread share their loads, although half of the threads have no output.
      {"implicit_gemm", conv2d_backward_data_implicit_gemm,
       "forward's product, filters turned; 32 channels idle half of it: 2.0x cuDNN's time at B=256 on an H200"},
      // Positions below each other share their pixels, nothing is gathered, and every thread has outputs.
      {"register_tiled", conv2d_backward_data_register_tiled, "forward's register_tiled with the filters turned"},
  };
  return kTable;
}

std::span<const Variant<Conv2dBackwardWeight>> conv2d_backward_weight_variants() {
  static constexpr Variant<Conv2dBackwardWeight> kTable[] = {
      {"naive", naive::conv2d_backward_weight,
       "a block per filter and chunk of images, nine taps per thread in registers"},
      // Strips in shared memory serve all pairs of channels of a block, without border tests, and no sum over the
      // block.
      {"tiled", conv2d_backward_weight_tiled,
       "strips in shared memory; a lane walks down a column, nine pixels in registers"},
      // 5 loads of shared memory serve 72 products, where 4 served 9.
      {"register_tiled", conv2d_backward_weight_register_tiled,
       "8 output channels per thread: 5 loads of shared memory for 72 multiply-adds; 1.2x cuDNN's time at B=256 on an "
       "H200, 1.3x at 1024"},
  };
  return kTable;
}

}  // namespace mnist::kernels
