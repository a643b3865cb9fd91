// Engines that make a step of the reference's ops, one call each and nothing fused: `naive` and `tiled`.
//
// Compare with reference.cpp: the same calls in the same order. `Ops` has them as static functions, and the type T that
// they compute with; naive.cpp and tiled.cpp are such lists. `partial` is scratch of Ops::partial_size(batch) values,
// the most that any of these functions needs, and Ops::batch_thresholds() is Engine's.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/cuda_engine.h"
#include "profile/cost.h"

namespace mnist {

// One of the two blocks conv2d -> batch_norm -> relu -> max_pool2d: what it is, and what a step leaves in it. z before
// batch norm, y after it, a after relu and pooling.
template <class T>
struct ConvBlock {
  const char *forward_name, *backward_name;
  ParameterIndex weight, bias, gamma, beta;
  StatisticIndex mean, var;
  int in, out, side;  // channels, and the side of z
  cuda::DeviceBuffer<T> z, y, a, da, dy, dz;
  cuda::DeviceBuffer<std::uint8_t> route;

  int area() const { return side * side; }

  void reserve(std::int64_t batch) {
    const std::int64_t values = batch * out * area();
    for (auto* buffer : {&z, &y, &dy, &dz}) buffer->reserve(values);
    for (auto* buffer : {&a, &da}) buffer->reserve(values / 4);
    route.reserve(values / 4);
  }
};

template <class Ops>
class UnfusedEngine final : public CudaEngine<typename Ops::T> {
  using T = typename Ops::T;

 public:
  using CudaEngine<T>::CudaEngine;

  std::vector<std::int64_t> batch_thresholds() const override { return Ops::batch_thresholds(); }

 private:
  using Values = cuda::DeviceBuffer<T>;
  using CudaEngine<T>::gradient, CudaEngine<T>::log_p, CudaEngine<T>::logits, CudaEngine<T>::parameter,
      CudaEngine<T>::read, CudaEngine<T>::stream, CudaEngine<T>::timer;
  static constexpr int kElement = sizeof(T);  // for the costs of ops

  void reserve(std::int64_t batch) override {
    x_.reserve(batch * kImagePixels);
    block1_.reserve(batch);
    block2_.reserve(batch);
    for (auto* buffer : {&u_, &h_, &dh_, &du_}) buffer->reserve(batch * kHidden);
    relu3_.reserve(batch * kHidden);
    dlogits_.reserve(batch * kClasses);
    partial_.reserve(Ops::partial_size(batch));
  }

  void forward(const Batch& batch, const T* statistics) override {
    normalize(batch);
    forward_block(block1_, x_.data(), batch, statistics);
    forward_block(block2_, block1_.a.data(), batch, statistics);
    {
      MNIST_PHASE("fc1 forward");
      timer().op("linear", kernels::linear_cost(batch.size, kFeatures, kHidden, kElement));
      Ops::linear_forward(u_.data(), partial_.data(), block2_.a.data(), parameter(kFc1Weight), parameter(kFc1Bias),
                          batch.size, kFeatures, kHidden, stream());
      timer().op("relu", kernels::relu_cost(batch.size * kHidden, kElement));
      if (batch.routed)
        Ops::relu_backward(h_.data(), u_.data(), relu3_.data(), batch.size * kHidden, stream());
      else
        Ops::relu_forward(h_.data(), relu3_.data(), u_.data(), batch.size * kHidden, stream());
    }
    MNIST_PHASE("fc2 forward");
    timer().op("linear", kernels::linear_cost(batch.size, kHidden, kClasses, kElement));
    Ops::linear_forward(logits(), partial_.data(), h_.data(), parameter(kFc2Weight), parameter(kFc2Bias), batch.size,
                        kHidden, kClasses, stream());
    timer().op("log_softmax", kernels::log_softmax_forward_cost(batch.size * kClasses, kElement));
    Ops::log_softmax_forward(log_p(), logits(), batch.size, kClasses, stream());
  }

  void normalize(const Batch& batch) {
    MNIST_PHASE("normalize");
    timer().op("normalize", kernels::normalize_cost(batch.size * kImagePixels, kElement));
    Ops::normalize_forward(x_.data(), batch.images, batch.size * kImagePixels, stream());
  }

  void convolve(const ConvBlock<T>& block, const T* x, std::int64_t batch) {
    timer().op("conv2d", kernels::conv2d_cost(batch, block.in, block.out, block.side, kElement));
    Ops::conv2d_forward(block.z.data(), x, parameter(block.weight), parameter(block.bias), batch, block.in, block.out,
                        block.side, stream());
  }

  void forward_block(const ConvBlock<T>& block, const T* x, const Batch& batch, const T* statistics) {
    MNIST_PHASE(block.forward_name);
    const auto planes = batch.size * block.out, values = planes * block.area();
    convolve(block, x, batch.size);
    if (!statistics) {
      timer().op("batch_norm_statistics", kernels::batch_norm_statistics_cost(values, kElement));
      Ops::batch_norm_statistics(of_batch(block.mean), of_batch(block.var), partial_.data(), block.z.data(), batch.size,
                                 block.out, block.area(), stream());
      statistics = of_batch_.data();
    }
    timer().op("batch_norm", kernels::batch_norm_forward_cost(values, kElement));
    Ops::batch_norm_forward(block.y.data(), block.z.data(), parameter(block.gamma), parameter(block.beta),
                            statistics + kStatistics[block.mean].offset, statistics + kStatistics[block.var].offset,
                            batch.size, block.out, block.area(), stream());
    timer().op("relu_max_pool2d", kernels::relu_max_pool2d_forward_cost(values / 4, kElement));
    if (batch.routed)
      Ops::relu_max_pool2d_forward_routed(block.a.data(), block.y.data(), block.route.data(), planes, block.side / 2,
                                          stream());
    else
      Ops::relu_max_pool2d_forward(block.a.data(), block.route.data(), block.y.data(), planes, block.side / 2,
                                   stream());
  }

