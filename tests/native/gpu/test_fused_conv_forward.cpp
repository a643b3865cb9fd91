// conv forward of `fused` by itself, in every size: a1 and its routing, z2, its maxima and its sums.
//
// Each result is compared with float64 from what the phase had: z2 from the a1 that it stored, the maxima and sums from
// its z2.
#include "cpu/reference_ops.h"
#include "engines/fused/probe.h"
#include "fused_phase.h"
#include "kernels/fused/shared/pixels.h"

using namespace testing;

namespace {

constexpr int kFirst1 = 5, kFirst2 = 37;  // channels whose batch norm has a scale of 0: of ties the first wins

// conv1 as conv forward reads it, and what it means. Filters have so few bits that sums over pixels are exact.
struct Conv1 {
  std::vector<double> weight = std::vector<double>(kConv1Channels * kTaps);  // in units of filter_scale
  std::vector<double> scale, shift, largest, filter_scale;
  std::vector<std::uint16_t> packed;  // (terms, 4 positions, 32, 16)
  int (*pixel)(int);                  // as a product takes it
  double zero;                        // outside of the image
  int terms;

  Conv1(Random& random, Precision precision) : terms(conv1_terms(precision)) {
    const bool bf16 = precision == Precision::kBf16;
    pixel = bf16 ? fused::Bf16Pixels::of : fused::ExactPixels::of;
    zero = to_fp16(float(bf16 ? fused::Bf16Pixels::kZero : fused::ExactPixels::kZero));
    packed.resize(terms * 4 * kConv1Channels * 16);
    for (int c = 0; c < kConv1Channels; ++c) {
      filter_scale.push_back(std::ldexp(1.0, c % 3 - 1));
      scale.push_back(float(random.uniform(0.0007, 0.0013)));
      shift.push_back(float(random.uniform(-0.4, 0.4)));
      double most = 0;
      for (int tap = 0; tap < kTaps; ++tap) {
        for (int term = 0; term < terms; ++term) {
          const double value =
              std::ldexp(std::round(random.uniform(-31, 31)), term == 0 ? -5 : -10) + (term == 0 && tap == 4 ? 1 : 0);
          weight[c * kTaps + tap] += value;
          for (int position = 0; position < 4; ++position) {
            const int row = tap / 3 + dy(c, position), column = tap % 3 + dx(c, position);
            packed[((term * 4 + position) * kConv1Channels + c) * 16 + 4 * row + column] = bits_of_fp16(float(value));
          }
        }
        const double w = filter_scale[c] * weight[c * kTaps + tap];
        most += std::max(w * pixel(255), w * pixel(0));
      }
      largest.push_back(float(std::max(1.001 * scale[c] * most + shift[c], 0.0)));
    }
  }

  // Where the filter at a position of the pooling window begins.
  static int dy(int channel, int position) { return channel == kFirst1 ? 0 : position >> 1; }
  static int dx(int channel, int position) { return channel == kFirst1 ? 0 : position & 1; }

  // The sum at a position of a cell's window, that of its magnitudes, and whether pixels outside are in it.
  struct Sum {
    double value = 0, magnitude = 0;
    bool outside = false;
  };
  Sum at(const std::uint8_t* image, int c, int cy, int cx, int position) const {
    Sum sum;
    for (int tap = 0; tap < kTaps; ++tap) {
      const int y = 2 * cy + dy(c, position) + tap / 3 - 1, x = 2 * cx + dx(c, position) + tap % 3 - 1;
      const bool inside = y >= 0 && y < kImageSide && x >= 0 && x < kImageSide;
      const double product = weight[c * kTaps + tap] * (inside ? pixel(image[y * kImageSide + x]) : zero);
      sum.value += product;
      sum.magnitude += std::abs(product);
      sum.outside |= !inside;
    }
    return sum;
  }
};

// conv2.weight (out, in, tap) as conv forward reads it: what it holds, and its bits.
struct Conv2 {
  std::vector<double> weight = std::vector<double>(fused::kConv2Values);
  double scale = 1, largest = 0;

