// log_softmax: one thread a row forward, one thread an element backward.
#include "cuda/check.h"
#include "kernels/log_softmax/naive_ops.h"

namespace mnist::kernels::naive {
namespace {

constexpr int kBlock = 128;

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
__global__ void log_softmax_nll_backward_kernel(T* __restrict__ dx, const T* __restrict__ log_p,
                                                const std::uint8_t* __restrict__ labels, T scale, std::int64_t count,
                                                int classes) {
  const std::int64_t n = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (n >= count) return;
  const std::int64_t b = n / classes;
  const int k = int(n % classes);
  dx[n] = scale * (exp(log_p[n]) - T(k == labels[b]));
}

unsigned blocks(std::int64_t count) { return unsigned((count + kBlock - 1) / kBlock); }

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
void log_softmax_nll_backward(T* dx, const T* log_p, const std::uint8_t* labels, double upstream, std::int64_t batch,
                              int classes, cudaStream_t stream) {
  require_sizes("log_softmax_nll_backward", batch, classes);
  log_softmax_nll_backward_kernel<<<blocks(batch * classes), kBlock, 0, stream>>>(
      dx, log_p, labels, T(upstream / double(batch)), batch * classes, classes);
  MNIST_CHECK_LAUNCH();
}

#define MNIST_INSTANTIATE(T)                                                        \
  template void log_softmax_forward(T*, const T*, std::int64_t, int, cudaStream_t); \
  template void log_softmax_nll_backward(T*, const T*, const std::uint8_t*, double, std::int64_t, int, cudaStream_t)
MNIST_INSTANTIATE(float);
MNIST_INSTANTIATE(double);

}  // namespace mnist::kernels::naive
