// Engine `cudnn`: the network as a sequence of cuDNN and cuBLAS calls, the yardstick of every hand-written kernel.
//
// libraries/cudnn_layers.h says which call serves which op; the ops that no library has are in kernels/cudnn_helpers.h.
// The biases of the convolutions are carried, not computed with: batch norm subtracts the batch's mean, so they change
// nothing in training and their gradients are exactly 0; population statistics contain them, and evaluation takes them
// out again.
#include <map>
#include <memory>

#include "cuda/architectures.h"
#include "cuda/capability.h"
#include "engines/cuda_engine.h"
#include "kernels/cudnn_helpers.h"
#include "libraries/cuda_libs.h"
#include "libraries/cudnn_layers.h"

namespace mnist {
namespace {

using namespace cudnn_layers;
using Floats = cuda::DeviceBuffer<float>;
using Bytes = cuda::DeviceBuffer<std::uint8_t>;

// One of the two blocks conv2d -> batch_norm -> max_pool2d -> relu: what it is, and what a step leaves in it. z before
// batch norm, y after it, a after pooling and relu; mean and inverse deviation of z in the batch.
struct Block {
  const char *forward_name, *backward_name, *number;
  ParameterIndex weight, bias, gamma, beta;
  StatisticIndex mean_index, var_index;
  int in, out, side;
  float *mean, *inverse;
  Bytes z = {}, y = {}, a = {}, da = {}, index = {};

  std::int64_t values(std::int64_t batch) const { return batch * out * side * side; }

  void reserve(std::int64_t batch, std::int64_t element_bytes) {
    for (auto* buffer : {&z, &y}) buffer->reserve(values(batch) * element_bytes);
    for (auto* buffer : {&a, &da}) buffer->reserve(values(batch) / 4 * element_bytes);
    index.reserve(values(batch) / 4);
  }
};

// The layers of one block and of the whole network, for one batch size.
struct BlockLayers {
  BlockLayers(const Libraries& libraries, const Block& block, std::int64_t batch)
      : conv2d(libraries, std::string("conv") + block.number, batch, block.in, block.out, block.side),
        batch_norm(libraries, std::string("bn") + block.number, batch, block.out, block.side),
        max_pool2d(libraries, std::string("pool") + block.number, batch, block.out, block.side) {}
  Conv2d conv2d;
  BatchNorm batch_norm;
  MaxPool2dRelu max_pool2d;
};
struct Layers {
  Layers(const Libraries& libraries, const Block& first, const Block& second, std::int64_t batch)
      : block1(libraries, first, batch),
        block2(libraries, second, batch),
        fc1(libraries, "fc1", batch, kFeatures, kHidden, true),
        fc2(libraries, "fc2", batch, kHidden, kClasses, false),
        activations(libraries, batch) {}
  BlockLayers block1, block2;
  Linear fc1, fc2;
  Activations activations;
};

// `rows` x `columns` values become `columns` x `rows`, for each of `count` matrices that follow one another.
template <class T>
void transpose_each(T* values, std::int64_t count, std::int64_t rows, std::int64_t columns) {
  std::vector<T> matrix(rows * columns);
  for (std::int64_t k = 0; k < count; ++k, values += rows * columns) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) matrix[c * rows + r] = values[r * columns + c];
    std::ranges::copy(matrix, values);
  }
}

class CudnnEngine final : public CudaEngine<float> {
 public:
  CudnnEngine(const EngineInfo& info, const EngineOptions& options, Refusal refuse = {})
      : CudaEngine<float>(info, options) {
    libraries_.refuse = std::move(refuse);
    libraries_.blas = cublas::create_context();
    libraries_.stream = stream();
    take_context(libraries_, options.device);
  }
  ~CudnnEngine() override { leave_context(libraries_, options().device); }

