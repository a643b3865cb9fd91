// log_softmax: one thread a row forward, one thread an element backward; the loss in one block.
#include "cuda/check.h"
#include "kernels/device/block_sum.cuh"
#include "kernels/log_softmax/naive_ops.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels::naive {
namespace {

constexpr int kBlock = 128;
constexpr int kLossBlock = 256;

template <class T>
__global__ void log_softmax_forward_kernel(T* __restrict__ log_p, const T* __restrict__ x, std::int64_t batch,
                                           int classes) {
  const std::int64_t b = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (b >= batch) return;
  const T* row = x + b * classes;
  T top = row[0];
  for (int k = 1; k < classes; ++k) top = row[k] > top ? row[k] : top;
  T sum = 0;
  for (int k = 0; k < classes; ++k) sum += exp(row[k] - top);
  const T shift = log(sum);
  for (int k = 0; k < classes; ++k) log_p[b * classes + k] = row[k] - top - shift;
}

template <class T>
__global__ void nll_loss_forward_kernel(T* __restrict__ loss, const T* __restrict__ log_p,
                                        const std::uint8_t* __restrict__ labels, std::int64_t batch, int classes) {
  __shared__ double shared[kLossBlock];
  double sum = 0;
  for (std::int64_t b = threadIdx.x; b < batch; b += kLossBlock)
    sum -= labels[b] < classes ? double(log_p[b * classes + labels[b]]) : nan("");
  sum = device::block_sum<kLossBlock>(sum, shared);
  if (threadIdx.x == 0) *loss = T(sum / double(batch));
}

// `upstream` null: 1.
template <class T>
__global__ void log_softmax_nll_backward_kernel(T* __restrict__ dx, const T* __restrict__ log_p,
                                                const std::uint8_t* __restrict__ labels, T scale,
                                                const T* __restrict__ upstream, std::int64_t count, int classes) {
  const std::int64_t n = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (n >= count) return;
  const std::int64_t b = n / classes;
  const int k = int(n % classes);
  if (upstream) scale *= *upstream;
  dx[n] = scale * (exp(log_p[n]) - T(k == labels[b]));
}

unsigned blocks(std::int64_t count) { return unsigned(ceil_div(count, kBlock)); }

void require_sizes(const char* what, std::int64_t batch, int classes) {
  MNIST_REQUIRE(batch > 0 && classes > 0,
                what << ": batch " << batch << ", " << classes << " classes, expected both at least 1");
}

}  // namespace

template <class T>
void log_softmax_forward(T* log_p, const T* x, std::int64_t batch, int classes, cudaStream_t stream) {
  require_sizes("log_softmax_forward", batch, classes);
  log_softmax_forward_kernel<<<blocks(batch), kBlock, 0, stream>>>(log_p, x, batch, classes);
  MNIST_CHECK_LAUNCH();
}

template <class T>
void nll_loss_forward(T* loss, const T* log_p, const std::uint8_t* labels, std::int64_t batch, int classes,
                      cudaStream_t stream) {
  require_sizes("nll_loss_forward", batch, classes);
  nll_loss_forward_kernel<<<1, kLossBlock, 0, stream>>>(loss, log_p, labels, batch, classes);
  MNIST_CHECK_LAUNCH();
}

template <class T>
void log_softmax_nll_backward(T* dx, const T* log_p, const std::uint8_t* labels, double upstream, std::int64_t batch,
                              int classes, cudaStream_t stream) {
  require_sizes("log_softmax_nll_backward", batch, classes);
  log_softmax_nll_backward_kernel<T><<<blocks(batch * classes), kBlock, 0, stream>>>(
      dx, log_p, labels, T(upstream / double(batch)), nullptr, batch * classes, classes);
  MNIST_CHECK_LAUNCH();
}

template <class T>
void log_softmax_nll_backward_by_pointer(T* dx, const T* log_p, const std::uint8_t* labels, const T* upstream,
                                         std::int64_t batch, int classes, cudaStream_t stream) {
  require_sizes("log_softmax_nll_backward", batch, classes);
  log_softmax_nll_backward_kernel<T><<<blocks(batch * classes), kBlock, 0, stream>>>(
      dx, log_p, labels, T(1 / double(batch)), upstream, batch * classes, classes);
  MNIST_CHECK_LAUNCH();
}

#define MNIST_INSTANTIATE(T)                                                                                          \
  template void log_softmax_forward(T*, const T*, std::int64_t, int, cudaStream_t);                                   \
  template void nll_loss_forward(T*, const T*, const std::uint8_t*, std::int64_t, int, cudaStream_t);                 \
  template void log_softmax_nll_backward(T*, const T*, const std::uint8_t*, double, std::int64_t, int, cudaStream_t); \
  template void log_softmax_nll_backward_by_pointer(T*, const T*, const std::uint8_t*, const T*, std::int64_t, int,   \
                                                    cudaStream_t)
MNIST_INSTANTIATE(float);
MNIST_INSTANTIATE(double);

}  // namespace mnist::kernels::naive
