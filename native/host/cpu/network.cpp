// The six loops of network.h and the few sums between them.
#include "cpu/network.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "mnist/ceil_div.h"
#include "mnist/thresholds.h"

namespace mnist::cpu {
namespace {

constexpr std::int64_t kKeptImages = 8192;  // z2 of more images (50 KB each) is computed again in the backward pass
constexpr int kForwardRows = 16;            // images in a task of linear_forward

// A loop over images is cut into groups; each has its own partial sums. Enough for many cores, few enough that adding
// up the partial sums costs nothing.
int group_count(std::int64_t batch) {
  return int(std::clamp<std::int64_t>(batch / 4, std::min<std::int64_t>(batch, 16), 64));
}
std::int64_t group_begin(std::int64_t batch, int groups, int group) { return batch * group / groups; }

// Of a loop over images: they are read, and z2 and e written or read. The operations are those of the ops' formulas,
// conv2 `products` times; Winograd's convolution needs fewer.
kernels::Cost conv_cost(std::int64_t batch, int products) {
  const double bytes = kImagePixels + 4.0 * (kZ2Size + kFeatures);
  return {double(batch) * bytes,
          kernels::conv2d_cost(batch, 1, kConv1Channels, kImageSide).flops +
              products * kernels::conv2d_cost(batch, kConv1Channels, kConv2Channels, kPool1Side).flops};
}

}  // namespace

std::vector<std::int64_t> Network::batch_thresholds() {
  return thresholds_of(2 * kKeptImages, [](std::int64_t batch) {
    const auto groups = group_count(batch);
    const auto of_groups = groups == batch ? 0 : groups <= 16 ? 1 : groups < group_count(2 * kKeptImages) ? 2 : 3;
    return std::array<std::int64_t, 4>{of_groups, rounds(batch, kForwardRows), rounds(batch, kLinearRows),
                                       batch > kKeptImages};
  });
}

Network::Worker::Worker()
    : x(kImageSize),
      a1(kA1Size),
      da1(kA1Size),
      z(kZ2Size),
      e(kFeatures),
      input_tiles(kInputTilesSize),
      output_tiles(kOutputTilesSize),
      rows(kLinearRows * kPixelFeatures),
      wt(kPixelFeatures * kHidden),
      dw(kPixelFeatures * kHidden),
      route(kPool1Size),
      patches(kTaps * kImagePixels) {
  std::fill_n(x.data(), x.size(), 0.0f);  // the borders stay 0 for ever
  std::fill_n(a1.data(), a1.size(), 0.0f);
}

Network::Network(const Kernels& kernels, int threads)
    : kernels_(kernels), pool_(threads), workers_(pool_.size()), u_(kUSize), ut_(kUSize), fc2_(kHidden * kClassLanes) {
  for (int u = 0; u < 256; ++u) pixel_[u] = float((u / 255.0 - kPixelMean) / kPixelStd);
  std::fill_n(fc2_.data(), fc2_.size(), 0.0f);
  std::fill_n(fc2_bias_, kClassLanes, 0.0f);
}

void Network::reserve(std::int64_t batch) {
  z_.reserve(std::min(batch, kKeptImages) * kZ2Size);
  e_.reserve(batch * kFeatures);
  h_.reserve(batch * kHidden);
  dh_.reserve(batch * kHidden);
  logits_.reserve(batch * kClassLanes);
  dlogits_.reserve(batch * kClassLanes);
  results_.resize(batch);
}

void Network::load_image(Worker& worker, const std::uint8_t* image) const {
  for (int p = 0; p < kImageSide; ++p)
    for (int q = 0; q < kImageSide; ++q) worker.x[(p + 1) * kPixelRow + q + 1] = pixel_[image[p * kImageSide + q]];
}

// ---- forward -------------------------------------------------------------------------------------------------------

StepResult Network::forward(const Batch& batch, double upstream) {
  const double pixels = double(batch.size()) * kImagePixels;
  mark("prepare", {pixels, 2 * kPatchMoments * pixels});
  reserve(batch.size());
  prepare_weights();
  sum_moments(batch);
  statistics1_ = layer1_statistics(patch_statistics_, parameters[kConv1Weight]);
  layer1_ = layer1_fold(statistics1_, parameters);
  mark("conv_forward", conv_cost(batch.size(), 1));
  conv_forward(batch, true);
  double mean[kConv2Channels], var[kConv2Channels];
  sum_statistics2(batch, mean, var);
  fold_layer2(mean, var);
  mark("linear_forward", kernels::linear_cost(batch.size(), kFeatures, kHidden) +
                             kernels::linear_cost(batch.size(), kHidden, kClasses) +
                             kernels::linear_backward_cost(batch.size(), kHidden, kClasses));
  linear_forward(batch, upstream);
  result_ = {};
  if (batch.labels.empty()) return result_;
  for (const auto& image : results_) result_.loss += image.loss, result_.correct += image.correct;
  result_.loss /= double(batch.whole_size());
  return result_;
}

void Network::forward(const Batch& batch, std::span<const double> statistics) {
  reserve(batch.size());
  prepare_weights();
  const auto statistic = [&](StatisticIndex index, int c) { return statistics[kStatistics[index].offset + c]; };
  for (int c = 0; c < kConv1Channels; ++c) {
    statistics1_.mean[c] = statistic(kBn1Mean, c) - parameters[kConv1Bias][c];
    statistics1_.var[c] = statistic(kBn1Var, c);
  }
  layer1_ = layer1_fold(statistics1_, parameters);
  conv_forward(batch, true);
  double mean[kConv2Channels], var[kConv2Channels];
  for (int c = 0; c < kConv2Channels; ++c) {
    mean[c] = sign2_[c] * (statistic(kBn2Mean, c) - parameters[kConv2Bias][c]);
    var[c] = statistic(kBn2Var, c);
  }
  fold_layer2(mean, var);
  linear_forward(batch, 1.0);
}

void Network::compute_statistics(const Batch& batch, std::span<double> statistics) {
  prepare_weights();
  sum_moments(batch);
  statistics1_ = layer1_statistics(patch_statistics_, parameters[kConv1Weight]);
  layer1_ = layer1_fold(statistics1_, parameters);
  conv_forward(batch, false);
  double mean[kConv2Channels], var[kConv2Channels];
  sum_statistics2(batch, mean, var);
  for (int c = 0; c < kConv1Channels; ++c) {
    statistics[kStatistics[kBn1Mean].offset + c] = statistics1_.mean[c] + parameters[kConv1Bias][c];
    statistics[kStatistics[kBn1Var].offset + c] = statistics1_.var[c];
  }
  for (int c = 0; c < kConv2Channels; ++c) {
    statistics[kStatistics[kBn2Mean].offset + c] = sign2_[c] * mean[c] + parameters[kConv2Bias][c];
    statistics[kStatistics[kBn2Var].offset + c] = var[c];
  }
}

// With the sign of gamma in conv2's weight, batch norm's scale is never negative and the window's extremum that pooling
// needs is its maximum. Everything behind sees |gamma|; the gradients of weight and gamma get the sign back.
void Network::prepare_weights() {
  for (int c = 0; c < kConv2Channels; ++c) {
    const float gamma = parameters[kBn2Weight][c];
    sign2_[c] = gamma < 0 ? -1.0f : 1.0f;
    layer2_.live[c] = gamma == 0 ? 0 : -1;
  }
  pool_.run(kConv1Channels, [&](int channel, int) {
    kernels_.conv2_weight(u_.data(), ut_.data(), parameters[kConv2Weight], sign2_, channel);
  });
  for (int k = 0; k < kClasses; ++k) {
    for (int o = 0; o < kHidden; ++o) fc2_[o * kClassLanes + k] = parameters[kFc2Weight][k * kHidden + o];
    fc2_bias_[k] = parameters[kFc2Bias][k];
  }
}

void Network::sum_moments(const Batch& batch) {
  const auto& images = batch.all_images();
  const int groups = group_count(batch.whole_size());
  moments_.assign(groups * kPatchMoments, 0.0);
  pool_.run(groups, [&](int group, int w) {
    const auto end = group_begin(batch.whole_size(), groups, group + 1);
    for (auto image = group_begin(batch.whole_size(), groups, group); image < end; ++image) {
      load_image(workers_[w], images[image]);
      kernels_.patch_moments(&moments_[group * kPatchMoments], workers_[w].x.data(), workers_[w].scratch());
    }
  });
  for (int group = 1; group < groups; ++group)
    for (int i = 0; i < kPatchMoments; ++i) moments_[i] += moments_[group * kPatchMoments + i];
  patch_statistics_ = PatchStatistics(moments_.data(), batch.whole_size() * kImagePixels);
}

void Network::conv2_forward(const Worker& worker, float* z, float* e, float* sums) const {
  kernels_.conv2_forward(z, e, sums, worker.a1.data(), u_.data(), layer2_.live, worker.scratch());
}

// `keep` e and z; without it only the sums for batch norm remain.
void Network::conv_forward(const Batch& batch, bool keep) {
  const int groups = group_count(batch.size());
  sums2_.assign(groups * 2 * kConv2Channels, 0.0);
  pool_.run(groups, [&](int group, int w) {
    Worker& worker = workers_[w];
    double* total = &sums2_[group * 2 * kConv2Channels];
    alignas(64) float sums[2 * kConv2Channels];
    const auto end = group_begin(batch.size(), groups, group + 1);
    for (auto image = group_begin(batch.size(), groups, group); image < end; ++image) {
      load_image(worker, batch.images[image]);
      kernels_.conv1_forward(worker.a1.data(), nullptr, worker.x.data(), layer1_.w, layer1_.t);
      conv2_forward(worker, keep && image < kKeptImages ? kept_z(image) : worker.z.data(),
                    keep ? e_.data() + image * kFeatures : worker.e.data(), sums);
      for (int i = 0; i < 2 * kConv2Channels; ++i) total[i] += sums[i];
    }
  });
}

void Network::sum_statistics2(const Batch& batch, double* mean, double* var) const {
  const int groups = group_count(batch.size());
  const double n = double(batch.whole_size()) * kTiles * 4;
  double sums[2 * kConv2Channels] = {};  // of z, of z^2
  for (int group = 0; group < groups; ++group)
    for (int i = 0; i < 2 * kConv2Channels; ++i) sums[i] += sums2_[group * 2 * kConv2Channels + i];
  batch.sum(sums);
  for (int c = 0; c < kConv2Channels; ++c) {
    mean[c] = sums[c] / n;
    var[c] = sums[kConv2Channels + c] / n - mean[c] * mean[c];
    if (var[c] < 0) var[c] = 0;  // rounding; a NaN stays
  }
}

void Network::fold_layer2(const double* mean, const double* var) {
  for (int c = 0; c < kConv2Channels; ++c) {
    sigma2_[c] = std::sqrt(var[c] + kBatchNormEpsilon);
    const double scale = std::abs(double(parameters[kBn2Weight][c])) / sigma2_[c];
    layer2_.mean[c] = float(mean[c]);
    layer2_.scale[c] = float(scale);
    layer2_.shift[c] = float(parameters[kBn2Bias][c] - scale * mean[c]);
  }
}

void Network::linear_forward(const Batch& batch, double upstream) {
  const int tasks = int(ceil_div(batch.size(), kForwardRows));
  pool_.run(tasks, [&](int task, int w) {
    const auto begin = group_begin(batch.size(), tasks, task), end = group_begin(batch.size(), tasks, task + 1);
    const int rows = int(end - begin);
    float* h = h_.data() + begin * kHidden;
    kernels_.fc1_forward(h, e_.data() + begin * kFeatures, parameters[kFc1Weight], parameters[kFc1Bias], rows, layer2_,
                         workers_[w].rows.data());
    for (int i = 0; i < rows * kHidden; ++i) h[i] = h[i] <= 0 ? 0 : h[i];
    kernels_.fc2_forward(logits_.data() + begin * kClassLanes, h, fc2_.data(), fc2_bias_, rows);
    if (batch.labels.empty()) return;
    for (auto image = begin; image < end; ++image) softmax(batch, image, upstream);
    kernels_.fc2_backward(dh_.data() + begin * kHidden, dlogits_.data() + begin * kClassLanes, parameters[kFc2Weight],
                          h, rows);
  });
}

// log_softmax, nll_loss and both backward: dlogits = upstream / B * (softmax - one_hot(label)).
void Network::softmax(const Batch& batch, std::int64_t image, double upstream) {
  const float* x = logits_.data() + image * kClassLanes;
  float* dx = dlogits_.data() + image * kClassLanes;
  const float* top = std::max_element(x, x + kClasses);
  const int label = batch.labels[image];
  double p[kClasses], sum = 0;
  for (int k = 0; k < kClasses; ++k) sum += p[k] = std::exp(double(x[k]) - *top);
  for (int k = 0; k < kClasses; ++k) dx[k] = float(upstream / double(batch.whole_size()) * (p[k] / sum - (k == label)));
  std::fill(dx + kClasses, dx + kClassLanes, 0.0f);
  results_[image] = {std::log(sum) - (double(x[label]) - *top), top - x == label};
}

// ---- backward ------------------------------------------------------------------------------------------------------

StepResult Network::backward_and_update(const Batch& batch, double learning_rate) {
  gradients_ = batch.ranks ? &own_ : nullptr;
  learning_rate_ = float(learning_rate);
  backward(batch);
  if (batch.ranks) {
    batch.ranks->sum(own_.values());
    update_all();
  }
  timer.end_step();
  return result_;
}

void Network::backward(const Batch& batch, Parameters& gradients) {
  gradients_ = &gradients;
  backward(batch);
  timer.end_step();
}

void Network::backward(const Batch& batch) {
  mark("linear_backward", kernels::linear_backward_cost(batch.size(), kFeatures, kHidden));
  linear_backward(batch);
  mark("conv_backward", conv_cost(batch.size(), 2));
  conv_backward(batch);
  mark("update", kernels::sgd_cost(kParameters[kConv2Weight].size));
  update(batch);
}

void Network::apply(ParameterIndex index, std::int64_t offset, const float* gradient, std::int64_t count) {
  if (gradients_)
    std::copy_n(gradient, count, (*gradients_)[index] + offset);
  else
    kernels_.sgd_update(parameters[index] + offset, gradient, learning_rate_, count);
}

// A pixel's task is the only one to read its 64 x 128 of fc1's weight, so it may update them at once. The last task
// does fc2's weight and both biases.
void Network::linear_backward(const Batch& batch) {
  constexpr int kTile = kPixelFeatures * kHidden;
  pixel_sums_.assign(kTiles * 2 * kPixelFeatures, 0.0);
  pool_.run(kTiles + 1, [&](int pixel, int w) {
    Worker& worker = workers_[w];
    std::fill_n(worker.dw.data(), kTile, 0.0f);
    if (pixel < kTiles) kernels_.fc1_transpose(worker.wt.data(), parameters[kFc1Weight] + pixel * kTile);
    alignas(64) float sums[2 * kPixelFeatures];
    double bias1[kHidden] = {}, bias2[kClasses] = {};
    for (std::int64_t begin = 0; begin < batch.size(); begin += kLinearRows) {
      const int rows = int(std::min<std::int64_t>(kLinearRows, batch.size() - begin));
      const float* dh = dh_.data() + begin * kHidden;
      const float* dlogits = dlogits_.data() + begin * kClassLanes;
      if (pixel < kTiles) {
        std::fill_n(sums, 2 * kPixelFeatures, 0.0f);
        kernels_.fc1_backward(e_.data() + begin * kFeatures + pixel * kPixelFeatures, worker.dw.data(), sums, dh,
                              worker.wt.data(), rows, layer2_, worker.rows.data());
        for (int i = 0; i < 2 * kPixelFeatures; ++i) pixel_sums_[pixel * 2 * kPixelFeatures + i] += sums[i];
      } else {
        kernels_.fc2_weight_gradient(worker.dw.data(), dlogits, h_.data() + begin * kHidden, rows);
        for (int row = 0; row < rows; ++row) {
          for (int o = 0; o < kHidden; ++o) bias1[o] += dh[row * kHidden + o];
          for (int k = 0; k < kClasses; ++k) bias2[k] += dlogits[row * kClassLanes + k];
        }
      }
    }
    if (pixel < kTiles) {
      apply(kFc1Weight, pixel * kTile, worker.dw.data(), kTile);
    } else {
      apply(kFc2Weight, 0, worker.dw.data(), kClasses * kHidden);
      std::copy_n(bias1, kHidden, small_[kFc1Bias]);
      std::copy_n(bias2, kClasses, small_[kFc2Bias]);
    }
  });
  // Batch norm of layer 2 (Ioffe and Szegedy, 2015): with N values a channel,
  //   dz = gamma / sigma * (g - dbeta / N - (z - mean) / sigma * dgamma / N).
  // dbeta and dgamma are the whole batch's there; as gradients those of a share, which are added up with all others.
  const double n = double(batch.whole_size()) * kTiles * 4;
  double sums[2 * kConv2Channels + 2] = {};  // dbeta, dgamma, then the batch's result
  double *dbeta = sums, *dgamma = sums + kConv2Channels, *result = sums + 2 * kConv2Channels;
  for (int c = 0; c < kConv2Channels; ++c) {
    for (int pixel = 0; pixel < kTiles; ++pixel) {
      dbeta[c] += pixel_sums_[pixel * 2 * kPixelFeatures + c];
      dgamma[c] += pixel_sums_[pixel * 2 * kPixelFeatures + kPixelFeatures + c] / sigma2_[c];
    }
    small_[kBn2Weight][c] = float(sign2_[c] * dgamma[c]);
    small_[kBn2Bias][c] = float(dbeta[c]);
  }
  result[0] = result_.loss, result[1] = result_.correct;
  batch.sum(sums);
  result_ = {result[0], std::int32_t(result[1])};
  for (int c = 0; c < kConv2Channels; ++c) {
    const double scale = layer2_.scale[c], kappa = -scale * dgamma[c] / (n * sigma2_[c]);
    layer2_.kappa[c] = float(kappa);
    layer2_.alpha[c] = float(-scale * dbeta[c] / n - kappa * layer2_.mean[c]);
  }
}

void Network::conv_backward(const Batch& batch) {
  constexpr int kSums = (kTaps + 1) * kConv1Channels;
  const int groups = group_count(batch.size());
  sums1_.assign(std::max(groups, 1) * kSums, 0.0);  // zeros for a share without images
  du_.reserve(std::size_t(groups) * kUSize);
  pool_.run(groups, [&](int group, int w) {
    Worker& worker = workers_[w];
    alignas(64) float sums[std::max(kSums, 2 * kConv2Channels)];
    const auto begin = group_begin(batch.size(), groups, group), end = group_begin(batch.size(), groups, group + 1);
    for (auto image = begin; image < end; ++image) {
      load_image(worker, batch.images[image]);
      kernels_.conv1_forward(worker.a1.data(), worker.route.data(), worker.x.data(), layer1_.w, layer1_.t);
      const bool kept = image < kKeptImages;
      if (!kept) conv2_forward(worker, worker.z.data(), worker.e.data(), sums);
      kernels_.conv2_backward(worker.da1.data(), du_.data() + std::int64_t(group) * kUSize, image == begin,
                              e_.data() + image * kFeatures, kept ? kept_z(image) : worker.z.data(), worker.a1.data(),
                              layer2_, ut_.data(), worker.scratch());
      kernels_.conv1_backward(sums, worker.da1.data(), worker.route.data(), worker.x.data());
      for (int i = 0; i < kSums; ++i) sums1_[group * kSums + i] += sums[i];
    }
  });
  for (int group = 1; group < groups; ++group)
    for (int i = 0; i < kSums; ++i) sums1_[i] += sums1_[group * kSums + i];
}

void Network::update(const Batch& batch) {
  pool_.run(kConv1Channels, [&](int channel, int w) {
    constexpr int kSlice = kTaps * kConv2Channels;
    float* dw = workers_[w].dw.data();
    kernels_.conv2_weight_gradient(dw, du_.data(), kUSize, group_count(batch.size()), sign2_, channel);
    apply(kConv2Weight, channel * kSlice, dw, kSlice);
  });
  layer1_backward(small_, sums1_.data(), patch_statistics_, statistics1_, parameters);
  // The convolutions' biases have gradient 0 (see reference.cpp); `small_` holds that from the start.
  for (const auto index :
       {kConv1Weight, kConv1Bias, kBn1Weight, kBn1Bias, kConv2Bias, kBn2Weight, kBn2Bias, kFc1Bias, kFc2Bias})
    apply(index, 0, small_[index], kParameters[index].size);
}

// From the gradients of all ranks; in the pieces of an update without others, for the same bits.
void Network::update_all() {
  constexpr int kTile = kPixelFeatures * kHidden;
  const auto piece = [&](int index, std::int64_t offset, std::int64_t count) {
    const auto tensor = ParameterIndex(index);
    kernels_.sgd_update(parameters[tensor] + offset, own_[tensor] + offset, learning_rate_, count);
  };
  pool_.run(kTiles + 1, [&](int pixel, int) {
    if (pixel < kTiles) return piece(kFc1Weight, pixel * kTile, kTile);
    for (int index = 0; index < kParameterTensors; ++index)
      if (index != kFc1Weight) piece(index, 0, kParameters[index].size);
  });
}

// ---- for tests and lessons -----------------------------------------------------------------------------------------

void Network::export_activations(const Batch& batch, Probe& probe) {
  const auto n = batch.size();
  probe.a1.resize(n * kPool1Size);
  probe.a2.resize(n * kPool2Size);
  probe.h.assign(h_.data(), h_.data() + n * kHidden);
  probe.logits.resize(n * kClasses);
  auto& [pool1, pool2, relu3] = probe.routing;
  pool1.resize(n * kPool1Size);
  pool2.resize(n * kPool2Size);
  relu3.resize(n * kHidden);
  Worker& worker = workers_[0];
  AlignedArray<float> a2(kFeatures);
  float sums[2 * kConv2Channels];
  for (std::int64_t b = 0; b < n; ++b) {
    load_image(worker, batch.images[b]);
    kernels_.conv1_forward(worker.a1.data(), worker.route.data(), worker.x.data(), layer1_.w, layer1_.t);
    conv2_forward(worker, worker.z.data(), worker.e.data(), sums);
    kernels_.bn2_relu(a2.data(), worker.e.data(), kFeatures, 1, kTiles, layer2_);
    for (int c = 0; c < kConv1Channels; ++c)
      for (int cell = 0; cell < kCells1; ++cell) {
        const int p = cell / kPool1Side + 1, q = cell % kPool1Side + 1;
        probe.a1[b * kPool1Size + c * kCells1 + cell] = worker.a1[p * kA1Row + q * kConv1Channels + c];
        pool1[b * kPool1Size + c * kCells1 + cell] = std::uint8_t(worker.route[cell * kConv1Channels + c]);
      }
    for (int c = 0; c < kConv2Channels; ++c)
      for (int tile = 0; tile < kTiles; ++tile) {
        const float a = a2[tile * kConv2Channels + c], e = worker.e[tile * kConv2Channels + c];
        int where = 0;
        while (where < 3 && worker.z[(tile * 4 + where) * kConv2Channels + c] != e) ++where;
        probe.a2[b * kPool2Size + c * kTiles + tile] = a;
        pool2[b * kPool2Size + c * kTiles + tile] = a <= 0 ? Routing::kDead : std::uint8_t(where);
      }
    for (int k = 0; k < kClasses; ++k) probe.logits[b * kClasses + k] = logit(b, k);
  }
  for (std::size_t i = 0; i < probe.h.size(); ++i) relu3[i] = !(probe.h[i] <= 0);
}

}  // namespace mnist::cpu