  std::vector<std::string> algorithms() const override {
    std::vector<std::string> lines;
    for (const auto& [batch, layers] : layers_) {
      std::vector<std::string> ops;
      for (const auto* block : {&layers.block1, &layers.block2}) {
        block->conv2d.describe(ops);
        block->batch_norm.describe(ops);
        block->max_pool2d.describe(ops);
      }
      for (const auto* linear : {&layers.fc1, &layers.fc2}) linear->describe(ops);
      for (const auto& op : ops) lines.push_back("batch " + std::to_string(batch) + ": " + op);
    }
    return lines;
  }

 private:
  const Policy& policy() const { return libraries_.policy; }
  int element() const { return int(policy().element_bytes()); }

  // What multiplies in convolutions and linear layers.
  kernels::Unit unit() const {
    if (!policy().tensor_cores) return kernels::Unit::kFma;
    return policy().bf16() ? kernels::Unit::kTensorBf16 : kernels::Unit::kTensorTf32;
  }

  void reserve(std::int64_t batch) override {
    const auto bytes = policy().element_bytes();
    x_.reserve(batch * kImagePixels * bytes);
    block1_.reserve(batch, bytes);
    block2_.reserve(batch, bytes);
    for (auto* buffer : {&dy_, &dz_}) buffer->reserve(block1_.values(batch) * bytes);  // the larger block's
    for (auto* buffer : {&h_, &dh_}) buffer->reserve(batch * kHidden * bytes);
    dlogits_.reserve(batch * kClasses);
    if (policy().bf16()) dlogits_bf16_.reserve(batch * kClasses);
    workspace_.reserve(workspace_limit(batch));
    libraries_.workspace = workspace_.data();
    reserve_ones(batch);
  }

  void reserve_ones(std::int64_t batch) {
    const std::vector<float> ones(batch, 1.0f);
    Floats wide(batch);
    cuda::upload(wide.data(), ones, stream());
    ones_.reserve(batch * policy().element_bytes());
    if (policy().bf16())
      kernels::convert(reinterpret_cast<__nv_bfloat16*>(ones_.data()), wide.data(), batch, stream());
    else
      cuda::copy(reinterpret_cast<float*>(ones_.data()), wide.data(), batch, stream());
    libraries_.ones = ones_.data();
  }

  Layers& layers(std::int64_t batch) {
    return layers_.try_emplace(batch, libraries_, block1_, block2_, batch).first->second;
  }

  // What kernels read of a parameter: float32 or its bfloat16 copy.
  const void* weight(ParameterIndex index) const {
    if (policy().bf16()) return weights_bf16_.data() + kParameters[index].offset;
    return parameter(index);
  }

  void forward(const Batch& batch, const float* statistics) override {
    Layers& layer = layers(batch.size);
    normalize(batch);
    forward_block(block1_, layer.block1, x_.data(), batch.size, statistics);
    forward_block(block2_, layer.block2, block1_.a.data(), batch.size, statistics);
    {
      MNIST_PHASE("fc1 forward");
      timer().op("linear, relu", kernels::linear_cost(batch.size, kFeatures, kHidden, element()), unit());
      layer.fc1.forward(h_.data(), block2_.a.data(), weight(kFc1Weight), weight(kFc1Bias));
    }
    MNIST_PHASE("fc2 forward");
    timer().op("linear", kernels::linear_cost(batch.size, kHidden, kClasses, element()), unit());
    layer.fc2.forward(logits(), h_.data(), weight(kFc2Weight), parameter(kFc2Bias));
    // The compiled pooling takes a NaN for the smallest value and relu makes it 0. Batch norm spreads a NaN, or an
    // overflow, over its channel and into what it saves: from there it reaches the loss.
    timer().op("log_softmax", kernels::log_softmax_forward_cost(batch.size * kClasses));
    if (!statistics)
      kernels::propagate_nan(logits(), saved_.data(), batch.size * kClasses, int(saved_.size()), stream());
    layer.activations.log_softmax_forward(log_p(), logits());
  }

