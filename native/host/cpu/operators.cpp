// The operators of mnist/operators.h on the host, by the reference's ops.
#include "mnist/operators.h"

#include "cpu/reference_ops.h"
#include "mnist/engine.h"
#include "mnist/errors.h"

namespace mnist {
namespace {

template <class T>
class HostOperators final : public Operators<T> {
 public:
  void conv_bn_relu_pool_forward(T* a, T* z, T* mean, T* var, std::uint8_t* route, T* scratch, const T* x, const T* w,
                                 const T* bias, const T* gamma, const T* beta, bool of_batch, std::int64_t batch,
                                 int in, int out, int side) override {
    T* y = scratch;
    reference::conv2d_forward(z, x, w, bias, batch, in, out, side);
    if (of_batch) reference::batch_norm_statistics(mean, var, z, batch, out, side * side);
    reference::batch_norm_forward(y, z, gamma, beta, mean, var, batch, out, side * side);
    reference::relu_max_pool2d_forward(a, route, y, batch * out, side / 2);
  }

  void conv_bn_relu_pool_backward(T* dx, T* dw, T* dgamma, T* dbeta, T* scratch, const T* da, const T* x, const T* z,
                                  const T* mean, const T* var, const std::uint8_t* route, const T* w, const T* gamma,
                                  std::int64_t batch, int in, int out, int side) override {
    T *dy = scratch, *dz = scratch + batch * out * side * side;
    reference::relu_max_pool2d_backward(dy, da, route, batch * out, side / 2);
    reference::batch_norm_backward(dz, dgamma, dbeta, dy, z, gamma, mean, var, batch, out, side * side);
    reference::conv2d_backward_weight(dw, dz, x, batch, in, out, side);
    if (dx) reference::conv2d_backward_data(dx, dz, w, batch, in, out, side);
  }

  std::int64_t conv_bn_relu_pool_scratch(std::int64_t batch, int, int out, int side) override {
    return 2 * batch * out * side * side;
  }

  void linear_forward(T* y, std::uint8_t* pass, T* scratch, const T* x, const T* w, const T* bias, std::int64_t batch,
                      int in, int out) override {
    reference::linear_forward(pass ? scratch : y, x, w, bias, batch, in, out);
    if (pass) reference::relu_forward(y, pass, scratch, batch * out, true);
  }

  void linear_backward(T* dx, T* dw, T* dbias, T* scratch, const T* dy, const std::uint8_t* pass, const T* x,
                       const T* w, std::int64_t batch, int in, int out) override {
    if (pass) reference::relu_backward(scratch, dy, pass, batch * out);
    reference::linear_backward(dx, dw, dbias, pass ? scratch : dy, x, w, batch, in, out);
  }

  std::int64_t linear_scratch(std::int64_t batch, int, int out) override { return batch * out; }

  void log_softmax_nll_forward(T* loss, T* log_p, const T* logits, const std::uint8_t* labels, std::int64_t batch,
                               int classes) override {
    for (std::int64_t b = 0; b < batch; ++b)
      MNIST_REQUIRE(labels[b] < classes,
                    "log_softmax_nll: labels[" << b << "] is " << int(labels[b]) << ", expected below " << classes);
    reference::log_softmax_forward(log_p, logits, batch, classes);
    *loss = T(reference::nll_loss_forward(log_p, labels, batch, classes));
  }

  void log_softmax_nll_backward(T* dlogits, const T* upstream, const T* log_p, const std::uint8_t* labels,
                                std::int64_t batch, int classes) override {
    reference::log_softmax_nll_backward(dlogits, log_p, labels, *upstream, batch, classes);
  }
};

}  // namespace

template <class T>
std::unique_ptr<Operators<T>> operators_on(int device, void* stream) {
  if (device < 0) return std::make_unique<HostOperators<T>>();
#ifdef MNIST_WITH_CUDA
  return operators_on_gpu<T>(device, stream);
#else
  (void)stream;
  throw UnavailableError(cuda_status().reason);
#endif
}

template std::unique_ptr<Operators<float>> operators_on(int, void*);
template std::unique_ptr<Operators<double>> operators_on(int, void*);

}  // namespace mnist
