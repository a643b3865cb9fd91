// The training step of the cpu engine: six parallel loops over images, feature columns or channels.
//
//   prepare          conv2's weight into the Winograd domain; patch moments of the batch
//   conv_forward     per image: conv1 + bn1 + relu + pool, conv2, its extrema e and batch norm's sums
//   linear_forward   per block of images: bn2 + relu, fc1, fc2, loss, gradients of fc2's input and output
//   linear_backward  per pixel: fc1's weight gradient and update, gradient of e in its place, sums for bn2
//   conv_backward    per image: layer 1 once more, conv2's gradients, the sums of layer 1's closed form
//   update           per input channel: conv2's weight; the small tensors
//
// Work is divided by the batch size alone and partial sums are added in a fixed order: the results do not depend on the
// number of threads, bit by bit.
//
// With other ranks each does this for its share of the batch, and three sums go over all ranks: layer 2's forward sums
// and its backward sums in float64, and the gradients in float32. Layer 1 needs none: its moments are those of the
// whole batch, which every rank has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/aligned.h"
#include "cpu/kernels.h"
#include "cpu/layer1.h"
#include "cpu/parameters.h"
#include "cpu/thread_pool.h"
#include "mnist/engine.h"
#include "profile/step_timer.h"

namespace mnist::cpu {

// Images of kImagePixels bytes and their labels; logits need none. With other ranks it is a share of the batch `whole`.
struct Batch {
  std::vector<const std::uint8_t*> images;
  std::vector<std::uint8_t> labels;
  Communicator* ranks = nullptr;
  std::vector<const std::uint8_t*> whole = {};  // only with other ranks

  std::int64_t size() const { return std::int64_t(images.size()); }
  const std::vector<const std::uint8_t*>& all_images() const { return ranks ? whole : images; }
  std::int64_t whole_size() const { return std::int64_t(all_images().size()); }
  // Adds up over the ranks, if there are others.
  void sum(std::span<double> values) const {
    if (ranks) ranks->sum(values);
  }
};

class Network {
 public:
  Network(const Kernels& kernels, int threads);

  Parameters parameters;
  HostTimer timer;  // marks the loops

  // Normalising by the batch's own statistics. With labels, loss and gradients of the head times `upstream` too. What
  // it returns is a share's part of the batch's result.
  StepResult forward(const Batch& batch, double upstream = 1.0);
  // Normalising by `statistics`, kStatisticCount values.
  void forward(const Batch& batch, std::span<const double> statistics);

  // After forward: the first updates the parameters and returns the whole batch's result, the second leaves them and
  // sets `gradients`, with other ranks to those of the share.
  StepResult backward_and_update(const Batch& batch, double learning_rate);
  void backward(const Batch& batch, Parameters& gradients);

  // Population statistics over the batch's images, layer 1 first, then layer 2 under it.
  void compute_statistics(const Batch& batch, std::span<double> statistics);

  // What the last forward left behind, in PyTorch's layout; before any backward.
  void export_activations(const Batch& batch, Probe& probe);
  // Batch sizes at which work begins to be divided in another way, as Engine::batch_thresholds() has them.
  static std::vector<std::int64_t> batch_thresholds();

  double logit(std::int64_t image, int k) const { return logits_[image * kClassLanes + k]; }

 private:
  // One thread's buffers; an image's data stay here from one kernel to the next.
  struct Worker {
    Worker();
    AlignedArray<float> x, a1, da1, z, e, input_tiles, output_tiles, rows, wt, dw;
    AlignedArray<std::int32_t> route;
    AlignedArray<double> patches;
    Scratch scratch() const { return {input_tiles.data(), output_tiles.data(), patches.data()}; }
  };

  void mark(const char* loop, const kernels::Cost& cost) {
    timer.phase(loop);
    timer.op(loop, cost);
  }
  void reserve(std::int64_t batch);
  void load_image(Worker& worker, const std::uint8_t* image) const;
  void prepare_weights();
  void sum_moments(const Batch& batch);
  void conv_forward(const Batch& batch, bool keep);
  void conv2_forward(const Worker& worker, float* z, float* e, float* sums) const;
  void sum_statistics2(const Batch& batch, double* mean, double* var) const;
  void fold_layer2(const double* mean, const double* var);
  void linear_forward(const Batch& batch, double upstream);
  void softmax(const Batch& batch, std::int64_t image, double upstream);
  void backward(const Batch& batch);
  void linear_backward(const Batch& batch);
  void conv_backward(const Batch& batch);
  void update(const Batch& batch);
  void update_all();
  void apply(ParameterIndex index, std::int64_t offset, const float* gradient, std::int64_t count);
  float* kept_z(std::int64_t image) { return z_.data() + image * kZ2Size; }

  const Kernels& kernels_;
  ThreadPool pool_;
  std::vector<Worker> workers_;
  float pixel_[256];  // normalised value of a byte

  // Weights as the kernels read them.
  AlignedArray<float> u_, ut_, fc2_;
  alignas(64) float sign2_[kConv2Channels], fc2_bias_[kClassLanes];

  // Batch norm of the current batch.
  PatchStatistics patch_statistics_;
  Statistics1 statistics1_;
  Folded1 layer1_;
  alignas(64) Affine2 layer2_;
  double sigma2_[kConv2Channels];

  // Per image. e_ is overwritten by its gradient; z_ holds the first kKeptImages.
  AlignedArray<float> z_, e_, h_, dh_, logits_, dlogits_;
  std::vector<StepResult> results_;
  StepResult result_;  // of the share, and after the backward sums of the batch

  // Partial sums, one an image group or pixel.
  AlignedArray<float> du_;
  std::vector<double> moments_, sums2_, sums1_, pixel_sums_;

  // Where apply() sends gradients: into here, or if it is null into the parameters.
  Parameters* gradients_ = nullptr;
  float learning_rate_ = 0;
  Parameters small_;  // gradients of the tensors that are updated last
  Parameters own_;    // all gradients, with other ranks
};

}  // namespace mnist::cpu