  void normalize(const Batch& batch) {
    MNIST_PHASE("normalize");
    const auto count = batch.size * kImagePixels;
    timer().op("normalize", kernels::normalize_cost(count, element()));
    if (policy().bf16())
      kernels::normalize_forward(reinterpret_cast<__nv_bfloat16*>(x_.data()), batch.images, count, stream());
    else
      kernels::normalize_forward(reinterpret_cast<float*>(x_.data()), batch.images, count, stream());
  }

  void forward_block(Block& block, BlockLayers& layer, const void* x, std::int64_t batch, const float* statistics) {
    MNIST_PHASE(block.forward_name);
    const auto values = block.values(batch);
    timer().op("conv2d", kernels::conv2d_cost(batch, block.in, block.out, block.side, element()), unit());
    layer.conv2d.forward(block.z.data(), x, weight(block.weight));
    timer().op("batch_norm", kernels::batch_norm_statistics_cost(values, element()) +
                                 kernels::batch_norm_forward_cost(values, element()));
    if (statistics)
      layer.batch_norm.forward_population(block.y.data(), block.z.data(), parameter(block.gamma), parameter(block.beta),
                                          statistics + kStatistics[block.mean_index].offset,
                                          statistics + kStatistics[block.var_index].offset, parameter(block.bias),
                                          block.mean);
    else
      layer.batch_norm.forward(block.y.data(), block.mean, block.inverse, block.z.data(), parameter(block.gamma),
                               parameter(block.beta));
    timer().op("max_pool2d, relu", kernels::relu_max_pool2d_forward_cost(values / 4, element()));
    layer.max_pool2d.forward(block.a.data(), statistics ? nullptr : block.index.data(), block.y.data());
  }

  void backward(const Batch& batch) override {
    Layers& layer = layers(batch.size);
    {
      MNIST_PHASE("fc2 backward");
      timer().op("log_softmax_nll", kernels::log_softmax_nll_backward_cost(batch.size * kClasses));
      kernels::nll_loss_backward(dlogits_.data(), batch.labels, float(batch.upstream), batch.size, kClasses, stream());
      layer.activations.log_softmax_backward(dlogits_.data(), log_p());
      timer().op("linear", kernels::linear_backward_cost(batch.size, kHidden, kClasses, element()), unit());
      const void* dlogits = dlogits_.data();
      if (policy().bf16()) {
        kernels::convert(dlogits_bf16_.data(), dlogits_.data(), batch.size * kClasses, stream());
        dlogits = dlogits_bf16_.data();
      }
      layer.fc2.backward_weight(gradient(kFc2Weight), gradient(kFc2Bias), dlogits, h_.data());
      layer.fc2.backward_data(dh_.data(), dlogits, weight(kFc2Weight));
    }
    {
      MNIST_PHASE("fc1 backward");
      timer().op("relu", kernels::relu_cost(batch.size * kHidden, element()));
      layer.activations.relu_backward(dh_.data(), h_.data());
      timer().op("linear", kernels::linear_backward_cost(batch.size, kFeatures, kHidden, element()), unit());
      layer.fc1.backward_weight(gradient(kFc1Weight), gradient(kFc1Bias), dh_.data(), block2_.a.data());
      layer.fc1.backward_data(block2_.da.data(), dh_.data(), weight(kFc1Weight));
    }
    backward_block(block2_, layer.block2, block1_.da.data(), block1_.a.data(), batch.size);
    backward_block(block1_, layer.block1, nullptr, x_.data(), batch.size);
  }

