// log_softmax: one thread a row forward, one thread an element backward.
#include "cuda/check.h"
#include "kernels/naive/log_softmax.h"

namespace mnist::kernels::naive {
namespace {

constexpr int kBlock = 128;

__global__ void log_softmax_forward_kernel(float* __restrict__ log_p, const float* __restrict__ x, std::int64_t batch,
                                           int classes) {
  const std::int64_t b = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (b >= batch) return;
  const float* row = x + b * classes;
  float top = row[0];
  for (int k = 1; k < classes; ++k) top = row[k] > top ? row[k] : top;
  float sum = 0;
  for (int k = 0; k < classes; ++k) sum += expf(row[k] - top);
  const float shift = logf(sum);
  for (int k = 0; k < classes; ++k) log_p[b * classes + k] = row[k] - top - shift;
}

__global__ void log_softmax_nll_backward_kernel(float* __restrict__ dx, const float* __restrict__ log_p,
                                                const std::uint8_t* __restrict__ labels, float scale,
                                                std::int64_t count, int classes) {
  const std::int64_t n = std::int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (n >= count) return;
  const std::int64_t b = n / classes;
  const int k = int(n % classes);
  dx[n] = scale * (expf(log_p[n]) - float(k == labels[b]));
}

unsigned blocks(std::int64_t count) { return unsigned((count + kBlock - 1) / kBlock); }

void require_sizes(const char* what, std::int64_t batch, int classes) {
  MNIST_REQUIRE(batch > 0 && classes > 0,
                what << ": batch " << batch << ", " << classes << " classes, expected both at least 1");
}

}  // namespace

void log_softmax_forward(float* log_p, const float* x, std::int64_t batch, int classes, cudaStream_t stream) {
  require_sizes("log_softmax_forward", batch, classes);
  log_softmax_forward_kernel<<<blocks(batch), kBlock, 0, stream>>>(log_p, x, batch, classes);
  MNIST_CHECK_LAUNCH();
}

void log_softmax_nll_backward(float* dx, const float* log_p, const std::uint8_t* labels, float upstream,
                              std::int64_t batch, int classes, cudaStream_t stream) {
  require_sizes("log_softmax_nll_backward", batch, classes);
  log_softmax_nll_backward_kernel<<<blocks(batch * classes), kBlock, 0, stream>>>(
      dx, log_p, labels, float(double(upstream) / double(batch)), batch * classes, classes);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels::naive
