// linear, cutlass: the sliced product and the pass that adds the slices, from CUTLASS's templates.
#include "kernels/peers/cutlass.h"
#include "mnist/errors.h"

#if __has_include(<cutlass/gemm/device/gemm_splitk_parallel.h>)
#include <cutlass/gemm/device/gemm_splitk_parallel.h>

#include "cuda/check.h"
#include "kernels/linear/slices.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
constexpr LinearTile kTile = kLinearRegisterTile;
constexpr int kDepth = 8;  // terms of a tile at once

using Product = cutlass::gemm::device::GemmSplitKParallel<
    float, Row, float, Column, float, Row, float, cutlass::arch::OpClassSimt, cutlass::arch::Sm50,
    cutlass::gemm::GemmShape<kTile.rows, kTile.columns, kDepth>, cutlass::gemm::GemmShape<32, 32, kDepth>,
    cutlass::gemm::GemmShape<1, 1, 1>>;

// As many slices as linear_slices has, or fewer: CUTLASS cuts at multiples of kDepth, and none may be empty.
int slices(std::int64_t batch, int in, int out) {
  const int wanted = linear_slices(kTile, batch, out, in).count, steps = ceil_div(in, kDepth);
  const int steps_each = ceil_div(steps, wanted);
  return ceil_div(steps, steps_each);
}

}  // namespace

std::string cutlass_absent() { return {}; }

void linear_forward_cutlass(float* y, float* partial, const float* x, const float* w, const float* bias,
                            std::int64_t batch, int in, int out, cudaStream_t stream) {
  const cutlass::gemm::GemmCoord sizes(int(batch), out, in);
  // The bias is a matrix whose rows all lie in one place.
  Product::Arguments arguments(sizes, {x, in}, {w, in}, {bias, 0}, {y, out}, {1.0f, 1.0f}, slices(batch, in, out));
  Product product;
  auto status = product.initialize(arguments, partial);
  if (status == cutlass::Status::kSuccess) status = product.run(stream);
  MNIST_REQUIRE(status == cutlass::Status::kSuccess,
                "linear_forward_cutlass: CUTLASS says " << cutlassGetStatusString(status));
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
#else
namespace mnist::kernels {

std::string cutlass_absent() {
  return "this build found no headers of CUTLASS; install them with `pip install nvidia-cutlass` and build again";
}

void linear_forward_cutlass(float*, float*, const float*, const float*, const float*, std::int64_t, int, int,
                            cudaStream_t) {
  throw UnavailableError(cutlass_absent());
}

}  // namespace mnist::kernels
#endif
