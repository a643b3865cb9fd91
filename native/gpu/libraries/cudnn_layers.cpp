// The layers of engine `cudnn`: descriptors, choices and calls.
#include "libraries/cudnn_layers.h"

#include <algorithm>
#include <mutex>
#include <span>

#include "cuda/check.h"
#include "cuda/stream.h"

namespace mnist::cudnn_layers {
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

Rules rules_for(const Libraries& libraries, const std::string& op, std::int64_t batch) {
  Rules rules{.tensor_cores = libraries.policy.tensor_cores, .workspace_bytes = workspace_limit(batch)};
  if (libraries.refuse) rules.refuse = [&libraries, op](const auto& plan) { return libraries.refuse(op, plan); };
  return rules;
}

// The plan for an op, made where the context has none yet. What a test refuses is not remembered.
template <class Make>
Plan remembered(const Libraries& libraries, const std::string& op, std::span<const Shape> shapes, Make make) {
  if (libraries.refuse) return make();
  std::string key = op + ", " + to_string(libraries.policy.precision);
  for (const auto& shape : shapes)
    for (const std::int64_t value :
         {std::int64_t(shape.type), shape.n, shape.c, shape.h, shape.w, std::int64_t(shape.channels_last)})
      key.append(1, ' ').append(std::to_string(value));
  if (const auto found = libraries.plans->find(key); found != libraries.plans->end()) return found->second;
  return libraries.plans->emplace(key, make()).first->second;
}

// Plans of ops without products: whatever hardware they use computes the same. Empty if there is none.
Plan compiled_plan(const Libraries& libraries, Plan (*make)(cudnn::RawContext, const Shape&, const Rules&),
                   const std::string& op, const Shape& x) {
  if (!libraries.compiled_engines) return {};
  return remembered(libraries, op, std::span(&x, 1), [&] {
    Rules rules = rules_for(libraries, op, x.n);
    rules.tensor_cores = true;
    return make(libraries.dnn.get(), x, rules);
  });
}

void describe_choice(std::vector<std::string>& lines, const std::string& op, const std::optional<Plan>& plan) {
  if (!plan) return;
  const std::string reason = plan->text().empty() ? "" : "; " + plan->text();
  lines.push_back(op + ": " + (*plan ? plan->text() : "older interface" + reason));
}

cudnn::Owner<cudnn::RawActivation> relu_descriptor() {
  cudnn::Owner<cudnn::RawActivation> relu;
  MNIST_CUDNN(CreateActivationDescriptor(relu.put()));
  MNIST_CUDNN(SetActivationDescriptor(relu.get(), cudnn::kRelu, cudnn::kPropagateNan, 0.0));
  return relu;
}

cudnn::Owner<cudnn::RawTensor> tensor_of(const Shape& x) { return cudnn::tensor4d(x.type, x.n, x.c, x.h, x.w); }

// What engines left behind, by GPU. Never destroyed: CUDA may be gone by then.
struct LeftBehind {
  struct Context {
    int device;
    cudnn::Owner<cudnn::RawContext> dnn;
    std::shared_ptr<Plans> plans;
  };
  std::mutex mutex;
  std::vector<Context> contexts;
};
LeftBehind& left_behind() {
  static LeftBehind& instance = *new LeftBehind;
  return instance;
}

}  // namespace

void take_context(Libraries& libraries, int device) {
  auto& [mutex, contexts] = left_behind();
  {
    const std::lock_guard lock(mutex);
    auto best = contexts.end();
    for (auto it = contexts.begin(); it != contexts.end(); ++it)
      if (it->device == device && (best == contexts.end() || it->plans->size() > best->plans->size())) best = it;
    if (best != contexts.end()) {
      libraries.dnn = std::move(best->dnn);
      libraries.plans = std::move(best->plans);
      contexts.erase(best);
    }
  }
  if (libraries.dnn)
    MNIST_CUDNN(SetStream(libraries.dnn.get(), libraries.stream));
  else
    libraries.dnn = cudnn::create_context(libraries.stream);
}

void leave_context(Libraries& libraries, int device) noexcept {
  try {
    const cuda::DeviceGuard guard(device);
    MNIST_CHECK(cudaStreamSynchronize(libraries.stream));
    MNIST_CUDNN(SetStream(libraries.dnn.get(), nullptr));  // the stream will be gone
    auto& [mutex, contexts] = left_behind();
    const std::lock_guard lock(mutex);
    contexts.push_back({device, std::move(libraries.dnn), libraries.plans});
  } catch (...) {  // the context goes with the engine
  }
}

