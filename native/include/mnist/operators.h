// Operators on a caller's arrays, one at a time: what mnist_cuda.torch makes PyTorch operators of.
//
// Arrays are contiguous and in PyTorch's layouts; the caller owns them, outputs and scratch among them. Nothing is
// allocated and nothing waits: on a GPU the work is queued on the caller's stream. Parameter order: outputs, scratch,
// inputs, sizes. Everything SETS its outputs; a gradient is d + the name of what it is the gradient of.
#pragma once

#include <cstdint>
#include <memory>

namespace mnist {

// T is float or double.
template <class T>
class Operators {
 public:
  virtual ~Operators() = default;

  // conv2d 3x3 with one ring of zeros, batch norm, relu, 2x2 max pool:
  // a, route (B,O,S/2,S/2), z (B,O,S,S), mean, var (O) <- x (B,I,S,S), w (O,I,3,3), bias, gamma, beta (O).
  // z is what batch norm takes, mean and var (biased) its statistics, route the decisions of relu and pool (Routing in
  // mnist/engine.h); backward needs them. of_batch false: mean and var are read instead of set. S is even.
  virtual void conv_bn_relu_pool_forward(T* a, T* z, T* mean, T* var, std::uint8_t* route, T* scratch, const T* x,
                                         const T* w, const T* bias, const T* gamma, const T* beta, bool of_batch,
                                         std::int64_t batch, int in, int out, int side) = 0;

  // Through all of it, mean and var being functions of the batch. dx may be null. dbias is exactly 0, because batch
  // norm subtracts the mean, and is not computed.
  virtual void conv_bn_relu_pool_backward(T* dx, T* dw, T* dgamma, T* dbeta, T* scratch, const T* da, const T* x,
                                          const T* z, const T* mean, const T* var, const std::uint8_t* route,
                                          const T* w, const T* gamma, std::int64_t batch, int in, int out,
                                          int side) = 0;

  // Elements of scratch that either of the two needs.
  virtual std::int64_t conv_bn_relu_pool_scratch(std::int64_t batch, int in, int out, int side) = 0;

  // y (B,O) <- x (B,I), w (O,I), bias (O). With `pass` (B,O), y is relu of that, and pass which units it let through.
  virtual void linear_forward(T* y, std::uint8_t* pass, T* scratch, const T* x, const T* w, const T* bias,
                              std::int64_t batch, int in, int out) = 0;

  // With `pass`, through the relu too.
  virtual void linear_backward(T* dx, T* dw, T* dbias, T* scratch, const T* dy, const std::uint8_t* pass, const T* x,
                               const T* w, std::int64_t batch, int in, int out) = 0;

  virtual std::int64_t linear_scratch(std::int64_t batch, int in, int out) = 0;

  // loss (1), the mean over the batch of -log_p[b, label[b]], and log_p (B,K) <- logits (B,K), labels (B).
  // A label that is none of the classes: ArgumentError on the host; on a GPU, where that would have to wait, a loss of
  // NaN.
  virtual void log_softmax_nll_forward(T* loss, T* log_p, const T* logits, const std::uint8_t* labels,
                                       std::int64_t batch, int classes) = 0;

  // dlogits (B,K) <- upstream (1), the gradient of the objective by the loss; log_p, labels.
  virtual void log_softmax_nll_backward(T* dlogits, const T* upstream, const T* log_p, const std::uint8_t* labels,
                                        std::int64_t batch, int classes) = 0;
};

// device: -1 is the host, whose `stream` is ignored; else a GPU and one of its streams, a cudaStream_t.
// Throws UnavailableError for a GPU in a build without CUDA code.
template <class T>
std::unique_ptr<Operators<T>> operators_on(int device, void* stream);

// Called by operators_on; native/gpu/kernels/operators.cpp.
template <class T>
std::unique_ptr<Operators<T>> operators_on_gpu(int device, void* stream);

}  // namespace mnist
