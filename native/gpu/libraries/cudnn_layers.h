// The layers of engine `cudnn`: which library call serves which op, and why.
//
// Activations and filters lie channels last: (batch, row, column, channel) and (out, row, column, in). A layer object
// belongs to one batch size; it chooses its algorithms when they are first needed, never by measuring, and keeps
// them. All work is queued on the libraries' stream.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/buffer.h"
#include "libraries/cublas.h"
#include "libraries/cudnn.h"
#include "libraries/cudnn_graph.h"
#include "mnist/engine.h"

namespace mnist::cudnn_layers {

// What a precision means here. Sums, statistics and master weights are float32 in all three.
//
//   fp32  float32 storage; products by FMA only (no tensor cores), cuBLAS pedantic
//   tf32  float32 storage; tensor cores may round the factors to 10 bits
//   bf16  activations, their gradients and the weights that kernels read in bfloat16
struct Policy {
  explicit Policy(Precision precision);
  Precision precision;
  int storage;        // cudnn::kFloat or cudnn::kBfloat16
  bool tensor_cores;  // for products
  int compute_type;   // cuBLAS's

  bool bf16() const { return storage == cudnn::kBfloat16; }
  std::int64_t element_bytes() const { return bf16() ? 2 : 4; }
};

// The workspace that an algorithm for this batch size may ask for. It depends on nothing else, so that the choice
// does not depend on what was trained before.
std::int64_t workspace_limit(std::int64_t batch);

// True for choices of an op, both as describe() prints them, to do as if the library did not have them.
using Refusal = std::function<bool(const std::string& op, const std::string& choice)>;

// The plans that were made by a context, by op, precision and shapes: they depend on nothing else, and those of a step
// take two seconds to make.
using Plans = std::map<std::string, cudnn::Plan>;

// The contexts, and the memory that all layers share because they run one after another.
struct Libraries {
  cudnn::Owner<cudnn::RawContext> dnn;
  std::shared_ptr<Plans> plans = std::make_shared<Plans>();  // of dnn
  cublas::Owner<cublas::RawContext> blas;
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
  const void* ones = nullptr;    // one for each sample, of the storage type
  bool channels_last = true;     // how conv2d's arrays lie; false, as in PyTorch, is for the ladder of conv2d
  bool compiled_engines = true;  // let cuDNN compile engines at run time; false is for tests of what it falls back to
  Refusal refuse = {};           // for tests
  Policy policy;
};

// An engine leaves its context behind for those after it in this process, with the plans. Engines that live side by
// side have contexts of their own: a plan is run by the context that made it, and by one thread at a time.
//
// Sets dnn and plans, for libraries.stream: those with the most plans that were left behind on GPU `device`, which is
// selected, or new ones.
void take_context(Libraries& libraries, int device);
// Waits for the stream. Where that fails, nothing is left behind.
void leave_context(Libraries& libraries, int device) noexcept;
// For tests: of each context that was left behind there, how many plans it has.
std::vector<std::size_t> plans_left_behind(int device);

// conv2d without its bias, 3x3, padding 1: batch norm would take the bias out again.
//
// Graph interface: it reaches the same kernels as cudnnConvolutionForward and more of them, and says of each whether
// it is deterministic and uses tensor cores, which the older interface does not.
//
// Where it has no engine for float32 with channels last, as may be on GPUs older than Ampere, the arrays take the way
// through PyTorch's order, for which there always was one: cudnnTransformTensor before and after.
class Conv2d {
 public:
  Conv2d(const Libraries& libraries, std::string name, std::int64_t batch, int in, int out, int side);
  void forward(void* y, const void* x, const void* w);
  void backward_data(void* dx, const void* dy, const void* w);
  void backward_weight(void* dw, const void* dy, const void* x);  // dw in the storage type
  void describe(std::vector<std::string>& lines) const;

 private:
  using Pointers = std::array<const void*, 3>;  // x, w, y or their gradients
  struct Product {
    const char* op;
    cudnn::Direction direction;
    int output;  // which of the pointers
    cudnn::Plan plan = {};
    bool by_way = false;  // of PyTorch's order
  };
  std::string op_of(const Product& product) const;
  void choose(Product& product);
  void run(Product& product, const Pointers& pointers);
  void transform(int array, const void* to, const void* from, bool to_channels_last) const;

  const Libraries& libraries_;
  std::string name_;
  std::array<cudnn::Shape, 3> shapes_;  // of x, w and y
  Product forward_{"forward", cudnn::Direction::kForward, 2};
  Product backward_data_{"backward data", cudnn::Direction::kBackwardData, 0};
  Product backward_weight_{"backward weight", cudnn::Direction::kBackwardWeight, 1};
  std::array<cuda::DeviceBuffer<std::uint8_t>, 3> first_;  // x, w and y in PyTorch's order, where products need that
};

// batch_norm over (batch, row, column).
//
// Training: the graph interface's norm operation, where the library has an engine for it. It compiles one at run time,
// with NVRTC, in a quarter to half of a second, and is 20 % faster than the older persistent call in float32 on an
// H200, 40 % in bfloat16. Else that call, which every cuDNN has and which also serves where batch statistics are
// wanted but once. Evaluation: cudnnBatchNormalizationForwardInference; the graph interface has none.
class BatchNorm {
 public:
  BatchNorm(const Libraries& libraries, std::string name, std::int64_t batch, int channels, int side);
  // Sets y, and the batch's mean and 1/sqrt(var + epsilon), by channel.
  void forward(void* y, float* mean, float* inverse, const void* x, const float* gamma, const float* beta);
  // The same by the older interface: nothing to compile.
  void forward_once(void* y, float* mean, float* inverse, const void* x, const float* gamma, const float* beta);
  // By the statistics of `x` without a bias that `mean` contains: mean - bias.
  void forward_population(void* y, const void* x, const float* gamma, const float* beta, const float* mean,
                          const float* var, const float* bias, float* shifted_mean);
  void backward(void* dx, float* dgamma, float* dbeta, const void* dy, const void* x, const float* gamma,
                const float* mean, const float* inverse);
  void describe(std::vector<std::string>& lines) const;