  // The gradients of the block's parameters from block.da, and of its input into `dx` unless that is null.
  void backward_block(Block& block, BlockLayers& layer, void* dx, const void* x, std::int64_t batch) {
    MNIST_PHASE(block.backward_name);
    const auto values = block.values(batch);
    const auto conv2d = kernels::conv2d_cost(batch, block.in, block.out, block.side, element());
    timer().op("max_pool2d, relu", kernels::relu_max_pool2d_backward_cost(values / 4, element()));
    layer.max_pool2d.backward(dy_.data(), block.da.data(), block.a.data(), block.index.data(), block.y.data());
    timer().op("batch_norm", kernels::batch_norm_backward_cost(values, element()));
    layer.batch_norm.backward(dz_.data(), gradient(block.gamma), gradient(block.beta), dy_.data(), block.z.data(),
                              parameter(block.gamma), block.mean, block.inverse);
    timer().op("conv2d weight", conv2d, unit());
    if (policy().bf16()) {
      layer.conv2d.backward_weight(dw_bf16_.data(), dz_.data(), x);
      kernels::convert(gradient(block.weight), dw_bf16_.data(), kParameters[block.weight].size, stream());
    } else {
      layer.conv2d.backward_weight(gradient(block.weight), dz_.data(), x);
    }
    if (!dx) return;
    timer().op("conv2d data", conv2d, unit());
    layer.conv2d.backward_data(dx, dz_.data(), weight(block.weight));
  }

  void update(const float* learning_rate) override {
    if (!policy().bf16()) return CudaEngine<float>::update(learning_rate);
    kernels::sgd_update(parameter(kConv1Weight), weights_bf16_.data(), gradient(kConv1Weight), learning_rate,
                        kParameterCount, stream());
  }

  void parameters_changed() override {
    if (policy().bf16()) kernels::convert(weights_bf16_.data(), parameter(kConv1Weight), kParameterCount, stream());
  }

  // Filters and fc1's columns lie here as (tap, in) and (pixel, channel), in PyTorch as (in, tap) and (channel, pixel).
  void to_engine_order(std::span<float> slab) const override {
    transpose_each(slab.data() + kParameters[kConv2Weight].offset, kConv2Channels, kConv1Channels, kTaps);
    transpose_each(slab.data() + kParameters[kFc1Weight].offset, kHidden, kConv2Channels, kPool2Side * kPool2Side);
  }
  void to_torch_order(std::span<float> slab) const override {
    transpose_each(slab.data() + kParameters[kConv2Weight].offset, kConv2Channels, kTaps, kConv1Channels);
    transpose_each(slab.data() + kParameters[kFc1Weight].offset, kHidden, kPool2Side * kPool2Side, kConv2Channels);
  }

  void layer_statistics(int number, const Batch& batch, const float* statistics, float* mean, float* var) override {
    Layers& layer = layers(batch.size);
    normalize(batch);
    Block* block = &block1_;
    BlockLayers* block_layers = &layer.block1;
    const void* x = x_.data();
    if (number == 2) {
      forward_block(block1_, layer.block1, x, batch.size, statistics);
      block = &block2_;
      block_layers = &layer.block2;
      x = block1_.a.data();
    }
    block_layers->conv2d.forward(block->z.data(), x, weight(block->weight));
    block_layers->batch_norm.forward_once(block->y.data(), block->mean, block->inverse, block->z.data(),
                                          parameter(block->gamma), parameter(block->beta));
    kernels::batch_norm_statistics_from_saved(mean, var, parameter(block->bias), block->mean, block->inverse,
                                              kBatchNormEpsilon, block->out, stream());
  }

  void read_activations(std::int64_t batch, Probe& probe) override {
    read_block(batch, block1_, probe.a1, probe.routing.pool1);
    read_block(batch, block2_, probe.a2, probe.routing.pool2);
    probe.h = read_storage(h_, batch * kHidden);
    for (const double h : probe.h) probe.routing.relu3.push_back(h > 0);
  }

