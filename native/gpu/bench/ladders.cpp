// The libraries' rows: cuBLAS, cuBLASLt and cuDNN, most through the layers of engine `cudnn`, and the row over cuFFT.
#include "bench/ladders.h"

#include <array>
#include <cmath>
#include <memory>
#include <optional>

#include "cuda/architectures.h"
#include "cuda/capability.h"
#include "cuda/check.h"
#include "kernels/conv2d/fft.h"
#include "kernels/cudnn_helpers.h"
#include "kernels/peers/cutlass.h"
#include "kernels/relu/relu.h"
#include "libraries/cudnn_layers.h"

namespace mnist::bench {
namespace {

using namespace cudnn_layers;
using kernels::Unit;

// Libraries sum in an order of their own, and by Winograd's formulas where they like; tf32 rounds factors to 11 bits.
constexpr double kSumError = 1e-5, kTf32Error = 1e-3;

using Sizes = std::array<std::int64_t, 4>;

// What a row made for the sizes of its last call.
template <class Made>
class Latest {
 public:
  template <class... Args>
  Made& get(const Sizes& sizes, Args&&... args) {
    if (!made_ || sizes_ != sizes) {
      made_.reset();
      made_.emplace(std::forward<Args>(args)...);
      sizes_ = sizes;
    }
    return *made_;
  }

 private:
  Sizes sizes_{};
  std::optional<Made> made_;
};

// A row of cuDNN or cuBLASLt.
struct LibraryRow {
  const char *name, *why;
  double own_error = 0;
  bool channels_last = false;
  Precision precision = Precision::kFp32;
};
constexpr LibraryRow kMatmuls[] = {
    {"cublasLt", "cuBLASLt as engine cudnn calls it, biases in the epilogues", kSumError},
    {"cublasLt_tf32", "the same on the tensor cores", kTf32Error, false, Precision::kTf32},
};
constexpr LibraryRow kConvolutions[] = {
    {"cudnn", "cuDNN's first choice for PyTorch's order of the arrays", kSumError},
    {"cudnn_channels_last", "as engine cudnn calls it: channels last", kSumError, true},
    {"cudnn_tf32", "the same on the tensor cores", kTf32Error, true, Precision::kTf32},
};

// What `Layer`, mostly one of engine `cudnn`, needs to run: the libraries in one precision, with a workspace.
template <class Layer>
class LayerOwner {
 public:
  explicit LayerOwner(const LibraryRow& row)
      : libraries_{.channels_last = row.channels_last, .policy = Policy(row.precision)} {}

  // The layer for `sizes`, the batch first, made of `args`; its work will be queued on `stream`.
  template <class... Args>
  Layer& get(cudaStream_t stream, const Sizes& sizes, Args&&... args) {
    if constexpr (std::is_same_v<Layer, Linear>) {
      if (!libraries_.blas) libraries_.blas = cublas::create_context();
      if (ones_.reserve(sizes[0])) cuda::upload(ones_.data(), std::vector<float>(sizes[0], 1.0f), stream);
      libraries_.ones = ones_.data();
    } else {
      need_dnn(stream);
    }
    libraries_.stream = stream;
    workspace_.reserve(workspace_limit(sizes[0]));
    libraries_.workspace = workspace_.data();
    return layer_.get(sizes, libraries_, std::forward<Args>(args)...);
  }
  // cuDNN for a layer that has it, or for one that may fall back to it.
  void need_dnn(cudaStream_t stream) {
    if (!libraries_.dnn)
      libraries_.dnn = cudnn::create_context(stream);
    else if (libraries_.stream != stream)
      MNIST_CUDNN(SetStream(libraries_.dnn.get(), stream));
  }
  cudnn::RawContext dnn() const { return libraries_.dnn.get(); }