  Conv2(Random& random, PhaseMemory& memory, const Case& now) {
    const int terms = fp16_terms(now.precision), of_chunk = 8;
    std::vector<double> values(fused::kConv2Values);
    std::vector<std::uint16_t> halves(terms * fused::kConv2Values);
    if (now.scales_conv2()) scale = std::ldexp(1.0, -9);
    for (int out = 0; out < kConv2Channels; ++out)
      for (int in = 0; in < kConv1Channels; ++in)
        for (int tap = 0; tap < kTaps; ++tap) {
          auto& w = weight[(out * kConv1Channels + in) * kTaps + tap];
          w = stored(now.precision, random.uniform(-0.1, 0.1), scale);
          largest = std::max(largest, std::abs(w));
          const int r = out & 15, row = ((out & 48) + 8 * (r >> 1 & 1) + 2 * (r >> 2) + (r & 1)) * kTaps + tap;
          const int chunked =
              ((tap * (kConv1Channels / of_chunk) + in / of_chunk) * kConv2Channels + out) * of_chunk + in % of_chunk;
          if (terms > 0) {
            const auto parts = terms_of(w / scale, terms);
            w = 0;
            for (int term = 0; term < terms; ++term) {
              halves[now.gpu.wgmma ? term * fused::kConv2Values + chunked
                                   : row * kConv1Channels * terms + place_of(in, term, terms)] =
                  bits_of_fp16(parts[term]);
              w += scale * parts[term];
            }
          } else {
            values[now.gpu.wgmma ? chunked : row * kConv1Channels + in] = w;
          }
        }
    const State& s = memory.state();
    if (now.scales_conv2()) memory.give_scale(fused::kConv2Scale, scale);
    if (terms > 0)
      memory.give(static_cast<const std::uint16_t*>(s.conv2_forward), halves);
    else
      memory.give_stored(s.conv2_forward, values, scale);
    if (scaled(now.precision)) {
      auto of_warps = random.values(fused::kConv2Values / 32, 0, largest);
      of_warps[300] = largest;
      memory.give_as(s.conv2_max, of_warps);
    }
  }
};

// a1 and its routing. Returns a1 as the phase stored it.
std::vector<double> check_a1(PhaseMemory& memory, const Case& now, const Conv1& conv1, const Samples& samples,
                             const std::string& where) {
  const State& s = memory.state();
  const Layout layout = now.plan[Phase::kConvForward].layout;
  const PixelOrder order = order_of_a1(now.precision, layout);
  const std::int64_t batch = now.batch, count = batch * kPool1Size;
  const Axes axes{{"image", batch}, {"channel", kConv1Channels}, {"y", kPool1Side}, {"x", kPool1Side}};
  std::vector<double> got(count);
  double unit = 1, error = storing(now.precision);
  const bool fp16_sums = conv1.terms == 1;
  const bool has_terms = fp16_terms(now.precision) > 0;
  if (has_terms || scaled(now.precision)) unit = power_of_two_scale(*std::ranges::max_element(conv1.largest), 15, -60);
  if (has_terms) {
    error = std::ldexp(1.001, -22);
    auto values = memory.result(static_cast<const std::uint16_t*>(s.a1), order.count(batch));
    for (auto& value : values) value = unit * from_fp16(std::uint16_t(value));
    for (int term = 0; term < order.terms; ++term) {
      const auto part = pixels_from(order, batch, values, term);
      for (std::int64_t i = 0; i < count; ++i) got[i] += part[i];
    }
    check_padding("a1", where, order, batch, values);
  } else {
    const auto values = memory.stored_result(s.a1, order.count(batch), unit);
    got = pixels_from(order, batch, values);
    check_padding("a1", where, order, batch, values);
    check_room("a1", where, now.precision, got, unit);
  }
  std::vector<std::uint32_t> words;
  for (const double word : memory.result(s.route1, batch * fused::kRoute1Words)) words.push_back(std::uint32_t(word));
  const auto route = fused::unpack_route1(words);
  Expected a1(count), routing(count);
  std::int64_t i = 0;
  for (std::int64_t b = 0; b < batch; ++b)
    for (int c = 0; c < kConv1Channels; ++c)
      for (int cell = 0; cell < fused::kCells1; ++cell, ++i) {
        Conv1::Sum sums[4];
        int best = 0;
        bool outside = false;
        for (int position = 0; position < 4; ++position) {
          sums[position] =
              conv1.at(samples.image(kGraphStep, now.batch, b), c, cell / kPool1Side, cell % kPool1Side, position);
          outside |= sums[position].outside;
          if (sums[position].value > sums[best].value) best = position;
        }
        // Pixels outside have too many bits for exact sums, and sums of fp16 too few. There positions may be as good as
        // each other.
        const double slack = (outside ? std::ldexp(sums[best].magnitude, -20) : 0) +
                             (fp16_sums ? std::ldexp(std::abs(sums[best].value), -10) : 0);
        const double scale = conv1.scale[c];
        const double value = scale * conv1.filter_scale[c] * sums[best].value + conv1.shift[c];
        const double slack_of_value = scale * conv1.filter_scale[c] * slack;
        const bool dead = value <= 0;
        a1.value[i] = dead ? 0 : value;
        a1.bound[i] = dead ? slack_of_value
                           : (error + std::ldexp(1.0, -24)) * value + slack_of_value +
                                 (has_terms ? std::ldexp(unit, -25) : 0) + storing_small(now.precision, unit);
        routing.value[i] = dead ? Routing::kDead : best;
        bool as_good = route[i] < 4 && sums[route[i]].value >= sums[best].value - slack;
        for (int position = 0; as_good && !outside && position < route[i]; ++position)
          as_good = sums[position].value != sums[route[i]].value;  // the first of equals
        if (slack > 0 && (as_good || std::abs(value) <= slack_of_value)) routing.value[i] = route[i];
      }
  check_elements("a1", with_unit(where, now.precision, unit), axes, got, a1);
  check_elements("route1", where, axes, {route.begin(), route.end()}, routing);
  return got;
}

// z2's unit, which tf32 chooses: no sum of products of a1 and conv2's weights can exceed what it leaves room for.
double check_z2_scale(PhaseMemory& memory, const Case& now, const Conv1& conv1, const Conv2& conv2) {
  if (!scaled(now.precision)) return 1;
  const float a1 = float(*std::ranges::max_element(conv1.largest)),
              largest = float(kConv1Channels * kTaps) * a1 * float(conv2.largest);
  memory.check_scale("z2", now.name, fused::kZ2Scale, scale_of(largest));
  memory.check_scale("conv2's largest weight", now.name, fused::kLargestConv2, float(conv2.largest));
  return scale_of(largest);
}

// In tf32 and large batches z2 is up to half of a rounding larger or smaller, the same for an image's whole channel.
double z2_factor(const Case& now, std::int64_t image, int channel) {
  if (!rounds_by_draws(now.precision, now.batch)) return 1;
  return 1 + (std::ldexp(double(draw_of(image, channel)), -32) - 0.5) * std::ldexp(1.0, -10);
}

// z2 from a1; its maxima and sums from z2.
void check_z2(PhaseMemory& memory, const Case& now, const std::vector<double>& a1, const std::vector<double>& weight,
              double unit, const std::string& where) {
  const State& s = memory.state();
  const std::int64_t batch = now.batch;
  const PixelOrder order = order_of_z2(now.precision, now.plan[Phase::kConvForward].layout);
  const auto values = memory.stored_result(s.z2, order.count(batch), unit);
  check_padding("z2", where, order, batch, values);
  check_room("z2", where, now.precision, values, unit);
  const auto z2 = pixels_from(order, batch, values);
  std::vector<double> magnitudes(z2.size()), absolute_a1(a1), absolute_weight(weight);
  for (auto& x : absolute_a1) x = std::abs(x);
  for (auto& x : absolute_weight) x = std::abs(x);
  Expected want(std::int64_t(z2.size()));
  const std::vector<double> no_bias(kConv2Channels);
  reference::conv2d_forward(want.value.data(), a1.data(), weight.data(), no_bias.data(), batch, kConv1Channels,
                            kConv2Channels, kPool1Side);
  reference::conv2d_forward(magnitudes.data(), absolute_a1.data(), absolute_weight.data(), no_bias.data(), batch,
                            kConv1Channels, kConv2Channels, kPool1Side);
  const double error = multiplying(now.precision) + summing(kConv1Channels * kTaps);
  for (std::size_t i = 0; i < z2.size(); ++i) {
    const auto plane = std::int64_t(i) / fused::kCells1;
    want.value[i] *= z2_factor(now, plane / kConv2Channels, int(plane % kConv2Channels));
    want.bound[i] =
        storing(now.precision) * std::abs(want.value[i]) + error * magnitudes[i] + storing_small(now.precision, unit);
  }
  check_elements("z2", with_unit(where, now.precision, unit),
                 {{"image", batch}, {"channel", kConv2Channels}, {"y", kPool1Side}, {"x", kPool1Side}}, z2, want);

  const auto at = [&](std::int64_t b, int c, int y, int x) {
    return z2[((b * kConv2Channels + c) * kPool1Side + y) * kPool1Side + x];
  };
  std::vector<double> maxima;
  Expected sums(2 * kConv2Channels);
  std::vector<double> magnitude(2 * kConv2Channels);
  for (std::int64_t b = 0; b < batch; ++b)
    for (int cell = 0; cell < fused::kCells2; ++cell)
      for (int c = 0; c < kConv2Channels; ++c) {
        double best = 0;
        for (int position = 0; position < 4; ++position) {
          const double z = at(b, c, 2 * (cell / kPool2Side) + position / 2, 2 * (cell % kPool2Side) + position % 2);
          if (position == 0 || (c != kFirst2 && z > best)) best = z;
          sums.value[c] += z;
          sums.value[kConv2Channels + c] += z * z;
          magnitude[c] += std::abs(z);
        }
        maxima.push_back(best);
      }
  check_equal("pooled_z2", where, {{"image", batch}, {"cell", fused::kCells2}, {"channel", kConv2Channels}},
              memory.stored_result(s.pooled_z2, batch * kFeatures, unit), maxima);
  const int blocks = now.plan.conv_forward_blocks;
  const auto rows = memory.result(s.z2_sums, blocks * 2 * kConv2Channels);
  std::vector<double> total(2 * kConv2Channels);
  for (std::size_t i = 0; i < rows.size(); ++i)  // of z2 as it is stored
    total[i % total.size()] += (i % total.size() < kConv2Channels ? unit : unit * unit) * rows[i];
  for (int i = 0; i < 2 * kConv2Channels; ++i)
    sums.bound[i] = summing(double(batch) * fused::kCells1) * (i < kConv2Channels ? magnitude[i] : sums.value[i]);
  check_elements("z2_sums", where, {{"sum", 2}, {"channel", kConv2Channels}}, total, sums);
}

void test(Case now) {
  PhaseMemory memory = now.memory();
  const State& s = memory.state();
  const Samples samples(now.random, now.batch);
  const Conv1 conv1(now.random, now.precision);
  const Conv2 conv2(now.random, memory, now);
  memory.give(s.samples.images, samples.images);
  memory.give(s.samples.order, samples.order);
  memory.give(static_cast<const std::uint16_t*>(s.conv1), conv1.packed);
  memory.give_as(&s.bn1.scale(0), conv1.scale);
  memory.give_as(&s.bn1.shift(0), conv1.shift);
  if (fp16_terms(now.precision) > 0 || scaled(now.precision)) memory.give_as(&s.bn1.largest_a1(0), conv1.largest);
  memory.give_as(&s.bn1.filter_scale(0), conv1.filter_scale);
  auto gamma = now.random.values(kConv2Channels, 0.5, 1.5);
  gamma[kFirst2] = 0;
  memory.give_as(s.parameters + kParameters[kBn2Weight].offset, gamma);
  memory.run([&](const State& s, cudaStream_t stream) { now.launch(Phase::kConvForward, s, stream); });
  const auto a1 = check_a1(memory, now, conv1, samples, now.name);
  check_z2(memory, now, a1, conv2.weight, check_z2_scale(memory, now, conv1, conv2), now.name);
  memory.check_rest(now.name);
}

}  // namespace

int main() {
  require_gpu();
  require_code(cuda::kTensorCapability);
  // Halves of images; whole ones; several a block, in full rounds and in ragged ones. Then so many that tf32 rounds z2
  // by draws.
  for_every_size(
      Phase::kConvForward,
      {{132, 1}, {12, 5}, {4, 2}, {7, 7}, {5, 5}, {4, 4}, {7, 8}, {5, 13}, {2, 11}, {260, 129}, {132, 129}, {12, 131}},
      test);
  return finish_phase();
}
