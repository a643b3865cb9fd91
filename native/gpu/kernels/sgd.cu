// sgd: one thread an element.
#include "cuda/check.h"
#include "kernels/sgd.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

template <class T>
__global__ void sgd_update_kernel(T* __restrict__ w, const T* __restrict__ dw, const T* __restrict__ learning_rate,
                                  std::int64_t count) {
  const std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) w[i] -= *learning_rate * dw[i];
}

}  // namespace

template <class T>
void sgd_update(T* w, const T* dw, const T* learning_rate, std::int64_t count, cudaStream_t stream) {
  MNIST_REQUIRE(count >= 0, "sgd_update: count is " << count << ", expected >= 0");
  if (count == 0) return;
  constexpr int kBlock = 256;
  sgd_update_kernel<<<unsigned(ceil_div(count, kBlock)), kBlock, 0, stream>>>(w, dw, learning_rate, count);
  MNIST_CHECK_LAUNCH();
}

template void sgd_update(float*, const float*, const float*, std::int64_t, cudaStream_t);
template void sgd_update(double*, const double*, const double*, std::int64_t, cudaStream_t);

}  // namespace mnist::kernels