 private:
  Libraries libraries_;
  cuda::DeviceBuffer<std::uint8_t> workspace_;
  cuda::DeviceBuffer<float> ones_;
  Latest<Layer> layer_;
};

// conv2d with the bias that engine `cudnn` leaves out. The layer knows engines that were measured for conv2 with
// channels last, by that name.
struct BiasedConv2d {
  BiasedConv2d(const Libraries& libraries, std::int64_t batch, int in, int out, int side)
      : layer(libraries, libraries.channels_last ? "conv2" : "conv2d", batch, in, out, side),
        y(cudnn::tensor4d(cudnn::kFloat, batch, out, side, side,
                          libraries.channels_last ? cudnn::kChannelsLast : cudnn::kChannelsFirst)),
        bias(cudnn::tensor4d(cudnn::kFloat, 1, out, 1, 1)) {}
  Conv2d layer;
  cudnn::Owner<cudnn::RawTensor> y, bias;
};

// Pooling and what its forward leaves for the backward.
struct PooledMaxPool2dRelu {
  PooledMaxPool2dRelu(const Libraries& libraries, std::int64_t batch, int channels, int side)
      : layer(libraries, "pool", batch, channels, side),
        y(batch * channels * side * side / 4),
        index(batch * channels * side * side / 4) {}
  MaxPool2dRelu layer;
  cuda::DeviceBuffer<float> y;
  cuda::DeviceBuffer<std::uint8_t> index;
  bool ran = false;
};

// A whole layer, call by call. Batch norm would take conv2d's bias out again, so no call adds it.
struct ConvBnReluPool {
  ConvBnReluPool(const Libraries& libraries, std::int64_t batch, int in, int out, int side)
      : conv(libraries, in == 1 ? "conv1" : "conv2", batch, in, out, side),
        bn(libraries, "bn", batch, out, side),
        pool(libraries, "pool", batch, out, side),
        y(batch * out * side * side) {}
  void forward(float* a, std::uint8_t* route, float* z, float* statistics, const float* x, const float* w,
               const float* gamma, const float* beta, std::int64_t, int out, int) {
    conv.forward(z, x, w);
    bn.forward(y.data(), statistics, statistics + out, z, gamma, beta);
    pool.forward(a, route, y.data());
  }
  Conv2d conv;
  BatchNorm bn;
  MaxPool2dRelu pool;
  cuda::DeviceBuffer<float> y;
};

// What a whole layer's graphs share, and the last one. Only conv2d has products that tensor cores would change.
struct LayerGraphs {
  LayerGraphs(const Libraries& with, std::int64_t batch, int in, int out, int side)
      : libraries(with),
        x{cudnn::kFloat, batch, in, side, side},
        z{cudnn::kFloat, batch, out, side, side},
        rules{.tensor_cores = true, .workspace_bytes = workspace_limit(batch)},
        pool(required(cudnn::max_pool2d_forward_plan(with.dnn.get(), z, rules), "max pool")),
        y(batch * out * side * side) {}
  static cudnn::Plan required(cudnn::Plan plan, const char* graph) {
    if (!plan) throw UnavailableError(std::string("cuDNN has no ") + graph + ": " + plan.text());
    return plan;
  }
  void run(const cudnn::Plan& plan, std::initializer_list<const void*> pointers) const {
    plan.run(libraries.dnn.get(), pointers, libraries.workspace);
  }
  const Libraries& libraries;
  cudnn::Shape x, z;
  cudnn::Rules rules;
  cudnn::Plan pool;
  cuda::DeviceBuffer<float> y;
};

// Batch norm and relu in one graph. No graph with a convolution of float32 products has statistics in it.
struct NormReluGraphs : LayerGraphs {
  NormReluGraphs(const Libraries& with, std::int64_t batch, int in, int out, int side)
      : LayerGraphs(with, batch, in, out, side),
        conv(with, in == 1 ? "conv1" : "conv2", batch, in, out, side),
        norm_relu(required(cudnn::batch_norm_relu_forward_plan(with.dnn.get(), z, rules), "batch norm with relu")) {}
  void forward(float* a, std::uint8_t* route, float* z, float* statistics, const float* x, const float* w,
               const float* gamma, const float* beta, std::int64_t, int out, int) {
    constexpr float kEpsilon = float(kBatchNormEpsilon);
    conv.forward(z, x, w);
    run(norm_relu, {z, gamma, beta, statistics, statistics + out, &kEpsilon, y.data()});
    run(pool, {y.data(), a, route});
  }
  Conv2d conv;
  cudnn::Plan norm_relu;
};

// The convolution sums what batch norm needs, as in conv_statistics, but squares around 0; then finalize and apply.
struct SumsGraphs : LayerGraphs {
  SumsGraphs(const Libraries& with, std::int64_t batch, int in, int out, int side)
      : LayerGraphs(with, batch, in, out, side),
        sums(required(cudnn::conv2d_sums_plan(with.dnn.get(), x, {cudnn::kFloat, out, in, 3, 3}, z, rules),
                      "conv2d with sums")),
        finalize(required(cudnn::batch_norm_finalize_plan(with.dnn.get(), z, rules), "batch norm finalize")),
        apply(required(cudnn::scale_relu_plan(with.dnn.get(), z, rules), "scale with relu")),
        by_channel(8 * out) {
    cuda::fill_bytes(by_channel.data(), 0, by_channel.size(), with.stream);
  }
  void forward(float* a, std::uint8_t* route, float* z, float* statistics, const float* x, const float* w,
               const float* gamma, const float* beta, std::int64_t batch, int out, int side) {
    constexpr float kEpsilon = float(kBatchNormEpsilon), kMomentum = 0.1f;  // cuDNN insists on running statistics
    const std::int64_t count = batch * side * side;
    const auto channels = [&](int k) { return by_channel.data() + k * out; };
    run(sums, {x, w, z, channels(0), channels(1)});
    run(finalize, {channels(0), channels(1), gamma, beta, channels(2), channels(3), channels(4), channels(5),
                   statistics, statistics + out, channels(6), channels(7), &count, &kEpsilon, &kMomentum});
    run(apply, {z, channels(6), channels(7), y.data()});
    run(pool, {y.data(), a, route});
  }
  cudnn::Plan sums, finalize, apply;
  cuda::DeviceBuffer<float> by_channel;
};

// Any number of classes, where the engine's layer has the network's.
struct LogSoftmax {
  LogSoftmax(const Libraries&, std::int64_t batch, int classes)
      : scores(cudnn::tensor4d(cudnn::kFloat, batch, classes, 1, 1)) {}
  cudnn::Owner<cudnn::RawTensor> scores;
};

// y^T (out,batch) = bias ones^T, then + w x^T: to a column-major library every array is its transpose.
class Sgemm {
 public:
  void forward(float* y, float*, const float* x, const float* w, const float* bias, std::int64_t batch, int in, int out,
               cudaStream_t stream) {
    if (ones_.reserve(batch)) cuda::upload(ones_.data(), std::vector<float>(batch, 1.0f), stream);
    const bool created = !context_;
    if (created) MNIST_SGEMM(Create(context_.put()));
    if (created || stream_ != stream) {
      workspace_.reserve(32 << 20);
      MNIST_SGEMM(SetStream(context_.get(), stream));
      MNIST_SGEMM(SetWorkspace(context_.get(), workspace_.data(), workspace_.bytes()));
      stream_ = stream;
    }
    constexpr float kOne = 1, kZero = 0;
    MNIST_SGEMM(Sgemm(context_.get(), cublas::kNoTranspose, cublas::kNoTranspose, out, int(batch), 1, &kOne, bias, out,
                      ones_.data(), 1, &kZero, y, out));
    MNIST_SGEMM(Sgemm(context_.get(), cublas::kTranspose, cublas::kNoTranspose, out, int(batch), in, &kOne, w, in, x,
                      in, &kOne, y, out));
  }

