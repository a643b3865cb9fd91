// layerwise, fc1's backward: both products in one launch.
#include "cuda/check.h"
#include "kernels/layerwise/layerwise.h"
#include "kernels/linear/product.cuh"
#include "kernels/linear/slices.h"
#include "mnist/ceil_div.h"
#include "mnist/model.h"

namespace mnist::kernels::layerwise {
namespace {

static_assert(kHidden == kProductRows && kFeatures % kProductColumns == 0);

// blockIdx.x = which 64 features; blockIdx.y = which 128 images of da2, and behind those which slice of the batch.
__global__ void __launch_bounds__(kProductThreads, 3)
    fc1_backward_kernel(float* __restrict__ da2, float* __restrict__ partial, const float* __restrict__ dh,
                        const float* __restrict__ a2, const float* __restrict__ weight, int batch, int image_tiles,
                        int slice) {
  __shared__ __align__(16) float shared[kProductFloats];
  const int first_column = int(blockIdx.x) * kProductColumns, y = int(blockIdx.y);
  if (y < image_tiles) {
    multiply_tile<true, false>(shared, da2, dh, weight, batch, kFeatures, kHidden, y * kProductRows, first_column, 0,
                               kHidden, true);
  } else {
    const int begin = (y - image_tiles) * slice;
    multiply_tile<false, false>(shared, partial + std::int64_t(y - image_tiles) * kHidden * kFeatures, dh, a2, kHidden,
                                kFeatures, batch, 0, first_column, begin, min(begin + slice, batch), true);
  }
}

}  // namespace

int fc1_backward(float* da2, float* partial, const float* dh, const float* a2, const float* weight, std::int64_t batch,
                 cudaStream_t stream) {
  const auto slices = linear_slices(kLinearProductTile, kHidden, kFeatures, batch);
  const int image_tiles = int(ceil_div(batch, kProductRows));
  const dim3 grid(kFeatures / kProductColumns, unsigned(image_tiles + slices.count));
  fc1_backward_kernel<<<grid, kProductThreads, 0, stream>>>(da2, partial, dh, a2, weight, int(batch), image_tiles,
                                                            slices.depth);
  MNIST_CHECK_LAUNCH();
  return slices.count;
}

std::int64_t fc1_partial_size(std::int64_t batch) {
  return std::int64_t(linear_slices(kLinearProductTile, kHidden, kFeatures, batch).count) * kHidden * kFeatures;
}

}  // namespace mnist::kernels::layerwise