  void backward(const Batch& batch) override {
    const auto size = batch.size;
    {
      MNIST_PHASE("fc2 backward");
      timer().op("log_softmax_nll", kernels::log_softmax_nll_backward_cost(size * kClasses, kElement));
      Ops::log_softmax_nll_backward(dlogits_.data(), log_p(), batch.labels, batch.upstream, size, kClasses, stream());
      timer().op("linear", kernels::linear_backward_cost(size, kHidden, kClasses, kElement));
      Ops::linear_backward(dh_.data(), gradient(kFc2Weight), gradient(kFc2Bias), partial_.data(), dlogits_.data(),
                           h_.data(), parameter(kFc2Weight), size, kHidden, kClasses, stream());
    }
    {
      MNIST_PHASE("fc1 backward");
      timer().op("relu", kernels::relu_cost(size * kHidden, kElement));
      Ops::relu_backward(du_.data(), dh_.data(), relu3_.data(), size * kHidden, stream());
      timer().op("linear", kernels::linear_backward_cost(size, kFeatures, kHidden, kElement));
      Ops::linear_backward(block2_.da.data(), gradient(kFc1Weight), gradient(kFc1Bias), partial_.data(), du_.data(),
                           block2_.a.data(), parameter(kFc1Weight), size, kFeatures, kHidden, stream());
    }
    backward_block(block2_, block1_.da.data(), block1_.a.data(), size);
    backward_block(block1_, nullptr, x_.data(), size);
  }

  // The gradients of the block's parameters from block.da, and of its input into `dx` unless that is null.
  void backward_block(const ConvBlock<T>& block, T* dx, const T* x, std::int64_t batch) {
    MNIST_PHASE(block.backward_name);
    const auto values = batch * block.out * block.area();
    const auto conv2d = kernels::conv2d_cost(batch, block.in, block.out, block.side, kElement);
    timer().op("relu_max_pool2d", kernels::relu_max_pool2d_backward_cost(values / 4, kElement));
    Ops::relu_max_pool2d_backward(block.dy.data(), block.da.data(), block.route.data(), batch * block.out,
                                  block.side / 2, stream());
    timer().op("batch_norm", kernels::batch_norm_backward_cost(values, kElement));
    Ops::batch_norm_backward(block.dz.data(), gradient(block.gamma), gradient(block.beta), partial_.data(),
                             block.dy.data(), block.z.data(), parameter(block.gamma), of_batch(block.mean),
                             of_batch(block.var), batch, block.out, block.area(), stream());
    timer().op("conv2d weight", conv2d);
    Ops::conv2d_backward_weight(gradient(block.weight), partial_.data(), block.dz.data(), x, batch, block.in, block.out,
                                block.side, stream());
    if (dx) {
      timer().op("conv2d data", conv2d);
      Ops::conv2d_backward_data(dx, block.dz.data(), parameter(block.weight), batch, block.in, block.out, block.side,
                                stream());
    }
    // The convolution's bias keeps the gradient 0 that the slab was filled with: batch norm subtracts the batch's
    // mean, so a constant added before it changes nothing.
  }

  void layer_statistics(int layer, const Batch& batch, const T* statistics, T* mean, T* var) override {
    normalize(batch);
    const ConvBlock<T>* block = &block1_;
    if (layer == 1) {
      convolve(block1_, x_.data(), batch.size);
    } else {
      forward_block(block1_, x_.data(), batch, statistics);
      convolve(block2_, block1_.a.data(), batch.size);
      block = &block2_;
    }
    Ops::batch_norm_statistics(mean, var, partial_.data(), block->z.data(), batch.size, block->out, block->area(),
                               stream());
  }

  void read_activations(std::int64_t batch, Probe& probe) override {
    probe.a1 = read(block1_.a.data(), batch * kPool1Size);
    probe.a2 = read(block2_.a.data(), batch * kPool2Size);
    probe.h = read(h_.data(), batch * kHidden);
    const auto fetch = [&](std::vector<std::uint8_t>& to, const cuda::DeviceBuffer<std::uint8_t>& from,
                           std::int64_t count) {
      to.resize(count);
      cuda::download(to, from.data(), stream());
    };
    fetch(probe.routing.pool1, block1_.route, batch * kPool1Size);
    fetch(probe.routing.pool2, block2_.route, batch * kPool2Size);
    fetch(probe.routing.relu3, relu3_, batch * kHidden);
  }

  void write_routing(const Routing& routing) override {
    cuda::upload(block1_.route.data(), routing.pool1, stream());
    cuda::upload(block2_.route.data(), routing.pool2, stream());
    cuda::upload(relu3_.data(), routing.relu3, stream());
  }

  T* of_batch(StatisticIndex index) const { return of_batch_.data() + kStatistics[index].offset; }

  ConvBlock<T> block1_{"layer 1 forward", "layer 1 backward", kConv1Weight, kConv1Bias, kBn1Weight,
                       kBn1Bias,          kBn1Mean,           kBn1Var,      1,          kConv1Channels,
                       kImageSide};
  ConvBlock<T> block2_{"layer 2 forward", "layer 2 backward", kConv2Weight, kConv2Bias,
                       kBn2Weight,        kBn2Bias,           kBn2Mean,     kBn2Var,
                       kConv1Channels,    kConv2Channels,     kPool1Side};
  Values x_, u_, h_, dh_, du_, dlogits_, partial_;
  Values of_batch_{kStatisticCount};  // statistics of the last batch
  cuda::DeviceBuffer<std::uint8_t> relu3_;
};

}  // namespace mnist
