// The layers of engine `cudnn`: descriptors, choices and calls.
#include "engines/cudnn/layers.h"

#include <algorithm>
#include <span>

namespace mnist::cudnn_engine {
namespace {

using cudnn::Plan;
using cudnn::Rules;
using cudnn::Shape;

constexpr float kOne = 1, kMinusOne = -1, kZero = 0, kEpsilon = float(kBatchNormEpsilon);

// A layer with fewer outputs gets its bias's gradient from a product with ones, in 2 us: the epilogue that sums them
// on the side is slow on narrow products, up to 40 us (H200, bfloat16, batch 1024).
constexpr std::int64_t kWide = 64;

// What a matmul's algorithm may ask for: room for so many partial sums of its output. The heuristics split fc2's
// weight gradient in 400 if they may, which takes 50 us where 64 parts take 7 (H200, float32, batch 256).
constexpr std::int64_t kMatmulWorkspace = 32 << 20, kMaxParts = 128;

// Engines to try before those of cuDNN's heuristics, best first: what was fastest on an H200 with cuDNN 9.19 among
// those that the rules allow, where the heuristics' first choice took from 1.2 to 10 times as long. One that another
// version or GPU does not have is passed over.
struct Advice {
  const char* op;
  Precision precision;
  std::int64_t engine;
};
constexpr Advice kAdvice[] = {
    {"conv1 forward", Precision::kTf32, 48},         {"conv1 backward weight", Precision::kFp32, 17},
    {"conv1 backward weight", Precision::kTf32, 17}, {"conv1 backward weight", Precision::kTf32, 50},
    {"conv1 backward weight", Precision::kBf16, 33}, {"conv2 backward data", Precision::kFp32, 74},
    {"conv2 backward weight", Precision::kFp32, 18}, {"conv2 backward weight", Precision::kTf32, 68},
    {"conv2 backward weight", Precision::kBf16, 65},
};

// Plans of products: chosen for `batch` under `policy`.
template <class Make>
Plan product_plan(const Policy& policy, std::int64_t batch, const std::string& op, Make&& make) {
  std::vector<std::int64_t> first;
  for (const auto& advice : kAdvice)
    if (op == advice.op && policy.precision == advice.precision) first.push_back(advice.engine);
  Plan plan = make(Rules{policy.tensor_cores, workspace_limit(batch), first});
  if (!plan)
    throw UnavailableError("cuDNN has no deterministic algorithm for " + op + " in " + to_string(policy.precision) +
                           " with batch " + std::to_string(batch));
  return plan;
}

// Plans of ops without products: whatever hardware they use computes the same. Empty if there is none.
Plan compiled_plan(const Libraries& libraries, Plan (*make)(cudnn::RawContext, const Shape&, const Rules&),
                   const Shape& x) {
  if (!libraries.compiled_engines) return {};
  return make(libraries.dnn.get(), x, {.tensor_cores = true, .workspace_bytes = workspace_limit(x.n)});
}

void describe_plan(std::vector<std::string>& lines, const std::string& op, const Plan& plan) {
  if (plan) lines.push_back(op + ": " + plan.text());
}

void describe_choice(std::vector<std::string>& lines, const std::string& op, const std::optional<Plan>& plan) {
  if (plan) lines.push_back(op + ": " + (*plan ? plan->text() : "older interface"));
}

cudnn::Owner<cudnn::RawActivation> relu_descriptor() {
  cudnn::Owner<cudnn::RawActivation> relu;
  MNIST_CUDNN(CreateActivationDescriptor(relu.put()));
  MNIST_CUDNN(SetActivationDescriptor(relu.get(), cudnn::kRelu, cudnn::kPropagateNan, 0.0));
  return relu;
}

cudnn::Owner<cudnn::RawTensor> tensor_of(const Shape& x) { return cudnn::tensor4d(x.type, x.n, x.c, x.h, x.w); }

}  // namespace

Policy::Policy(Precision precision)
    : precision(precision),
      storage(precision == Precision::kBf16 ? cudnn::kBfloat16 : cudnn::kFloat),
      tensor_cores(precision != Precision::kFp32),
      compute_type(precision == Precision::kFp32   ? cublas::kComputeFloatPedantic
                   : precision == Precision::kTf32 ? cublas::kComputeTf32
                                                   : cublas::kComputeFloat) {}

std::int64_t workspace_limit(std::int64_t batch) {
  return std::min((std::int64_t(64) << 20) + batch * (512 << 10), std::int64_t(2) << 30);
}

// ---- conv2d ---------------------------------------------------------------------------------------------------------

Conv2d::Conv2d(const Libraries& libraries, std::string name, std::int64_t batch, int in, int out, int side)
    : libraries_(libraries),
      name_(std::move(name)),
      x_{libraries.policy.storage, batch, in, side, side, libraries.channels_last},
      w_{libraries.policy.storage, out, in, 3, 3, libraries.channels_last},
      y_{libraries.policy.storage, batch, out, side, side, libraries.channels_last} {}

void Conv2d::forward(void* y, const void* x, const void* w) {
  const auto context = libraries_.dnn.get();
  if (!forward_)
    forward_ = product_plan(libraries_.policy, x_.n, name_ + " forward",
                            [&](const Rules& rules) { return conv2d_forward_plan(context, x_, w_, y_, rules); });
  forward_.run(context, {x, w, y}, libraries_.workspace);
}

void Conv2d::backward_data(void* dx, const void* dy, const void* w) {
  const auto context = libraries_.dnn.get();
  if (!backward_data_)
    backward_data_ = product_plan(libraries_.policy, x_.n, name_ + " backward data", [&](const Rules& rules) {
      return conv2d_backward_data_plan(context, x_, w_, y_, rules);
    });
  backward_data_.run(context, {dx, w, dy}, libraries_.workspace);
}

void Conv2d::backward_weight(void* dw, const void* dy, const void* x) {
  const auto context = libraries_.dnn.get();
  if (!backward_weight_)
    backward_weight_ = product_plan(libraries_.policy, x_.n, name_ + " backward weight", [&](const Rules& rules) {
      return conv2d_backward_weight_plan(context, x_, w_, y_, rules);
    });
  backward_weight_.run(context, {x, dw, dy}, libraries_.workspace);
}

void Conv2d::describe(std::vector<std::string>& lines) const {
  describe_plan(lines, name_ + " forward", forward_);
  describe_plan(lines, name_ + " backward data", backward_data_);
  describe_plan(lines, name_ + " backward weight", backward_weight_);
}

// ---- batch_norm -----------------------------------------------------------------------------------------------------

BatchNorm::BatchNorm(const Libraries& libraries, std::string name, std::int64_t batch, int channels, int side)
    : libraries_(libraries),
      name_(std::move(name)),
      x_{libraries.policy.storage, batch, channels, side, side},
      tensor_(tensor_of(x_)),
      by_channel_(cudnn::tensor4d(cudnn::kFloat, 1, channels, 1, 1)) {
  MNIST_CUDNN(CreateOpTensorDescriptor(add_.put()));
  MNIST_CUDNN(SetOpTensorDescriptor(add_.get(), cudnn::kAdd, cudnn::kFloat, cudnn::kPropagateNan));
}

void BatchNorm::forward(void* y, float* mean, float* inverse, const void* x, const float* gamma, const float* beta) {
  if (!forward_) forward_ = compiled_plan(libraries_, cudnn::batch_norm_forward_plan, x_);
  if (*forward_)
    forward_->run(libraries_.dnn.get(), {x, y, gamma, beta, mean, inverse, &kEpsilon}, libraries_.workspace);
  else
    forward_once(y, mean, inverse, x, gamma, beta);
}

void BatchNorm::forward_once(void* y, float* mean, float* inverse, const void* x, const float* gamma,
                             const float* beta) {
  const auto context = libraries_.dnn.get();
  std::size_t bytes = 0;
  MNIST_CUDNN(GetBatchNormalizationForwardTrainingExWorkspaceSize(context, cudnn::kSpatialPersistent,
                                                                  cudnn::kBatchNormOnly, tensor_.get(), nullptr,
                                                                  tensor_.get(), by_channel_.get(), nullptr, &bytes));
  MNIST_CUDNN(BatchNormalizationForwardTrainingEx(
      context, cudnn::kSpatialPersistent, cudnn::kBatchNormOnly, &kOne, &kZero, tensor_.get(), x, nullptr, nullptr,
      tensor_.get(), y, by_channel_.get(), gamma, beta, 1.0, nullptr, nullptr, kBatchNormEpsilon, mean, inverse,
      nullptr, libraries_.workspace, bytes, nullptr, 0));
}

void BatchNorm::forward_population(void* y, const void* x, const float* gamma, const float* beta, const float* mean,
                                   const float* var, const float* bias, float* shifted_mean) {
  const auto context = libraries_.dnn.get();
  MNIST_CUDNN(OpTensor(context, add_.get(), &kOne, by_channel_.get(), mean, &kMinusOne, by_channel_.get(), bias, &kZero,
                       by_channel_.get(), shifted_mean));
  MNIST_CUDNN(BatchNormalizationForwardInference(context, cudnn::kSpatial, &kOne, &kZero, tensor_.get(), x,
                                                 tensor_.get(), y, by_channel_.get(), gamma, beta, shifted_mean, var,
                                                 kBatchNormEpsilon));
}

void BatchNorm::backward(void* dx, float* dgamma, float* dbeta, const void* dy, const void* x, const float* gamma,
                         const float* mean, const float* inverse) {
  const auto context = libraries_.dnn.get();
  if (!backward_) backward_ = compiled_plan(libraries_, cudnn::batch_norm_backward_plan, x_);
  if (*backward_)
    return backward_->run(context, {x, dx, gamma, mean, inverse, dgamma, dbeta, dy}, libraries_.workspace);
  std::size_t bytes = 0;
  MNIST_CUDNN(GetBatchNormalizationBackwardExWorkspaceSize(context, cudnn::kSpatialPersistent, cudnn::kBatchNormOnly,
                                                           tensor_.get(), nullptr, tensor_.get(), nullptr,
                                                           tensor_.get(), by_channel_.get(), nullptr, &bytes));
  MNIST_CUDNN(BatchNormalizationBackwardEx(
      context, cudnn::kSpatialPersistent, cudnn::kBatchNormOnly, &kOne, &kZero, &kOne, &kZero, tensor_.get(), x,
      nullptr, nullptr, tensor_.get(), dy, nullptr, nullptr, tensor_.get(), dx, by_channel_.get(), gamma, nullptr,
      dgamma, dbeta, kBatchNormEpsilon, mean, inverse, nullptr, libraries_.workspace, bytes, nullptr, 0));
}

void BatchNorm::describe(std::vector<std::string>& lines) const {
  describe_choice(lines, name_ + " forward", forward_);
  describe_choice(lines, name_ + " backward", backward_);
}

// ---- max_pool2d and relu --------------------------------------------------------------------------------------------

MaxPool2dRelu::MaxPool2dRelu(const Libraries& libraries, std::string name, std::int64_t batch, int channels, int side)
    : libraries_(libraries),
      name_(std::move(name)),
      x_{libraries.policy.storage, batch, channels, side, side},
      x_tensor_(tensor_of(x_)),
      y_tensor_(cudnn::tensor4d(x_.type, batch, channels, side / 2, side / 2)),
      relu_(relu_descriptor()) {
  MNIST_CUDNN(CreatePoolingDescriptor(pooling_.put()));
  MNIST_CUDNN(SetPooling2dDescriptor(pooling_.get(), cudnn::kMaxDeterministic, cudnn::kPropagateNan, 2, 2, 0, 0, 2, 2));
}

void MaxPool2dRelu::forward(void* y, void* index, const void* x) {
  const auto context = libraries_.dnn.get();
  if (index && !forward_) {
    forward_ = compiled_plan(libraries_, cudnn::max_pool2d_forward_plan, x_);
    backward_ = compiled_plan(libraries_, cudnn::max_pool2d_backward_plan, x_);
    if (!*forward_ || !*backward_) {  // one needs the other's indices
      forward_.emplace();
      backward_.emplace();
    }
  }
  if (index && *forward_)
    forward_->run(context, {x, y, index}, libraries_.workspace);
  else
    MNIST_CUDNN(PoolingForward(context, pooling_.get(), &kOne, x_tensor_.get(), x, &kZero, y_tensor_.get(), y));
  MNIST_CUDNN(ActivationForward(context, relu_.get(), &kOne, y_tensor_.get(), y, &kZero, y_tensor_.get(), y));
}

void MaxPool2dRelu::backward(void* dx, void* dy, const void* y, const void* index, const void* x) {
  const auto context = libraries_.dnn.get();
  MNIST_CUDNN(ActivationBackward(context, relu_.get(), &kOne, y_tensor_.get(), y, y_tensor_.get(), dy, y_tensor_.get(),
                                 y, &kZero, y_tensor_.get(), dy));
  if (*backward_)
    backward_->run(context, {dx, dy, index}, libraries_.workspace);
  else
    // y after relu serves: where it differs from the pooled value, dy is 0.
    MNIST_CUDNN(PoolingBackward(context, pooling_.get(), &kOne, y_tensor_.get(), y, y_tensor_.get(), dy,
                                x_tensor_.get(), x, &kZero, x_tensor_.get(), dx));
}

void MaxPool2dRelu::describe(std::vector<std::string>& lines) const {
  describe_choice(lines, name_ + " forward", forward_);
  describe_choice(lines, name_ + " backward", backward_);
}

// ---- linear ---------------------------------------------------------------------------------------------------------

Linear::Linear(const Libraries& libraries, std::int64_t batch, int in, int out, bool relu)
    : libraries_(libraries), batch_(batch), in_(in), out_(out), relu_(relu) {}

cublas::MatmulShape Linear::shape(std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb, int output_type,
                                  int epilogue) const {
  const auto& policy = libraries_.policy;
  return {m,       n, k, ta, tb, policy.bf16() ? cublas::kBfloat16 : cublas::kFloat, output_type, policy.compute_type,
          epilogue};
}

void Linear::run(std::optional<cublas::Matmul>& matmul, const cublas::MatmulShape& shape, void* d, const void* a,
                 const void* b, const void* bias) const {
  const auto context = libraries_.blas.get();
  if (!matmul) matmul.emplace(context, shape, std::min(kMatmulWorkspace, kMaxParts * shape.m * shape.n * 4));
  matmul->run(context, d, a, b, bias, libraries_.workspace, libraries_.stream);
}

// y^T (out,batch) = w x^T: column-major, w is (in,out) and has to be transposed, x is (in,batch).
void Linear::forward(void* y, const void* x, const void* w, const void* bias) {
  const int type = relu_ && libraries_.policy.bf16() ? cublas::kBfloat16 : cublas::kFloat;
  run(forward_, shape(out_, batch_, in_, true, false, type, relu_ ? cublas::kReluBias : cublas::kBias), y, w, x, bias);
}

// dx^T (in,batch) = w^T dy^T.
void Linear::backward_data(void* dx, const void* dy, const void* w) {
  const int type = libraries_.policy.bf16() ? cublas::kBfloat16 : cublas::kFloat;
  run(backward_data_, shape(in_, batch_, out_, false, false, type, cublas::kPlain), dx, w, dy, nullptr);
}

// dw^T (in,out) = x^T dy, and dbias = the sum of dy over the batch, which is this product's inner dimension.
void Linear::backward_weight(float* dw, float* dbias, const void* dy, const void* x) {
  const bool wide = out_ >= kWide;
  run(backward_weight_,
      shape(in_, out_, batch_, false, true, cublas::kFloat, wide ? cublas::kBiasGradientB : cublas::kPlain), dw, x, dy,
      wide ? dbias : nullptr);
  if (!wide)
    run(backward_bias_, shape(out_, 1, batch_, false, false, cublas::kFloat, cublas::kPlain), dbias, dy,
        libraries_.ones, nullptr);
}

// ---- relu behind fc1, log_softmax -----------------------------------------------------------------------------------

Activations::Activations(const Libraries& libraries, std::int64_t batch)
    : libraries_(libraries),
      h_(cudnn::tensor4d(libraries.policy.storage, batch, kHidden, 1, 1)),
      classes_(cudnn::tensor4d(cudnn::kFloat, batch, kClasses, 1, 1)),
      relu_(relu_descriptor()) {}

void Activations::relu_backward(void* dh, const void* h) {
  MNIST_CUDNN(ActivationBackward(libraries_.dnn.get(), relu_.get(), &kOne, h_.get(), h, h_.get(), dh, h_.get(), h,
                                 &kZero, h_.get(), dh));
}

void Activations::log_softmax_forward(float* log_p, const float* x) {
  MNIST_CUDNN(SoftmaxForward(libraries_.dnn.get(), cudnn::kLogSoftmax, cudnn::kPerInstance, &kOne, classes_.get(), x,
                             &kZero, classes_.get(), log_p));
}

void Activations::log_softmax_backward(float* dx_from_dlog_p, const float* log_p) {
  MNIST_CUDNN(SoftmaxBackward(libraries_.dnn.get(), cudnn::kLogSoftmax, cudnn::kPerInstance, &kOne, classes_.get(),
                              log_p, classes_.get(), dx_from_dlog_p, &kZero, classes_.get(), dx_from_dlog_p));
}

}  // namespace mnist::cudnn_engine