 private:
  const Libraries& libraries_;
  std::string name_;
  cudnn::Shape x_;
  cudnn::Owner<cudnn::RawTensor> tensor_, by_channel_;
  cudnn::Owner<cudnn::RawOpTensor> add_;
  std::optional<cudnn::Plan> forward_, backward_;  // tried; empty plans mean the older interface
};

// max_pool2d, 2x2, and the relu that the network has before it: the two commute, and behind the pooling relu touches
// a quarter of the values.
//
// Graph interface where it has an engine: its forward keeps each maximum's place, so that the backward need not read
// x and y again, 7 to 10 times faster than the older interface's deterministic mode on an H200; compiled at run time,
// too. Else that mode; evaluation, which needs no places, takes the older forward. The compiled one takes a NaN for
// the smallest value, whatever it is asked to do with it.
// relu: cudnnActivationForward and Backward, in place.
class MaxPool2dRelu {
 public:
  MaxPool2dRelu(const Libraries& libraries, std::string name, std::int64_t batch, int channels, int side);
  void forward(void* y, void* index, const void* x);  // `index` null: no backward will follow
  // dx from dy, which is overwritten.
  void backward(void* dx, void* dy, const void* y, const void* index, const void* x);
  void describe(std::vector<std::string>& lines) const;

 private:
  const Libraries& libraries_;
  std::string name_;
  cudnn::Shape x_;
  cudnn::Owner<cudnn::RawTensor> x_tensor_, y_tensor_;
  cudnn::Owner<cudnn::RawPooling> pooling_;
  cudnn::Owner<cudnn::RawActivation> relu_;
  std::optional<cudnn::Plan> forward_, backward_;
};

// linear: cuBLASLt, with the bias (and relu) in the epilogue of the forward product and, where that is fast, the
// bias's gradient in that of the weight's. x (batch,in), w (out,in), y (batch,out), row-major: to a column-major
// library their transposes. In float32 without such an epilogue, calls of their own: the bias times ones, to which the
// product is added, and cudnnActivationForward; and for the gradient a product with ones.
class Linear {
 public:
  // `relu`: forward ends with it, and y is of the storage type; else y is float32, and so is its gradient's sum.
  Linear(const Libraries& libraries, std::string name, std::int64_t batch, int in, int out, bool relu);
  void forward(void* y, const void* x, const void* w, const void* bias);
  void backward_data(void* dx, const void* dy, const void* w);
  void backward_weight(float* dw, float* dbias, const void* dy, const void* x);
  void describe(std::vector<std::string>& lines) const;

 private:
  cublas::MatmulShape shape(std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb, int output_type,
                            int epilogue) const;
  void choose(std::optional<cublas::Matmul>& matmul, const cublas::MatmulShape& shape) const;
  // False where cuBLASLt cannot do it with the shape's epilogue, and float32 can do without.
  bool choose_with_epilogue(std::optional<cublas::Matmul>& matmul, const cublas::MatmulShape& shape,
                            const char* op) const;
  void run(const cublas::Matmul& matmul, void* d, const void* a, const void* b, const void* bias,
           bool add = false) const;

  const Libraries& libraries_;
  std::string name_;
  std::int64_t batch_, in_, out_;
  bool relu_;
  // forward_bias_, and backward_bias_ of a wide layer: where there is no epilogue for it.
  std::optional<cublas::Matmul> forward_, forward_bias_, backward_data_, backward_weight_, backward_bias_;
  cudnn::Owner<cudnn::RawTensor> y_tensor_;
  cudnn::Owner<cudnn::RawActivation> relu_descriptor_;
};

// relu's backward behind fc1, in place, and log_softmax: one call each of the older interface, which has nothing to
// choose. log_softmax stays in float32.
class Activations {
 public:
  Activations(const Libraries& libraries, std::int64_t batch);
  void relu_backward(void* dh, const void* h);                           // (batch, kHidden)
  void log_softmax_forward(float* log_p, const float* x);                // (batch, kClasses)
  void log_softmax_backward(float* dx_from_dlog_p, const float* log_p);  // in place

 private:
  const Libraries& libraries_;
  cudnn::Owner<cudnn::RawTensor> h_, classes_;
  cudnn::Owner<cudnn::RawActivation> relu_;
};

// The engine itself, for tests.
std::unique_ptr<Engine> create_refusing(const EngineInfo& info, const EngineOptions& options, Refusal refuse);

}  // namespace mnist::cudnn_layers