  // `a`, and the routing, which follows from y: the first maximum of each window, or none where it is not positive.
  void read_block(std::int64_t batch, const Block& block, std::vector<double>& a, std::vector<std::uint8_t>& route) {
    const int side = block.side, half = side / 2, channels = block.out;
    const auto y = read_storage(block.y, block.values(batch));
    a = read_storage(block.a, block.values(batch) / 4);
    transpose_each(a.data(), batch, half * half, channels);
    route.reserve(a.size());
    for (std::int64_t b = 0; b < batch; ++b)
      for (int c = 0; c < channels; ++c)
        for (int p = 0; p < half; ++p)
          for (int q = 0; q < half; ++q) {
            const auto at = [&](int where) {
              return y[((b * side + 2 * p + where / 2) * side + 2 * q + where % 2) * channels + c];
            };
            int best = 0;
            for (int where = 1; where < 4; ++where)
              if (at(where) > at(best)) best = where;
            route.push_back(at(best) > 0 ? std::uint8_t(best) : Routing::kDead);
          }
  }

  // `count` values of the storage type, widened; waits.
  std::vector<double> read_storage(const Bytes& from, std::int64_t count) {
    if (!policy().bf16()) return read(reinterpret_cast<const float*>(from.data()), count);
    Floats wide(count);
    kernels::convert(wide.data(), reinterpret_cast<const __nv_bfloat16*>(from.data()), count, stream());
    return read(wide.data(), count);
  }

  Bytes workspace_;
  Libraries libraries_{.policy = Policy(options().precision)};
  std::map<std::int64_t, Layers> layers_;                // by batch size
  Floats saved_{2 * (kConv1Channels + kConv2Channels)};  // mean and inverse of both blocks
  Block block1_{.forward_name = "layer 1 forward",
                .backward_name = "layer 1 backward",
                .number = "1",
                .weight = kConv1Weight,
                .bias = kConv1Bias,
                .gamma = kBn1Weight,
                .beta = kBn1Bias,
                .mean_index = kBn1Mean,
                .var_index = kBn1Var,
                .in = 1,
                .out = kConv1Channels,
                .side = kImageSide,
                .mean = saved_.data(),
                .inverse = saved_.data() + kConv1Channels};
  Block block2_{.forward_name = "layer 2 forward",
                .backward_name = "layer 2 backward",
                .number = "2",
                .weight = kConv2Weight,
                .bias = kConv2Bias,
                .gamma = kBn2Weight,
                .beta = kBn2Bias,
                .mean_index = kBn2Mean,
                .var_index = kBn2Var,
                .in = kConv1Channels,
                .out = kConv2Channels,
                .side = kPool1Side,
                .mean = saved_.data() + 2 * kConv1Channels,
                .inverse = saved_.data() + 2 * kConv1Channels + kConv2Channels};
  Bytes x_, h_, dh_, dy_, dz_, ones_;  // of the storage type; dy and dz serve both blocks in turn
  Floats dlogits_;
  cuda::DeviceBuffer<__nv_bfloat16> dlogits_bf16_;
  // Only in bf16: what kernels read of the parameters, and a filter's gradient as cuDNN gives it.
  cuda::DeviceBuffer<__nv_bfloat16> weights_bf16_{policy().bf16() ? kParameterCount : 0};
  cuda::DeviceBuffer<__nv_bfloat16> dw_bf16_{policy().bf16() ? kParameters[kConv2Weight].size : 0};
};

}  // namespace

std::unique_ptr<Engine> create_cudnn(const EngineInfo& info, const EngineOptions& options) {
  return create_on_device<CudnnEngine>(info, options);
}

std::unique_ptr<Engine> cudnn_layers::create_refusing(const EngineInfo& info, const EngineOptions& options,
                                                      Refusal refuse) {
  const cuda::DeviceGuard guard(options.device);
  return std::make_unique<CudnnEngine>(info, options, std::move(refuse));
}

std::string cudnn_unavailable(Precision precision, int device) {
  std::string reason = cuda_device_reason(device);
  if (!reason.empty()) return reason;
  for (const auto& library : cuda::gpu_libraries())
    if (reason.empty()) reason = library.reason;
  // The libraries' code is for the GPU itself, whatever ours was compiled for.
  if (reason.empty() && precision != Precision::kFp32) reason = cuda::gpu_lacks(cuda::kTensorCapability, device);
  return reason;
}

}  // namespace mnist