std::vector<std::size_t> plans_left_behind(int device) {
  auto& [mutex, contexts] = left_behind();
  const std::lock_guard lock(mutex);
  std::vector<std::size_t> counts;
  for (const auto& context : contexts)
    if (context.device == device) counts.push_back(context.plans->size());
  return counts;
}

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
      shapes_{{{libraries.policy.storage, batch, in, side, side, libraries.channels_last},
               {libraries.policy.storage, out, in, 3, 3, libraries.channels_last},
               {libraries.policy.storage, batch, out, side, side, libraries.channels_last}}} {}

void Conv2d::forward(void* y, const void* x, const void* w) { run(forward_, {x, w, y}); }
void Conv2d::backward_data(void* dx, const void* dy, const void* w) { run(backward_data_, {dx, w, dy}); }
void Conv2d::backward_weight(void* dw, const void* dy, const void* x) { run(backward_weight_, {x, dw, dy}); }

std::string Conv2d::op_of(const Product& product) const {
  return name_ + " " + product.op + (product.by_way ? " by way of PyTorch's order" : "");
}

void Conv2d::choose(Product& product) {
  const Policy& policy = libraries_.policy;
  product.by_way = false;
  const auto make = [&](const std::array<Shape, 3>& shapes, std::span<const std::int64_t> first) {
    product.plan = remembered(libraries_, op_of(product), shapes, [&] {
      Rules rules = rules_for(libraries_, op_of(product), shapes[0].n);
      rules.first = first;
      return cudnn::conv2d_plan(product.direction, libraries_.dnn.get(), shapes[0], shapes[1], shapes[2], rules);
    });
  };
  std::vector<std::int64_t> first;
  for (const auto& advice : kAdvice)
    if (op_of(product) == advice.op && policy.precision == advice.precision) first.push_back(advice.engine);
  make(shapes_, first);
  if (product.plan) return;
  const std::string reason = product.plan.text();
  if (libraries_.channels_last && policy.precision == Precision::kFp32) {
    product.by_way = true;
    auto in_order = shapes_;
    for (auto& shape : in_order) shape.channels_last = false;
    make(in_order, {});
  }
  if (!product.plan)
    throw UnavailableError("cuDNN has no deterministic algorithm for " + name_ + " " + product.op + " in " +
                           to_string(policy.precision) + " with batch " + std::to_string(shapes_[0].n) + ": " + reason);
  for (int k = 0; k < 3; ++k)
    first_[k].reserve(shapes_[k].n * shapes_[k].c * shapes_[k].h * shapes_[k].w * policy.element_bytes());
}

void Conv2d::run(Product& product, const Pointers& pointers) {
  const auto run_on = [&](const Pointers& p) {
    product.plan.run(libraries_.dnn.get(), {p[0], p[1], p[2]}, libraries_.workspace);
  };
  if (!product.plan) choose(product);
  if (!product.by_way) return run_on(pointers);
  for (int k = 0; k < 3; ++k)
    if (k != product.output) transform(k, first_[k].data(), pointers[k], false);
  run_on({first_[0].data(), first_[1].data(), first_[2].data()});
  transform(product.output, pointers[product.output], first_[product.output].data(), true);
}

// One of x, w and y from one order to the other.
void Conv2d::transform(int array, const void* to, const void* from, bool to_channels_last) const {
  const Shape& s = shapes_[array];
  const auto tensor = [&](bool last) {
    return cudnn::tensor4d(s.type, s.n, s.c, s.h, s.w, last ? cudnn::kChannelsLast : cudnn::kChannelsFirst);
  };
  MNIST_CUDNN(TransformTensor(libraries_.dnn.get(), &kOne, tensor(!to_channels_last).get(), from, &kZero,
                              tensor(to_channels_last).get(), const_cast<void*>(to)));
}

