// The operators of mnist/operators.h on a GPU: float32 by the kernels of engine tiled, the fastest of our own for each
// op, and by those of layerwise for conv_bn_relu_pool; float64 by naive's.
#include "mnist/operators.h"

#include <algorithm>
#include <type_traits>

#include "cuda/stream.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/batch_norm/naive_ops.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/conv2d/naive_ops.h"
#include "kernels/conv_bn_relu_pool/conv_bn_relu_pool.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/naive_ops.h"
#include "kernels/log_softmax/log_softmax.h"
#include "kernels/log_softmax/naive_ops.h"
#include "kernels/relu/naive_ops.h"
#include "kernels/relu/relu.h"
#include "kernels/relu_max_pool2d/naive_ops.h"

namespace mnist {
namespace {

using namespace kernels;

constexpr int kTiledSide = 46;   // up to which conv2d's tiled kernels take an image: what fits in shared memory
constexpr int kFewOutputs = 32;  // of linear, which leave most of a tile idle

// The ops for T, as engines naive and tiled have them; here for any sizes.
template <class T>
struct Ops {
  static constexpr auto conv2d_forward = &naive::conv2d_forward<T>;
  static constexpr auto conv2d_backward_data = &naive::conv2d_backward_data<T>;
  static constexpr auto conv2d_backward_weight = &naive::conv2d_backward_weight<T>;
  static constexpr auto conv2d_partial_size = &naive::conv2d_partial_size;
  static constexpr auto batch_norm_statistics = &naive::batch_norm_statistics<T>;
  static constexpr auto batch_norm_forward = &naive::batch_norm_forward<T>;
  static constexpr auto batch_norm_backward = &naive::batch_norm_backward<T>;
  static constexpr auto relu_max_pool2d_forward = &naive::relu_max_pool2d_forward<T>;
  static constexpr auto relu_max_pool2d_backward = &naive::relu_max_pool2d_backward<T>;
  static constexpr auto relu_forward = &naive::relu_forward<T>;
  static constexpr auto log_softmax_forward = &naive::log_softmax_forward<T>;
  static constexpr auto linear_forward = &naive::linear_forward_row<T>;
  static constexpr auto linear_backward = &naive::linear_backward_row<T>;
  static std::int64_t linear_partial_size(std::int64_t, int, int) { return 0; }
};

template <>
struct Ops<float> {
  static constexpr auto conv2d_partial_size = &conv2d_backward_weight_partial_size;
  static constexpr auto batch_norm_statistics = &batch_norm_statistics_groups;
  static constexpr auto relu_forward = &relu_forward_float4;
  static constexpr auto log_softmax_forward = &log_softmax_forward_warp;
  static constexpr auto linear_backward = &linear_backward_prefetched;

  static void conv2d_forward(float* y, const float* x, const float* w, const float* bias, std::int64_t batch, int in,
                             int out, int side, cudaStream_t stream) {
    const auto run = side <= kTiledSide ? conv2d_forward_register_tiled : conv2d_forward_implicit_gemm;
    run(y, x, w, bias, batch, in, out, side, stream);
  }
  static void conv2d_backward_data(float* dx, const float* dy, const float* w, std::int64_t batch, int in, int out,
                                   int side, cudaStream_t stream) {
    const auto run = side <= kTiledSide ? conv2d_backward_data_register_tiled : conv2d_backward_data_implicit_gemm;
    run(dx, dy, w, batch, in, out, side, stream);
  }
  static void conv2d_backward_weight(float* dw, float* partial, const float* dy, const float* x, std::int64_t batch,
                                     int in, int out, int side, cudaStream_t stream) {
    const auto run = side <= kTiledSide ? conv2d_backward_weight_register_tiled : naive::conv2d_backward_weight<float>;
    run(dw, partial, dy, x, batch, in, out, side, stream);
  }
  static void linear_forward(float* y, float* partial, const float* x, const float* w, const float* bias,
                             std::int64_t batch, int in, int out, cudaStream_t stream) {
    const auto run = out > kFewOutputs ? linear_forward_prefetched : linear_forward_coalesced;
    run(y, partial, x, w, bias, batch, in, out, stream);
  }
  static std::int64_t linear_partial_size(std::int64_t batch, int in, int out) {
    return std::max(kernels::linear_partial_size(batch, in, out), linear_backward_partial_size(batch, in, out));
  }
};

template <class T>
class GpuOperators final : public Operators<T> {
 public:
  GpuOperators(int device, cudaStream_t stream) : guard_(device), stream_(stream) {}

