// What a step leaves in the GPU's memory, in the layouts of Probe.
#include "engines/fused/probe.h"

#include <cuda_fp16.h>

namespace mnist::fused {
namespace {

// Values as a policy stores them: float, bf16 or fp16.
std::vector<double> read_stored(const void* from, std::int64_t count, Precision precision, cudaStream_t stream) {
  if (precision == Precision::kFp32) return read_values(static_cast<const float*>(from), count, stream);
  std::vector<std::uint16_t> raw(count);
  cuda::download(raw, static_cast<const std::uint16_t*>(from), stream);
  std::vector<double> values(count);
  std::ranges::transform(raw, values.begin(), [&](std::uint32_t bits) -> double {
    if (precision == Precision::kBf16) return std::bit_cast<float>(bits << 16);
    return __half2float(__half(__half_raw{.x = std::uint16_t(bits)}));
  });
  return values;
}

// relu(bn2(pooled z2)), from (cell, channel) to (channel, cell).
std::vector<double> read_a2(const State& s, std::int64_t batch, Precision precision, cudaStream_t stream) {
  const auto pooled_z2 = read_stored(s.pooled_z2, batch * kFeatures, precision, stream);
  const auto bn2 = read_values(s.bn2.values, 2 * kConv2Channels, stream);
  std::vector<double> a2(batch * kFeatures);
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t k = 0; k < kFeatures; ++k) {
      const auto channel = k % kConv2Channels;
      const double y = bn2[channel] * pooled_z2[b * kFeatures + k] + bn2[kConv2Channels + channel];
      a2[b * kFeatures + torch_feature(k)] = y <= 0 ? 0 : y;
    }
  return a2;
}

}  // namespace

std::vector<std::uint8_t> unpack_route1(std::span<const std::uint32_t> words) {
  std::vector<std::uint8_t> route(words.size() / kRoute1Words * kPool1Size);
  for (std::int64_t k = 0; k < std::int64_t(words.size()); ++k) {
    const int lane = k & 31, plane = k >> 5 & 1, half = k >> 6 & 1;
    const auto row = k >> 7;  // of all images
    for (int i = 0; i < 4; ++i) {
      const int slot = 2 * (lane & 3) + (i & 1), x = plane == 0 ? 2 * slot - 1 : 2 * slot;
      const int channel = half * 16 + (i >> 1) * 8 + (lane >> 2);
      const auto flags = std::uint8_t(words[k] >> 8 * i);
      if (x >= 0 && x < kPool1Side)
        route[((row / kPool1Side * kConv1Channels + channel) * kPool1Side + row % kPool1Side) * kPool1Side + x] =
            flags == 0 ? Routing::kDead : std::uint8_t(std::countl_zero(flags));
    }
  }
  return route;
}

std::vector<double> read_slab(const float* slab, float* staging, cudaStream_t stream) {
  slab_to_torch(staging, slab, stream);
  return read_values(staging, kParameterCount, stream);
}

Probe probe_step(Steps& steps, cuda::Stream& compute, const Samples& samples, std::int64_t batch, double upstream,
                 float* staging) {
  const cudaStream_t stream = compute.get();
  const Arena& arena = steps.arena();
  steps.set_upstream(upstream);
  steps.clear_rates();
  cuda::DeviceBuffer<float> gradients(kParameterCount), saved(kParameterCount);
  cuda::DeviceBuffer<std::uint8_t> route2(batch * kPool2Size);
  cuda::fill_bytes(gradients.data(), 0, kParameterCount, stream);
  cuda::copy(saved.data(), arena.parameters(), kParameterCount, stream);

  PlannedStep step = steps.training_step(batch, samples);
  State& s = step.state;
  s.gradients = gradients.data();
  s.route2 = route2.data();
  steps.start_batch_norm(s);
  steps.queue(step, 0);

  StepResult result;
  cuda::download(std::span(&result, 1), s.results, stream);
  Probe probe{.loss = result.loss, .correct = result.correct};
  probe.gradients = read_slab(gradients.data(), staging, stream);
  std::vector<std::uint32_t> route1(batch * kRoute1Words);
  cuda::download(route1, s.route1, stream);
  probe.routing.pool1 = unpack_route1(route1);
  probe.routing.pool2.resize(batch * kPool2Size);
  cuda::download(probe.routing.pool2, route2.data(), stream);
  probe.h = read_values(s.h, batch * kHidden, stream);
  probe.logits = read_values(s.logits, batch * kClasses, stream);
  probe.routing.relu3.resize(batch * kHidden);
  std::ranges::transform(probe.h, probe.routing.relu3.begin(), [](double h) { return std::uint8_t(!(h <= 0)); });
  probe.a2 = read_a2(s, batch, steps.precision(), stream);

  // A learning rate of 0 leaves parameters alone, but not where a gradient is infinite.
  cuda::copy(arena.parameters(), saved.data(), kParameterCount, stream);
  steps.repack_weights();
  compute.synchronize();
  return probe;
}

}  // namespace mnist::fused
