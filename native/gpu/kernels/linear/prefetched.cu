// linear, prefetched: 128x64 outputs a block, 8x8 a thread, and the next tiles on their way; forward and backward.
#include <array>

#include "cuda/check.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/product.cuh"
#include "kernels/linear/slices.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

static_assert(kLinearProductTile.rows == kProductRows && kLinearProductTile.columns == kProductColumns);
static_assert(kLinearSliceUnit % kProductDepth == 0);

template <bool kAAlong, bool kBAlong>
void multiply(float* c, const float* a, const float* b, int rows, int columns, int depth, const LinearSlices& slices,
              cudaStream_t stream) {
  bool vector = (kAAlong ? depth : rows) % 4 == 0 && (kBAlong ? depth : columns) % 4 == 0 && columns % 4 == 0;
  for (const float* array : std::array<const float*, 3>{c, a, b})
    vector &= reinterpret_cast<std::uintptr_t>(array) % sizeof(float4) == 0;
  const auto blocks = [](int count, int tile) { return unsigned(ceil_div(count, tile)); };
  const dim3 grid(blocks(columns, kProductColumns), blocks(rows, kProductRows), unsigned(slices.count));
  product_kernel<kAAlong, kBAlong>
      <<<grid, kProductThreads, 0, stream>>>(c, a, b, rows, columns, depth, slices.depth, vector);
  MNIST_CHECK_LAUNCH();
}

}  // namespace

int linear_forward_slices(float* partial, const float* x, const float* w, std::int64_t batch, int in, int out,
                          cudaStream_t stream) {
  const auto slices = linear_slices(kLinearProductTile, batch, out, in);
  multiply<true, true>(partial, x, w, int(batch), out, in, slices, stream);
  return slices.count;
}

void linear_forward_prefetched(float* y, float* partial, const float* x, const float* w, const float* bias,
                               std::int64_t batch, int in, int out, cudaStream_t stream) {
  const int slices = linear_forward_slices(partial, x, w, batch, in, out, stream);
  linear_add_slices(y, partial, bias, batch, out, slices, stream);
}

void linear_backward_prefetched(float* dx, float* dw, float* dbias, float* partial, const float* dy, const float* x,
                                const float* w, std::int64_t batch, int in, int out, cudaStream_t stream) {
  multiply<true, false>(dx, dy, w, int(batch), in, out, {1, out}, stream);
  const auto slices = linear_slices(kLinearProductTile, out, in, batch);
  multiply<false, false>(slices.count > 1 ? partial : dw, dy, x, out, in, int(batch), slices, stream);
  if (slices.count > 1) linear_add_slices(dw, partial, nullptr, out, in, slices.count, stream);
  linear_backward_bias(dbias, dy, batch, out, stream);
}

}  // namespace mnist::kernels