  void conv_bn_relu_pool_forward(T* a, T* z, T* mean, T* var, std::uint8_t* route, T* scratch, const T* x, const T* w,
                                 const T* bias, const T* gamma, const T* beta, bool of_batch, std::int64_t batch,
                                 int in, int out, int side) override {
    T *y = scratch, *partial = y + aligned_floats(batch * out * side * side);
    if constexpr (kFused) {
      if (side == kPool1Side) {  // of_images fits where y would be
        conv2d_with_statistics(z, of_batch ? scratch : nullptr, x, w, bias, batch, in, out, side, stream_);
        if (of_batch) return merge_apply_pool(a, route, mean, var, z, scratch, gamma, beta, batch, out, side, stream_);
        return apply_pool(a, route, z, gamma, beta, mean, var, batch, out, side, stream_);
      }
    }
    Ops<T>::conv2d_forward(z, x, w, bias, batch, in, out, side, stream_);
    if (of_batch) Ops<T>::batch_norm_statistics(mean, var, partial, z, batch, out, side * side, stream_);
    if constexpr (kFused) {
      apply_pool(a, route, z, gamma, beta, mean, var, batch, out, side, stream_);
    } else {
      Ops<T>::batch_norm_forward(y, z, gamma, beta, mean, var, batch, out, side * side, stream_);
      Ops<T>::relu_max_pool2d_forward(a, route, y, batch * out, side / 2, stream_);
    }
  }

  void conv_bn_relu_pool_backward(T* dx, T* dw, T* dgamma, T* dbeta, T* scratch, const T* da, const T* x, const T* z,
                                  const T* mean, const T* var, const std::uint8_t* route, const T* w, const T* gamma,
                                  std::int64_t batch, int in, int out, int side) override {
    const auto values = aligned_floats(batch * out * side * side);
    T *dy = scratch, *dz = dy + values, *partial = dz + values;
    if constexpr (kFused) {
      pooled_sums(dgamma, dbeta, da, z, route, mean, var, batch, out, side, stream_);
      if (side == kPool1Side && out <= kMostGradientChannels) {
        const PooledGradient of{da, z, route, gamma, mean, var, dgamma, dbeta};
        gradient_in_conv_weight(scratch, of, x, batch, in, out, side, stream_);
        conv2d_add_chunks(dw, scratch, in, out, int(gradient_in_conv_chunks(batch)), stream_);
        if (dx) gradient_in_conv_data(dx, of, w, batch, in, out, side, stream_);
        return;
      }
      dz_of_pooled(dz, da, z, route, gamma, mean, var, dgamma, dbeta, batch, out, side, stream_);
    } else {
      Ops<T>::relu_max_pool2d_backward(dy, da, route, batch * out, side / 2, stream_);
      Ops<T>::batch_norm_backward(dz, dgamma, dbeta, partial, dy, z, gamma, mean, var, batch, out, side * side,
                                  stream_);
    }
    Ops<T>::conv2d_backward_weight(dw, partial, dz, x, batch, in, out, side, stream_);
    if (dx) Ops<T>::conv2d_backward_data(dx, dz, w, batch, in, out, side, stream_);
  }

  std::int64_t conv_bn_relu_pool_scratch(std::int64_t batch, int in, int out, int side) override {
    return 2 * aligned_floats(batch * out * side * side) +
           std::max({naive::batch_norm_partial_size(batch, out), Ops<T>::conv2d_partial_size(batch, in, out),
                     gradient_in_conv_chunks(batch) * in * out * kTaps});
  }

  void linear_forward(T* y, std::uint8_t* pass, T* scratch, const T* x, const T* w, const T* bias, std::int64_t batch,
                      int in, int out) override {
    T *u = pass ? scratch : y, *partial = scratch + aligned_floats(batch * out);
    Ops<T>::linear_forward(u, partial, x, w, bias, batch, in, out, stream_);
    if (pass) Ops<T>::relu_forward(y, pass, u, batch * out, stream_);
  }

  void linear_backward(T* dx, T* dw, T* dbias, T* scratch, const T* dy, const std::uint8_t* pass, const T* x,
                       const T* w, std::int64_t batch, int in, int out) override {
    if (pass) naive::relu_backward(scratch, dy, pass, batch * out, stream_);
    Ops<T>::linear_backward(dx, dw, dbias, scratch + aligned_floats(batch * out), pass ? scratch : dy, x, w, batch, in,
                            out, stream_);
  }

  std::int64_t linear_scratch(std::int64_t batch, int in, int out) override {
    return aligned_floats(batch * out) + Ops<T>::linear_partial_size(batch, in, out);
  }

  void log_softmax_nll_forward(T* loss, T* log_p, const T* logits, const std::uint8_t* labels, std::int64_t batch,
                               int classes) override {
    Ops<T>::log_softmax_forward(log_p, logits, batch, classes, stream_);
    naive::nll_loss_forward(loss, log_p, labels, batch, classes, stream_);
  }

  void log_softmax_nll_backward(T* dlogits, const T* upstream, const T* log_p, const std::uint8_t* labels,
                                std::int64_t batch, int classes) override {
    naive::log_softmax_nll_backward_by_pointer(dlogits, log_p, labels, upstream, batch, classes, stream_);
  }

 private:
  static constexpr bool kFused = std::is_same_v<T, float>;  // whole layers have rows in float alone

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