void Conv2d::describe(std::vector<std::string>& lines) const {
  for (const auto* product : {&forward_, &backward_data_, &backward_weight_})
    if (product->plan) lines.push_back(op_of(*product) + ": " + product->plan.text());
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
  if (!forward_) forward_ = compiled_plan(libraries_, cudnn::batch_norm_forward_plan, name_ + " forward", x_);
  if (*forward_)
    forward_->run(libraries_.dnn.get(), {x, gamma, beta, mean, inverse, &kEpsilon, y}, libraries_.workspace);
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
  if (!backward_) backward_ = compiled_plan(libraries_, cudnn::batch_norm_backward_plan, name_ + " backward", x_);
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
    forward_ = compiled_plan(libraries_, cudnn::max_pool2d_forward_plan, name_ + " forward", x_);
    backward_ = compiled_plan(libraries_, cudnn::max_pool2d_backward_plan, name_ + " backward", x_);
    if (!*forward_ && *backward_)
      backward_ = Plan("forward makes no indices for it");
    else if (*forward_ && !*backward_)
      forward_ = Plan("backward takes none of its indices");
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

Linear::Linear(const Libraries& libraries, std::string name, std::int64_t batch, int in, int out, bool relu)
    : libraries_(libraries), name_(std::move(name)), batch_(batch), in_(in), out_(out), relu_(relu) {}

cublas::MatmulShape Linear::shape(std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb, int output_type,
                                  int epilogue) const {
  const auto& policy = libraries_.policy;
  return {m,       n, k, ta, tb, policy.bf16() ? cublas::kBfloat16 : cublas::kFloat, output_type, policy.compute_type,
          epilogue};
}

void Linear::choose(std::optional<cublas::Matmul>& matmul, const cublas::MatmulShape& shape) const {
  matmul.emplace(libraries_.blas.get(), shape, std::min(kMatmulWorkspace, kMaxParts * shape.m * shape.n * 4));
}

bool Linear::choose_with_epilogue(std::optional<cublas::Matmul>& matmul, const cublas::MatmulShape& shape,
                                  const char* op) const {
  const bool needed = libraries_.policy.precision != Precision::kFp32;  // bf16 has two types, tf32 would round the bias
  try {
    if (libraries_.refuse && libraries_.refuse(name_ + " " + op, "epilogue"))
      throw UnavailableError("cuBLASLt has no epilogue for " + name_ + " " + op + " (refused by a test)");
    choose(matmul, shape);
    return true;
  } catch (const UnavailableError&) {
    if (needed) throw;
    return false;
  }
}

void Linear::run(const cublas::Matmul& matmul, void* d, const void* a, const void* b, const void* bias,
                 bool add) const {
  matmul.run(libraries_.blas.get(), d, a, b, bias, add, libraries_.workspace, libraries_.stream);
}

// y^T (out,batch) = w x^T: column-major, w is (in,out) and has to be transposed, x is (in,batch). And without an
// epilogue y^T = bias ones^T before it.
void Linear::forward(void* y, const void* x, const void* w, const void* bias) {
  if (!forward_) {
    const int type = relu_ && libraries_.policy.bf16() ? cublas::kBfloat16 : cublas::kFloat;
    const auto product = [&](int epilogue) { return shape(out_, batch_, in_, true, false, type, epilogue); };
    if (!choose_with_epilogue(forward_, product(relu_ ? cublas::kReluBias : cublas::kBias), "forward")) {
      choose(forward_bias_, shape(out_, batch_, 1, false, false, type, cublas::kPlain));
      choose(forward_, product(cublas::kPlain));
      y_tensor_ = cudnn::tensor4d(cudnn::kFloat, batch_, out_, 1, 1);
      relu_descriptor_ = relu_descriptor();
    }
  }
  if (!forward_bias_) return run(*forward_, y, w, x, bias);
  run(*forward_bias_, y, bias, libraries_.ones, nullptr);
  run(*forward_, y, w, x, nullptr, true);
  if (relu_)
    MNIST_CUDNN(ActivationForward(libraries_.dnn.get(), relu_descriptor_.get(), &kOne, y_tensor_.get(), y, &kZero,
                                  y_tensor_.get(), y));
}

// dx^T (in,batch) = w^T dy^T.
void Linear::backward_data(void* dx, const void* dy, const void* w) {
  const int type = libraries_.policy.bf16() ? cublas::kBfloat16 : cublas::kFloat;
  if (!backward_data_) choose(backward_data_, shape(in_, batch_, out_, false, false, type, cublas::kPlain));
  run(*backward_data_, dx, w, dy, nullptr);
}

// dw^T (in,out) = x^T dy, and dbias = the sum of dy over the batch, which is this product's inner dimension.
void Linear::backward_weight(float* dw, float* dbias, const void* dy, const void* x) {
  if (!backward_weight_) {
    const auto product = [&](int epilogue) { return shape(in_, out_, batch_, false, true, cublas::kFloat, epilogue); };
    if (out_ < kWide || !choose_with_epilogue(backward_weight_, product(cublas::kBiasGradientB), "backward weight")) {
      choose(backward_weight_, product(cublas::kPlain));
      choose(backward_bias_, shape(out_, 1, batch_, false, false, cublas::kFloat, cublas::kPlain));
    }
  }
  run(*backward_weight_, dw, x, dy, backward_bias_ ? nullptr : dbias);
  if (backward_bias_) run(*backward_bias_, dbias, dy, libraries_.ones, nullptr);
}

// What is not as the heuristics would have it.
void Linear::describe(std::vector<std::string>& lines) const {
  if (forward_bias_)
    lines.push_back(name_ + " forward: bias" + (relu_ ? " and relu" : "") +
                    " by calls of their own, not in an epilogue");
  if (backward_bias_ && out_ >= kWide)
    lines.push_back(name_ + " backward weight: the bias's gradient by a call of its own, not in an epilogue");
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

}  // namespace mnist::cudnn_layers
