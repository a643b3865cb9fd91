// The operators of mnist/operators.h on a GPU: float32 by the fastest own kernel of each op, float64 by naive's.
#include "mnist/operators.h"

#include <algorithm>

#include "cuda/stream.h"
#include "kernels/batch_norm/naive_ops.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/conv2d/naive_ops.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/naive_ops.h"
#include "kernels/log_softmax/naive_ops.h"
#include "kernels/relu/naive_ops.h"
#include "kernels/relu_max_pool2d/naive_ops.h"

namespace mnist {
namespace {

using namespace kernels;

// What has a faster kernel than naive's, which is for float alone.
template <class T>
struct Fastest {
  static constexpr auto conv2d_forward = &naive::conv2d_forward<T>;
  static constexpr auto conv2d_backward_data = &naive::conv2d_backward_data<T>;
  static std::int64_t linear_partial_size(std::int64_t, int, int) { return 0; }
  static void linear_forward(T* y, T*, const T* x, const T* w, const T* bias, std::int64_t batch, int in, int out,
                             cudaStream_t stream) {
    naive::linear_forward(y, x, w, bias, batch, in, out, stream);
  }
};
template <>
struct Fastest<float> {
  static constexpr auto conv2d_forward = &conv2d_forward_implicit_gemm;
  static constexpr auto conv2d_backward_data = &conv2d_backward_data_implicit_gemm;
  static constexpr auto linear_partial_size = &kernels::linear_partial_size;
  static constexpr auto linear_forward = &linear_forward_register_tiled;
};

template <class T>
class GpuOperators final : public Operators<T> {
 public:
  GpuOperators(int device, cudaStream_t stream) : guard_(device), stream_(stream) {}

  void conv_bn_relu_pool_forward(T* a, T* z, T* mean, T* var, std::uint8_t* route, T* scratch, const T* x, const T* w,
                                 const T* bias, const T* gamma, const T* beta, bool of_batch, std::int64_t batch,
                                 int in, int out, int side) override {
    T *y = scratch, *partial = y + batch * out * side * side;
    Fastest<T>::conv2d_forward(z, x, w, bias, batch, in, out, side, stream_);
    if (of_batch) naive::batch_norm_statistics(mean, var, partial, z, batch, out, side * side, stream_);
    naive::batch_norm_forward(y, z, gamma, beta, mean, var, batch, out, side * side, stream_);
    naive::relu_max_pool2d_forward(a, route, y, batch * out, side / 2, stream_);
  }

  void conv_bn_relu_pool_backward(T* dx, T* dw, T* dgamma, T* dbeta, T* scratch, const T* da, const T* x, const T* z,
                                  const T* mean, const T* var, const std::uint8_t* route, const T* w, const T* gamma,
                                  std::int64_t batch, int in, int out, int side) override {
    const auto values = batch * out * side * side;
    T *dy = scratch, *dz = dy + values, *partial = dz + values;
    naive::relu_max_pool2d_backward(dy, da, route, batch * out, side / 2, stream_);
    naive::batch_norm_backward(dz, dgamma, dbeta, partial, dy, z, gamma, mean, var, batch, out, side * side, stream_);
    naive::conv2d_backward_weight(dw, partial, dz, x, batch, in, out, side, stream_);
    if (dx) Fastest<T>::conv2d_backward_data(dx, dz, w, batch, in, out, side, stream_);
  }

  std::int64_t conv_bn_relu_pool_scratch(std::int64_t batch, int in, int out, int side) override {
    return 2 * batch * out * side * side +
           std::max(naive::batch_norm_partial_size(batch, out), naive::conv2d_partial_size(batch, in, out));
  }

  void linear_forward(T* y, std::uint8_t* pass, T* scratch, const T* x, const T* w, const T* bias, std::int64_t batch,
                      int in, int out) override {
    T *u = pass ? scratch : y, *partial = scratch + batch * out;
    Fastest<T>::linear_forward(u, partial, x, w, bias, batch, in, out, stream_);
    if (pass) naive::relu_forward(y, pass, u, batch * out, stream_);
  }

  void linear_backward(T* dx, T* dw, T* dbias, T* scratch, const T* dy, const std::uint8_t* pass, const T* x,
                       const T* w, std::int64_t batch, int in, int out) override {
    if (pass) naive::relu_backward(scratch, dy, pass, batch * out, stream_);
    naive::linear_backward(dx, dw, dbias, pass ? scratch : dy, x, w, batch, in, out, stream_);
  }

  std::int64_t linear_scratch(std::int64_t batch, int in, int out) override {
    return batch * out + Fastest<T>::linear_partial_size(batch, in, out);
  }

  void log_softmax_nll_forward(T* loss, T* log_p, const T* logits, const std::uint8_t* labels, std::int64_t batch,
                               int classes) override {
    naive::log_softmax_forward(log_p, logits, batch, classes, stream_);
    naive::nll_loss_forward(loss, log_p, labels, batch, classes, stream_);
  }

  void log_softmax_nll_backward(T* dlogits, const T* upstream, const T* log_p, const std::uint8_t* labels,
                                std::int64_t batch, int classes) override {
    naive::log_softmax_nll_backward_by_pointer(dlogits, log_p, labels, upstream, batch, classes, stream_);
  }

 private:
  cuda::DeviceGuard guard_;
  cudaStream_t stream_;
};

}  // namespace

template <class T>
std::unique_ptr<Operators<T>> operators_on_gpu(int device, void* stream) {
  return std::make_unique<GpuOperators<T>>(device, static_cast<cudaStream_t>(stream));
}

template std::unique_ptr<Operators<float>> operators_on_gpu(int, void*);
template std::unique_ptr<Operators<double>> operators_on_gpu(int, void*);

}  // namespace mnist
