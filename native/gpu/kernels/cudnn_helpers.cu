// cudnn_helpers: conversions, normalize, nll_loss backward, sgd with a copy, statistics as PyTorch stores them.
#include "cuda/check.h"
#include "kernels/cudnn_helpers.h"
#include "mnist/ceil_div.h"
#include "mnist/model.h"

namespace mnist::kernels {
namespace {

constexpr int kBlock = 256;

unsigned blocks(std::int64_t threads) { return unsigned(ceil_div(threads, kBlock)); }

__device__ std::int64_t element() { return std::int64_t(blockIdx.x) * kBlock + threadIdx.x; }

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T value[4];
};

template <class T>
__global__ void normalize_forward_kernel(Four<T>* __restrict__ x, const uchar4* __restrict__ u, std::int64_t fours) {
  constexpr float kScale = float(1 / (255 * kPixelStd)), kShift = float(-kPixelMean / kPixelStd);
  const std::int64_t i = element();
  if (i >= fours) return;
  const uchar4 from = u[i];
  x[i] = {T(fmaf(from.x, kScale, kShift)), T(fmaf(from.y, kScale, kShift)), T(fmaf(from.z, kScale, kShift)),
          T(fmaf(from.w, kScale, kShift))};
}

template <class T>
void normalize(T* x, const std::uint8_t* u, std::int64_t count, cudaStream_t stream) {
  MNIST_REQUIRE(count > 0 && count % 4 == 0, "normalize_forward: count is " << count << ", expected a multiple of 4");
  MNIST_REQUIRE(
      reinterpret_cast<std::uintptr_t>(u) % 4 == 0 && reinterpret_cast<std::uintptr_t>(x) % sizeof(Four<T>) == 0,
      "normalize_forward: arrays must be aligned to 4 elements");
  normalize_forward_kernel<<<blocks(count / 4), kBlock, 0, stream>>>(reinterpret_cast<Four<T>*>(x),
                                                                     reinterpret_cast<const uchar4*>(u), count / 4);
  MNIST_CHECK_LAUNCH();
}

__global__ void nll_loss_backward_kernel(float* __restrict__ dlog_p, const std::uint8_t* __restrict__ labels,
                                         float of_label, std::int64_t count, int classes) {
  const std::int64_t i = element();
  if (i < count) dlog_p[i] = i % classes == labels[i / classes] ? of_label : 0.0f;
}

template <class To, class From>
__global__ void convert_kernel(To* __restrict__ y, const From* __restrict__ x, std::int64_t count) {
  const std::int64_t i = element();
  if (i < count) y[i] = To(float(x[i]));
}

template <class To, class From>
void convert_any(To* y, const From* x, std::int64_t count, cudaStream_t stream) {
  MNIST_REQUIRE(count > 0, "convert: count is " << count << ", expected at least 1");
  convert_kernel<<<blocks(count), kBlock, 0, stream>>>(y, x, count);
  MNIST_CHECK_LAUNCH();
}

__global__ void sgd_update_kernel(float* __restrict__ w, __nv_bfloat16* __restrict__ copy, const float* __restrict__ dw,
                                  const float* __restrict__ learning_rate, std::int64_t count) {
  const std::int64_t i = element();
  if (i >= count) return;
  const float updated = w[i] - *learning_rate * dw[i];
  w[i] = updated;
  copy[i] = __nv_bfloat16(updated);
}

__global__ void propagate_nan_kernel(float* __restrict__ x, const float* __restrict__ from, std::int64_t count, int n) {
  const std::int64_t i = element();
  if (i >= count) return;
  float zero = 0;
  for (int k = 0; k < n; ++k) zero = fmaf(0.0f, from[k], zero);
  x[i] += zero;
}

__global__ void batch_norm_statistics_from_saved_kernel(float* __restrict__ mean, float* __restrict__ var,
                                                        const float* __restrict__ bias,
                                                        const float* __restrict__ saved_mean,
                                                        const float* __restrict__ inverse, double epsilon,
                                                        int channels) {
  const int c = int(element());
  if (c >= channels) return;
  mean[c] = saved_mean[c] + bias[c];
  const double deviation = 1 / double(inverse[c]);
  var[c] = float(fmax(deviation * deviation - epsilon, 0.0));
}

}  // namespace

void normalize_forward(float* x, const std::uint8_t* u, std::int64_t count, cudaStream_t stream) {
  normalize(x, u, count, stream);
}

void normalize_forward(__nv_bfloat16* x, const std::uint8_t* u, std::int64_t count, cudaStream_t stream) {
  normalize(x, u, count, stream);
}

void nll_loss_backward(float* dlog_p, const std::uint8_t* labels, float upstream, std::int64_t batch, int classes,
                       cudaStream_t stream) {
  MNIST_REQUIRE(batch > 0, "nll_loss_backward: batch is " << batch << ", expected at least 1");
  nll_loss_backward_kernel<<<blocks(batch * classes), kBlock, 0, stream>>>(dlog_p, labels, -upstream / float(batch),
                                                                           batch * classes, classes);
  MNIST_CHECK_LAUNCH();
}

void convert(__nv_bfloat16* y, const float* x, std::int64_t count, cudaStream_t stream) {
  convert_any(y, x, count, stream);
}

void convert(float* y, const __nv_bfloat16* x, std::int64_t count, cudaStream_t stream) {
  convert_any(y, x, count, stream);
}

void sgd_update(float* w, __nv_bfloat16* copy, const float* dw, const float* learning_rate, std::int64_t count,
                cudaStream_t stream) {
  MNIST_REQUIRE(count > 0, "sgd_update: count is " << count << ", expected at least 1");
  sgd_update_kernel<<<blocks(count), kBlock, 0, stream>>>(w, copy, dw, learning_rate, count);
  MNIST_CHECK_LAUNCH();
}

void propagate_nan(float* x, const float* from, std::int64_t count, int n, cudaStream_t stream) {
  MNIST_REQUIRE(count > 0, "propagate_nan: count is " << count << ", expected at least 1");
  propagate_nan_kernel<<<blocks(count), kBlock, 0, stream>>>(x, from, count, n);
  MNIST_CHECK_LAUNCH();
}

void batch_norm_statistics_from_saved(float* mean, float* var, const float* bias, const float* saved_mean,
                                      const float* inverse, double epsilon, int channels, cudaStream_t stream) {
  MNIST_REQUIRE(channels > 0, "batch_norm_statistics_from_saved: " << channels << " channels, expected at least 1");
  batch_norm_statistics_from_saved_kernel<<<blocks(channels), kBlock, 0, stream>>>(mean, var, bias, saved_mean, inverse,
                                                                                   epsilon, channels);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