 private:
  cuda::DeviceBuffer<std::uint8_t> workspace_;
  cuda::DeviceBuffer<float> ones_;
  cublas::SgemmContext context_;
  cudaStream_t stream_ = nullptr;
};

// Empty, or what `load` has to say of a library that is missing.
template <class Api>
std::string missing(const Api& (*load)()) {
  try {
    load();
    return {};
  } catch (const UnavailableError& error) {
    return error.what();
  }
}

int side_of(int area) {
  const int side = int(std::lround(std::sqrt(area)));
  MNIST_REQUIRE(side * side == area, "batch_norm by cuDNN: area of a plane is " << area << ", expected a square");
  return side;
}

int selected_device() {
  int device = 0;
  MNIST_CHECK(cudaGetDevice(&device));
  return device;
}

// Appends `row`; `run` gets the LayerOwner and then the op's arguments.
template <class Layer, class Function, class Run>
void add(Ladder<Function>& ladder, const LibraryRow& row, const std::string& absent, Run run) {
  const bool tf32 = row.precision == Precision::kTf32;
  Rung<Function> rung{{row.name, {}, row.why, row.own_error, tf32 ? Unit::kTensorTf32 : Unit::kFma}};
  rung.run = [owner = std::make_shared<LayerOwner<Layer>>(row), run](auto... args) { run(*owner, args...); };
  rung.library = true;
  rung.channels_last = row.channels_last;
  rung.absent = absent.empty() && tf32 ? cuda::gpu_lacks(cuda::kTensorCapability, selected_device()) : absent;
  ladder.push_back(std::move(rung));
}

Ladder<kernels::ConvBnReluPoolForward> with_libraries(Ladder<kernels::ConvBnReluPoolForward> ladder) {
  constexpr auto kRun = [](auto& owner, float* a, std::uint8_t* route, float* z, float* statistics, float*,
                           const float* x, const float* w, const float*, const float* gamma, const float* beta,
                           std::int64_t batch, int in, int out, int side, cudaStream_t stream) {
    owner.get(stream, {batch, in, out, side}, batch, in, out, side)
        .forward(a, route, z, statistics, x, w, gamma, beta, batch, out, side);
  };
  constexpr LibraryRow kCalls[] = {
      {"cudnn", "as engine cudnn, a call each: conv2d, batch norm, pooling that keeps the places, relu of a quarter",
       kSumError, true},
      {"cudnn_tf32", "the same, conv2d on the tensor cores", kTf32Error, true, Precision::kTf32},
  };
  for (const auto& row : kCalls) add<ConvBnReluPool>(ladder, row, missing(cudnn::api), kRun);
  constexpr LibraryRow kNormRelu{"cudnn_fused", "cuDNN's graphs: conv2d; batch norm and relu; pooling", kSumError,
                                 true};
  add<NormReluGraphs>(ladder, kNormRelu, missing(cudnn::api), kRun);
  constexpr LibraryRow kSums{"cudnn_fused_tf32",
                             "cuDNN's graphs: conv2d that sums z and its squares; finalize; scale and relu; pooling",
                             kTf32Error, true, Precision::kTf32};
  add<SumsGraphs>(ladder, kSums, missing(cudnn::api), kRun);
  return ladder;
}

}  // namespace

std::string absent_below(int capability) { return capability ? cuda::code_lacks(capability, selected_device()) : ""; }

Ladder<kernels::LinearForward> linear_forward_ladder() {
  auto ladder = own_rungs(kernels::linear_forward_variants());
  Rung<kernels::LinearForward> cutlass{
      {"cutlass", kernels::linear_forward_cutlass,
       "register_tiled from CUTLASS's templates, bias in the epilogue: 1.5x prefetched's time at B=256 on an H200"}};
  cutlass.absent = kernels::cutlass_absent();
  cutlass.optional = true;
  ladder.push_back(std::move(cutlass));
  Rung<kernels::LinearForward> sgemm{
      {"cublas", [sgemm = std::make_shared<Sgemm>()](auto... args) { sgemm->forward(args...); },
       "cublasSgemm on top of the bias, which a first call puts in every row", kSumError}};
  sgemm.library = true;
  sgemm.absent = missing(cublas::sgemm_api);
  ladder.push_back(std::move(sgemm));
  for (const auto& row : kMatmuls)
    add<Linear>(ladder, row, missing(cublas::api),
                [](auto& owner, float* y, float*, const float* x, const float* w, const float* bias, std::int64_t batch,
                   int in, int out, cudaStream_t stream) {
                  owner.get(stream, {batch, in, out}, "linear", batch, in, out, false).forward(y, x, w, bias);
                });
  return ladder;
}

Ladder<kernels::LinearForward> linear_relu_forward_ladder() {
  Ladder<kernels::LinearForward> ladder;
  ladder.push_back({{"two_launches",
                     [scores = std::make_shared<cuda::DeviceBuffer<float>>(),
                      pass = std::make_shared<cuda::DeviceBuffer<std::uint8_t>>()](
                         float* y, float* partial, const float* x, const float* w, const float* bias,
                         std::int64_t batch, int in, int out, cudaStream_t stream) {
                       scores->reserve(batch * out);
                       pass->reserve(batch * out);
                       kernels::linear_forward_prefetched(scores->data(), partial, x, w, bias, batch, in, out, stream);
                       kernels::relu_forward_float4(y, pass->data(), scores->data(), batch * out, stream);
                     },
                     "linear's prefetched, then relu's float4: what lies between is written and read again"}});
  const std::string no_blas = missing(cublas::api), absent = no_blas.empty() ? missing(cudnn::api) : no_blas;
  for (const auto& row : kMatmuls)
    add<Linear>(ladder, row, absent,
                [](auto& owner, float* y, float*, const float* x, const float* w, const float* bias, std::int64_t batch,
                   int in, int out, cudaStream_t stream) {
                  owner.need_dnn(stream);  // where cuBLASLt has no epilogue with relu
                  owner.get(stream, {batch, in, out}, "linear", batch, in, out, true).forward(y, x, w, bias);
                });
  return ladder;
}

Ladder<kernels::LinearBackward> linear_backward_ladder() {
  auto ladder = own_rungs(kernels::linear_backward_variants());
  for (const auto& row : kMatmuls)
    add<Linear>(ladder, row, missing(cublas::api),
                [](auto& owner, float* dx, float* dw, float* dbias, float*, const float* dy, const float* x,
                   const float* w, std::int64_t batch, int in, int out, cudaStream_t stream) {
                  Linear& layer = owner.get(stream, {batch, in, out}, "linear", batch, in, out, false);
                  layer.backward_data(dx, dy, w);
                  layer.backward_weight(dw, dbias, dy, x);
                });
  return ladder;
}

Ladder<kernels::Conv2dForward> conv2d_forward_ladder() {
  auto ladder = own_rungs(kernels::conv2d_forward_variants());
  Rung<kernels::Conv2dForward> fft{
      {"fft",
       [fft = std::make_shared<Latest<kernels::Conv2dFft>>()](float* y, const float* x, const float* w,
                                                              const float* bias, std::int64_t batch, int in, int out,
                                                              int side, cudaStream_t stream) {
         fft->get({batch, in, out, side}, batch, in, out, side).forward(y, x, w, bias, stream);
       },
       "a product of spectra, by cuFFT; too long a way for 3x3: 1.7x cuDNN's time at B=256 on an H200", 1e-5}};
  fft.absent = missing(cufft::api);
  ladder.push_back(std::move(fft));
  for (const auto& row : kConvolutions)
    add<BiasedConv2d>(ladder, row, missing(cudnn::api),
                      [](auto& owner, float* y, const float* x, const float* w, const float* bias, std::int64_t batch,
                         int in, int out, int side, cudaStream_t stream) {
                        auto& conv2d = owner.get(stream, {batch, in, out, side}, batch, in, out, side);
                        conv2d.layer.forward(y, x, w);
                        constexpr float kOne = 1;
                        MNIST_CUDNN(AddTensor(owner.dnn(), &kOne, conv2d.bias.get(), bias, &kOne, conv2d.y.get(), y));
                      });
  return ladder;
}

Ladder<kernels::Conv2dBackwardData> conv2d_backward_data_ladder() {
  auto ladder = own_rungs(kernels::conv2d_backward_data_variants());
  for (const auto& row : kConvolutions)
    add<BiasedConv2d>(ladder, row, missing(cudnn::api),
                      [](auto& owner, float* dx, const float* dy, const float* w, std::int64_t batch, int in, int out,
                         int side, cudaStream_t stream) {
                        owner.get(stream, {batch, in, out, side}, batch, in, out, side).layer.backward_data(dx, dy, w);
                      });
  return ladder;
}

Ladder<kernels::Conv2dBackwardWeight> conv2d_backward_weight_ladder() {
  auto ladder = own_rungs(kernels::conv2d_backward_weight_variants());
  for (const auto& row : kConvolutions)
    add<BiasedConv2d>(
        ladder, row, missing(cudnn::api),
        [](auto& owner, float* dw, float*, const float* dy, const float* x, std::int64_t batch, int in, int out,
           int side, cudaStream_t stream) {
          owner.get(stream, {batch, in, out, side}, batch, in, out, side).layer.backward_weight(dw, dy, x);
        });
  return ladder;
}

Ladder<kernels::ReluMaxPool2dForward> relu_max_pool2d_forward_ladder(int channels) {
  auto ladder = own_rungs(kernels::relu_max_pool2d_forward_variants());
  constexpr LibraryRow kRow{"cudnn", "as engine cudnn: pooling that keeps the places, then relu of a quarter", 0, true};
  add<MaxPool2dRelu>(ladder, kRow, missing(cudnn::api),
                     [channels](auto& owner, float* y, std::uint8_t* route, const float* x, std::int64_t planes,
                                int side, cudaStream_t stream) {
                       const std::int64_t batch = planes / channels;
                       owner.get(stream, {batch, side}, "pool", batch, channels, 2 * side).forward(y, route, x);
                     });
  return ladder;
}

Ladder<kernels::ReluMaxPool2dBackward> relu_max_pool2d_backward_ladder(int channels, const float* x) {
  auto ladder = own_rungs(kernels::relu_max_pool2d_backward_variants());
  constexpr LibraryRow kRow{"cudnn", "as engine cudnn: relu of a quarter, then pooling by the places", 0, true};
  add<PooledMaxPool2dRelu>(ladder, kRow, missing(cudnn::api),
                           [channels, x](auto& owner, float* dx, const float* dy, const std::uint8_t*,
                                         std::int64_t planes, int side, cudaStream_t stream) {
                             const std::int64_t batch = planes / channels;
                             auto& pool = owner.get(stream, {batch, side}, batch, channels, 2 * side);
                             if (!pool.ran) pool.layer.forward(pool.y.data(), pool.index.data(), x);
                             pool.ran = true;
                             // relu's backward works in place, where a second time changes nothing
                             pool.layer.backward(dx, const_cast<float*>(dy), pool.y.data(), pool.index.data(), x);
                           });
  return ladder;
}

Ladder<kernels::BatchNormForward> batch_norm_forward_ladder() {
  auto ladder = own_rungs(kernels::batch_norm_forward_variants());
  constexpr LibraryRow kRow{"cudnn", "as engine cudnn: channels last, compiled for the shape where cuDNN can",
                            kSumError, true};
  add<BatchNorm>(ladder, kRow, missing(cudnn::api),
                 [](auto& owner, float* y, float* statistics, float*, const float* x, const float* gamma,
                    const float* beta, std::int64_t batch, int channels, int area, cudaStream_t stream) {
                   owner.get(stream, {batch, channels, area}, "bn", batch, channels, side_of(area))
                       .forward(y, statistics, statistics + channels, x, gamma, beta);
                 });
  return ladder;
}

Ladder<kernels::BatchNormBackward> batch_norm_backward_ladder() {
  auto ladder = own_rungs(kernels::batch_norm_backward_variants());
  constexpr LibraryRow kRow{"cudnn", "as engine cudnn: channels last, compiled for the shape where cuDNN can",
                            kSumError, true};
  add<BatchNorm>(ladder, kRow, missing(cudnn::api),
                 [](auto& owner, float* dx, float* dgamma, float* dbeta, float*, const float* dy, const float* x,
                    const float* gamma, const float* mean, const float*, const float* inverse, std::int64_t batch,
                    int channels, int area, cudaStream_t stream) {
                   owner.get(stream, {batch, channels, area}, "bn", batch, channels, side_of(area))
                       .backward(dx, dgamma, dbeta, dy, x, gamma, mean, inverse);
                 });
  return ladder;
}

Ladder<kernels::ConvBnReluPoolForward> conv_bn_relu_pool_forward_ladder() {
  return with_libraries(own_rungs(kernels::conv_bn_relu_pool_forward_variants()));
}

Ladder<kernels::ConvBnReluPoolForward> conv_bn_relu_pool_layer1_forward_ladder() {
  return with_libraries(own_rungs(kernels::conv_bn_relu_pool_layer1_forward_variants()));
}

Ladder<kernels::LogSoftmaxForward> log_softmax_forward_ladder() {
  auto ladder = own_rungs(kernels::log_softmax_forward_variants());
  add<LogSoftmax>(ladder, {"cudnn", "one call", 1e-6}, missing(cudnn::api),
                  [](auto& owner, float* log_p, const float* x, std::int64_t batch, int classes, cudaStream_t stream) {
                    const auto scores = owner.get(stream, {batch, classes}, batch, classes).scores.get();
                    constexpr float kOne = 1, kZero = 0;
                    MNIST_CUDNN(SoftmaxForward(owner.dnn(), cudnn::kLogSoftmax, cudnn::kPerInstance, &kOne, scores, x,
                                               &kZero, scores, log_p));
                  });
  return ladder;
}

Ladder<kernels::LogSoftmaxNllBackward> log_softmax_nll_backward_ladder() {
  auto ladder = own_rungs(kernels::log_softmax_nll_backward_variants());
  add<LogSoftmax>(ladder, {"cudnn", "one call, behind a kernel of ours for nll_loss, which it lacks", 1e-6},
                  missing(cudnn::api),
                  [](auto& owner, float* dx, const float* log_p, const std::uint8_t* labels, double upstream,
                     std::int64_t batch, int classes, cudaStream_t stream) {
                    const auto scores = owner.get(stream, {batch, classes}, batch, classes).scores.get();
                    kernels::nll_loss_backward(dx, labels, float(upstream), batch, classes, stream);
                    constexpr float kOne = 1, kZero = 0;
                    MNIST_CUDNN(SoftmaxBackward(owner.dnn(), cudnn::kLogSoftmax, cudnn::kPerInstance, &kOne, scores,
                                                log_p, scores, dx, &kZero, scores, dx));
                  });
  return ladder;
}

Ladder<kernels::Histogram> histogram_ladder() {
  auto ladder = own_rungs(kernels::histogram_variants());
  // Not in the table, because the emulator has no clusters.
  Rung<kernels::Histogram> cluster{{"cluster", MNIST_IF_SM90(kernels::histogram_cluster),
                                    "privatised, and eight blocks add up their counters through distributed shared "
                                    "memory: 1.1x privatised's time at B=256 on an H200",
                                    0, Unit::kFma, cuda::kClusterCapability}};
  cluster.absent = absent_below(cluster.needs);
  ladder.push_back(std::move(cluster));
  return ladder;
}

}  // namespace mnist::bench
