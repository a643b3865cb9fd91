// conv2's backward of `fused` by itself, in every size: bn2's backward and update, and the sums that leave the kernel,
// conv2's weight gradient and the routed taps. dz2 and da1 stay in the kernel; what is wrong with them shows there.
#include "cpu/reference_ops.h"
#include "fused_phase.h"
#include "kernels/fused/shared/pixels.h"

using namespace testing;

namespace {

constexpr int kNoScale = 37;  // a channel whose batch norm has a scale of 0

// What a size stores, and how exactly.
struct Storage {
  bool terms;         // a1, dz2, da1 and the filter are terms of fp16
  bool scaled;        // or, all that is stored, fp16 in units: tf32
  int (*pixel)(int);  // as a product takes it
  double outside;     // of the image
  double of_da1;      // relative error of da1 as the routed taps' operand
  int parts;          // into which blocks and warps may cut conv2's channels: each rounds its sum for da1

  Storage(const Case& now) : terms(fp16_terms(now.precision) > 0), scaled(testing::scaled(now.precision)) {
    const bool bf16 = now.precision == Precision::kBf16;
    pixel = bf16 ? fused::Bf16Pixels::of : fused::ExactPixels::of;
    const float zero = float(bf16 ? fused::Bf16Pixels::kZero : fused::ExactPixels::kZero);
    outside = bf16 ? to_bf16(zero) : to_fp16(zero);
    const bool exact = now.precision == Precision::kFp32;
    of_da1 = exact ? multiplying(now.precision) : storing(now.precision);
    parts = !scaled ? 4 : now.plan[Phase::kConv2Backward].rows == kPool1Side ? 1 : 2;
  }
};

// What tf32 divides by: units of the inputs, and dz2's and da1's, which a block chooses for itself.
struct Units {
  double z2 = 1, a1 = 1, filter = 1, dy2 = 1, a2 = 1, dz2 = 1, da1 = 1;
};

// bn2's operand and what its backward makes of it.
struct Bn2 {
  std::vector<double> scale, shift, mean, mean_rest, inv_sigma, gamma, beta;
  std::vector<double> sums;  // (2, cells, channels); of fc fewer rows than cells, NaN behind them
  double dbeta[kConv2Channels] = {}, dgamma[kConv2Channels] = {};
  float alpha[kConv2Channels], kappa[kConv2Channels];

  Bn2(Case& now, const State& s) {
    const auto floats = [&](std::int64_t count, double low, double high) {
      auto values = now.random.values(count, low, high);
      for (auto& value : values) value = float(value);
      return values;
    };
    scale = floats(kConv2Channels, 0.5, 1.5), shift = floats(kConv2Channels, -0.5, 0.5);
    mean = floats(kConv2Channels, -0.5, 0.5), mean_rest = floats(kConv2Channels, -0.05, 0.05);
    inv_sigma = floats(kConv2Channels, 0.5, 1), gamma = floats(kConv2Channels, -1.5, 1.5);
    beta = floats(kConv2Channels, -0.5, 0.5);
    scale[kNoScale] = gamma[kNoScale] = 0;
    const double of_cell = 0.5 / s.inv_n2 / s.dy2_sum_rows();  // so that their means are not small against dy2
    sums = floats(2 * kFeatures, -of_cell, of_cell);
    for (int i = 0; i < 2 * kFeatures; ++i) {
      const int c = i % kConv2Channels;
      if (i % kFeatures >= s.dy2_sum_rows() * kConv2Channels) {
        sums[i] = NAN;
        continue;
      }
      sums[i] = float(sums[i] + of_cell * (c % 5 - 2));
      (i < kFeatures ? dbeta : dgamma)[c] += sums[i];
    }
    for (int c = 0; c < kConv2Channels; ++c) {
      kappa[c] = float(-scale[c] * dgamma[c] * inv_sigma[c] * s.inv_n2);
      alpha[c] = float(-scale[c] * dbeta[c] * s.inv_n2 - double(kappa[c]) * (mean[c] + mean_rest[c]));
    }
  }
  // What |dz2| cannot exceed, where |dy2| is at most `dy2`.
  double largest_dz2(const State& s, double dy2) const {
    double largest = 0;
    for (int c = 0; c < kConv2Channels; ++c)
      largest = std::max(largest,
                         scale[c] * (dy2 + std::abs(dbeta[c]) * s.inv_n2 + std::abs(dgamma[c]) * std::sqrt(s.inv_n2)));
    return largest;
  }
};

struct Inputs {
  std::vector<double> z2, a1, dy2, filter;  // (batch, channels, 14, 14); dy2 (batch, cells, channels); (out, in, tap)
  std::vector<std::uint8_t> route1;         // as Routing has it
  Units unit;
  double largest_dy2 = 0;
};

std::vector<std::uint32_t> packed_route1(const std::vector<std::uint8_t>& route) {
  std::vector<std::uint32_t> words(route.size() / kPool1Size * fused::kRoute1Words);
  for (std::int64_t k = 0; k < std::int64_t(words.size()); ++k) {
    const int lane = k & 31, plane = k >> 5 & 1, half = k >> 6 & 1;
    const auto row = k >> 7;
    for (int i = 0; i < 4; ++i) {
      const int slot = 2 * (lane & 3) + (i & 1), x = plane == 0 ? 2 * slot - 1 : 2 * slot;
      const int channel = half * 16 + (i >> 1) * 8 + (lane >> 2);
      if (x < 0 || x >= kPool1Side) continue;
      const int to =
          route[((row / kPool1Side * kConv1Channels + channel) * kPool1Side + row % kPool1Side) * kPool1Side + x];
      if (to != Routing::kDead) words[k] |= (0x80u >> to) << 8 * i;
    }
  }
  return words;
}

// conv2.weight as the size needs it for its dgrad.
void give_filter(PhaseMemory& memory, Case& now, Inputs& inputs, const Storage& storage) {
  using Filter = fused::DgradFilter;
  const State& s = memory.state();
  const Layout layout = now.plan[Phase::kConv2Backward].layout;
  const bool pieces = layout == Layout::kChunks;
  const int terms = fp16_terms(now.precision);
  inputs.filter = now.random.values(fused::kConv2Values, -0.1, 0.1);
  inputs.unit.filter = storage.terms || storage.scaled ? std::ldexp(1.0, -9) : 1;
  std::vector<double> values(fused::kConv2Values);
  std::vector<std::uint16_t> halves(storage.terms ? terms * fused::kConv2Values : Filter::kBytes / 2);
  for (int out = 0; out < kConv2Channels; ++out)
    for (int in = 0; in < kConv1Channels; ++in)
      for (int tap = 0; tap < kTaps; ++tap) {
        auto& w = inputs.filter[(out * kConv1Channels + in) * kTaps + tap];
        const int flipped = kTaps - 1 - tap, u = flipped / 3, v = flipped % 3;
        w = stored(now.precision, w, inputs.unit.filter);
        if (storage.terms) {
          const auto parts = terms_of(w / inputs.unit.filter, terms);
          w = 0;
          for (int term = 0; term < terms; ++term) {
            const int piece = (term * 3 + u) * (kConv2Channels / 8) + out / 8;
            const int at = layout == Layout::kPixels
                               ? (in * kTaps + flipped) * kConv2Channels * terms + place_of(out, term, terms)
                               : ((piece * 3 + 2 - v) * kConv1Channels + in) * 8 + out % 8;
            halves[at] = bits_of_fp16(parts[term]);
            w += inputs.unit.filter * parts[term];
          }
        } else {
          const int at = (u * Filter::kChunks + out / 8) * Filter::kPieceBytes + Filter::kZeroBytes +
                         (2 - v) * Filter::kTapBytes + in * 16;
          if (pieces) halves[at / 2 + out % 8] = bits_of(now.precision, w, inputs.unit.filter);
          values[(in * kTaps + flipped) * kConv2Channels + out] = w;
        }
      }
  if (storage.terms || pieces)
    memory.give(static_cast<const std::uint16_t*>(s.conv2_dgrad), halves);
  else
    memory.give_stored(s.conv2_dgrad, values, inputs.unit.filter);
}

// `flat`: z2 and dy2 are the same everywhere in a channel, and in even batches relu lets all of a1 pass.
Inputs give_inputs(PhaseMemory& memory, Case& now, const Storage& storage, bool flat) {
  const State& s = memory.state();
  const Layout layout = now.plan[Phase::kConv2Backward].layout;
  const std::int64_t batch = now.batch;
  Inputs inputs;
  if (storage.scaled) {
    // a2's is so large that what is small became 0.
    inputs.unit.z2 = std::ldexp(1.0, -11), inputs.unit.dy2 = std::ldexp(1.0, -14), inputs.unit.a2 = std::ldexp(1.0, 18);
    memory.give_scale(fused::kZ2Scale, inputs.unit.z2);
    memory.give_scale(fused::kDy2Scale, inputs.unit.dy2);
    memory.give_scale(fused::kA2Scale, inputs.unit.a2);
  }
  give_filter(memory, now, inputs, storage);

  inputs.z2 = now.random.values(batch * kConv2Channels * fused::kCells1, -2, 2);
  for (std::size_t i = 0; i < inputs.z2.size(); ++i) {
    const bool ties = i / fused::kCells1 % 4 == 0;
    inputs.z2[i] = ties ? std::round(2 * inputs.z2[i]) / 2 : stored(now.precision, inputs.z2[i], inputs.unit.z2);
  }
  for (std::size_t i = 0; flat && i < inputs.z2.size(); ++i)
    inputs.z2[i] = inputs.z2[i / fused::kCells1 % kConv2Channels * fused::kCells1];
  std::vector<double> values;
  const PixelOrder order_of_z = order_of_z2(now.precision, layout);
  pixels_to(order_of_z, batch, values, inputs.z2);
  memory.give_stored(s.z2, values, inputs.unit.z2);

  inputs.a1 = now.random.values(batch * kPool1Size, -2, 4);
  const PixelOrder order = order_of_a1(now.precision, layout);
  constexpr double kLargestA1 = 7;
  const double unit = storage.terms || storage.scaled ? power_of_two_scale(kLargestA1, 15, -60) : 1;
  inputs.unit.a1 = unit;
  std::vector<double> terms;  // in units
  for (int term = 0; term < order.terms; ++term) {
    std::vector<double> part(inputs.a1.size());
    for (std::size_t i = 0; i < part.size(); ++i) {
      const double a = std::max(inputs.a1[i], 0.0);
      part[i] = storage.terms ? terms_of(a / unit, order.terms)[term] : stored(now.precision, a, unit) / unit;
    }
    pixels_to(order, batch, terms, part, term);
  }
  if (storage.terms) {
    std::vector<std::uint16_t> halves(terms.size());
    std::ranges::transform(terms, halves.begin(), [](double x) { return bits_of_fp16(float(x)); });
    memory.give(static_cast<const std::uint16_t*>(s.a1), halves);
  } else {
    memory.give_stored(s.a1, terms);
  }
  if (storage.terms || storage.scaled) {
    memory.give_as(&s.bn1.largest_a1(0), std::vector<double>(kConv1Channels, 1.0));
    memory.give_as(&s.bn1.largest_a1(20), {kLargestA1});
  }
  std::ranges::fill(inputs.a1, 0.0);
  for (int term = 0; term < order.terms; ++term) {
    const auto part = pixels_from(order, batch, terms, term);
    for (std::size_t i = 0; i < part.size(); ++i) inputs.a1[i] += unit * part[i];
  }

  inputs.dy2 = now.random.values(batch * kFeatures, -1, 1);
  for (std::size_t i = 0; i < inputs.dy2.size(); ++i) {
    auto& x = inputs.dy2[i];
    x = now.random.bits() % 2 ? stored(now.precision, x, inputs.unit.dy2) : 0;
    if (flat) x = inputs.dy2[i % kConv2Channels];
    inputs.largest_dy2 = std::max(inputs.largest_dy2, std::abs(x));
  }
  memory.give_stored(s.dy2, inputs.dy2, inputs.unit.dy2);
  inputs.route1.resize(batch * kPool1Size);
  const unsigned routes = flat && batch % 2 == 0 ? Routing::kDead : Routing::kDead + 1;
  for (auto& route : inputs.route1) route = std::uint8_t(now.random.bits() % routes);
  memory.give(s.route1, packed_route1(inputs.route1));
  return inputs;
}

// dz2 (batch, channels, 14, 14) as it is stored, and where each window's gradient goes.
struct Dz2 {
  std::vector<double> value;
  std::vector<double> route2;  // (batch, channels, cells)
};
Dz2 dz2_of(const Case& now, const Inputs& inputs, const Bn2& bn, const Storage& storage) {
  const double unit = inputs.unit.dz2;
  Dz2 result{std::vector<double>(inputs.z2.size()), std::vector<double>(now.batch * kFeatures)};
  for (std::int64_t b = 0; b < now.batch; ++b)
    for (int c = 0; c < kConv2Channels; ++c)
      for (int cell = 0; cell < fused::kCells2; ++cell) {
        const auto at = [&](int position) {
          return ((b * kConv2Channels + c) * kPool1Side + 2 * (cell / kPool2Side) + position / 2) * kPool1Side +
                 2 * (cell % kPool2Side) + position % 2;
        };
        int best = 0;
        for (int position = 1; position < 4; ++position)
          if (inputs.z2[at(position)] > inputs.z2[at(best)]) best = position;
        const int reported = bn.scale[c] == 0 ? 0 : best;
        const float y = std::fma(float(bn.scale[c]), float(inputs.z2[at(reported)]), float(bn.shift[c]));
        const double a2 = storage.scaled ? stored(now.precision, y, inputs.unit.a2) : y;
        result.route2[(b * kConv2Channels + c) * fused::kCells2 + cell] = a2 > 0 ? reported : Routing::kDead;
        float rest = 0;  // in tf32 what rounding takes from a position goes to the next
        for (int position = 0; position < 4; ++position) {
          float value = std::fma(bn.kappa[c], float(inputs.z2[at(position)]), bn.alpha[c]);
          if (position == best)
            value = std::fma(float(bn.scale[c]), float(inputs.dy2[(b * fused::kCells2 + cell) * kConv2Channels + c]),
                             value);
          double kept = 0;
          if (storage.terms) {
            for (const float term : terms_of(value / unit, fp16_terms(now.precision))) kept += unit * term;
          } else if (storage.scaled) {
            value = float(value / unit) + rest;
            rest = value - to_fp16(value);
            kept = unit * to_fp16(value);
          } else {
            kept = stored(now.precision, value);
          }
          result.value[at(position)] = kept;
        }
      }
  return result;
}

std::vector<double> magnitudes(const std::vector<double>& values) {
  std::vector<double> result(values);
  for (auto& x : result) x = std::abs(x);
  return result;
}
double largest_of(const std::vector<double>& values) { return std::ranges::max(magnitudes(values)); }

void check_weight_gradient(const Case& now, const Inputs& inputs, const std::vector<double>& dz2,
                           const std::vector<double>& sums) {
  Expected want(fused::kConv2Values);
  const auto sum = [&](std::vector<double>& to, const std::vector<double>& dy, const std::vector<double>& x) {
    reference::conv2d_backward_weight(to.data(), dy.data(), x.data(), now.batch, kConv1Channels, kConv2Channels,
                                      kPool1Side);
  };
  sum(want.value, dz2, inputs.a1);
  sum(want.bound, magnitudes(dz2), magnitudes(inputs.a1));
  for (auto& bound : want.bound) bound *= multiplying(now.precision) + summing(double(now.batch) * fused::kCells1);
  std::vector<double> got(fused::kConv2Values);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const int e = int(i % fused::kConv2Values), value = e & 3, thread = e / 4 % 512, tap = e / (4 * 512);
    const int warp = thread / 32, lane = thread % 32, out = (warp & 3) * 16 + (value >> 1) * 8 + (lane >> 2),
              in = (warp >> 2) * 8 + 2 * (lane & 3) + (value & 1);
    got[(out * kConv1Channels + in) * kTaps + tap] += sums[i];
  }
  check_elements("conv2_sums, added up", now.name,
                 {{"output channel", kConv2Channels}, {"input channel", kConv1Channels}, {"tap", kTaps}}, got, want);
}

// Of which rows of cells a warp of tf32 makes da1 one after the other: the number of a row's group. What rounding takes
// from a cell that relu let pass goes to the next such cell below it in the group.
int group_of(const Case& now, int row) {
  if (now.plan[Phase::kConv2Backward].layout == Layout::kChunks) return row / 7;
  if (now.plan[Phase::kConv2Backward].rows == kPool1Side) return row < 4 ? 0 : row < 7 ? 1 : row < 10 ? 2 : 3;
  return 2 * (row / 7) + (row % 7 >= 4);
}

void check_routed_taps(const Case& now, const Inputs& inputs, const std::vector<double>& dz2, const Samples& samples,
                       const Storage& storage, bool flat, const std::vector<double>& sums) {
  const std::int64_t batch = now.batch, count = batch * kPool1Size;
  // da1 by parts of conv2's channels, which are rounded by themselves.
  const int channels = kConv2Channels / storage.parts;
  std::vector<double> da1(count), of_parts(count), terms(count), part(count);
  const auto backward = [&](const std::vector<double>& dz2, const std::vector<double>& filter, int own_channels) {
    reference::conv2d_backward_data(part.data(), dz2.data(), filter.data(), batch, kConv1Channels, own_channels,
                                    kPool1Side);
  };
  for (int first = 0; first < kConv2Channels; first += channels) {
    std::vector<double> own;
    for (std::int64_t b = 0; b < batch; ++b) {
      const auto from = dz2.begin() + (b * kConv2Channels + first) * fused::kCells1;
      own.insert(own.end(), from, from + channels * fused::kCells1);
    }
    const auto filter = inputs.filter.begin() + first * kConv1Channels * kTaps;
    backward(own, {filter, filter + channels * kConv1Channels * kTaps}, channels);
    for (std::int64_t i = 0; i < count; ++i) da1[i] += part[i], of_parts[i] += std::abs(part[i]);
  }
  backward(magnitudes(dz2), magnitudes(inputs.filter), kConv2Channels);
  terms = part;

  const Axes axes{{"channel", kConv1Channels}, {"tap, sum or unused column", fused::kRoutedTapColumns}};
  const double summed = multiplying(now.precision) + summing(kConv2Channels * kTaps),
               adding = multiplying(now.precision) + summing(double(batch) * fused::kCells1),
               smallest = storage.terms ? std::ldexp(largest_of(da1), -39) : 0;
  Expected want(count_of(axes));
  std::vector<double> roundings(want.value.size());
  const auto pixel_at = [&](std::int64_t i, int column) {  // that cell i's gradient meets
    const int cell = int(i % fused::kCells1), route = inputs.route1[i];
    const int y = 2 * (cell / kPool1Side) + route / 2 + column / 3 - 1,
              x = 2 * (cell % kPool1Side) + route % 2 + column % 3 - 1;
    const bool inside = y >= 0 && y < kImageSide && x >= 0 && x < kImageSide;
    const auto* image = samples.image(kGraphStep, now.batch, i / kPool1Size);
    return column == kTaps ? 1 : inside ? storage.pixel(image[y * kImageSide + x]) : storage.outside;
  };
  // The cell that gets what rounding took from cell i, or -1.
  const auto next_of = [&](std::int64_t i) -> std::int64_t {
    const int row = int(i % fused::kCells1) / kPool1Side;
    for (int next = row + 1; storage.scaled && next < kPool1Side && group_of(now, next) == group_of(now, row); ++next)
      if (const std::int64_t k = i + (next - row) * kPool1Side; inputs.route1[k] != Routing::kDead) return k;
    return -1;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const int c = int(i / fused::kCells1) % kConv1Channels;
    if (inputs.route1[i] == Routing::kDead) continue;
    const std::int64_t next = next_of(i);
    const double rounded = storage.of_da1 * of_parts[i] + storage.parts * storing_small(now.precision, inputs.unit.da1);
    for (int column = 0; column <= kTaps; ++column) {
      const double pixel = pixel_at(i, column);
      const int to = c * fused::kRoutedTapColumns + column;
      want.value[to] += da1[i] * pixel;
      want.bound[to] += std::abs(pixel) * (adding * std::abs(da1[i]) + summed * terms[i] + smallest);
      // What is carried on is multiplied by the next cell's pixel instead.
      const double of_rounding = rounded * (pixel - (next < 0 ? 0 : pixel_at(next, column)));
      roundings[to] += flat ? std::abs(of_rounding) : of_rounding * of_rounding;
    }
  }
  // Roundings of da1 are independent of each other, so their squares add up; but not where da1 repeats.
  for (std::size_t i = 0; i < roundings.size(); ++i)
    if (i % fused::kRoutedTapColumns <= kTaps) want.bound[i] += flat ? roundings[i] : 4 * std::sqrt(roundings[i]);
  std::vector<double> got(want.value.size());
  for (std::size_t i = 0; i < sums.size(); ++i) got[i % got.size()] += sums[i];
  check_elements("routed_tap_sums, added up", now.name, axes, got, want);
}

// bn2's parameters, their gradients and the sign that goes to update.
void check_bn2(PhaseMemory& memory, const Case& now, const Bn2& bn, double learning_rate) {
  const State& s = memory.state();
  const std::int64_t gamma_at = kParameters[kBn2Weight].offset, beta_at = kParameters[kBn2Bias].offset;
  const Axes channels{{"channel", kConv2Channels}};
  std::vector<double> sign;
  Expected dgamma(kConv2Channels), dbeta(kConv2Channels), gamma(kConv2Channels), beta(kConv2Channels);
  const auto set = [&](Expected& gradient, Expected& updated, int c, double d, double old) {
    constexpr double kUnit = 0x1.01p-24;
    gradient.value[c] = d, gradient.bound[c] = kUnit * std::abs(d);
    updated.value[c] = old - learning_rate * d;
    updated.bound[c] = kUnit * (2 * learning_rate * std::abs(d) + std::abs(updated.value[c]));
  };
  for (int c = 0; c < kConv2Channels; ++c) {
    sign.push_back(bn.gamma[c] < 0 ? -1 : 1);
    set(dgamma, gamma, c, sign[c] * bn.dgamma[c], bn.gamma[c]);
    set(dbeta, beta, c, bn.dbeta[c], bn.beta[c]);
  }
  check_equal("bn2_sign", now.name, channels, memory.result(s.bn2_sign, kConv2Channels), sign);
  const auto check = [&](const char* array, const float* slab, std::int64_t at, const Expected& want) {
    check_elements(array, now.name, channels, memory.result(slab + at, kConv2Channels), want);
  };
  check("bn2.weight", s.parameters, gamma_at, gamma);
  check("bn2.bias", s.parameters, beta_at, beta);
  if (s.gradients) check("bn2.weight's gradient", s.gradients, gamma_at, dgamma);
  if (s.gradients) check("bn2.bias's gradient", s.gradients, beta_at, dbeta);
}

void test(Case now, bool flat) {
  if (flat) now.name += ", the same everywhere";
  PhaseMemory memory = now.memory();
  State& s = memory.state();
  const bool probes = now.batch % 2;  // asks for gradients and routing
  const Storage storage(now);
  const double learning_rate = 0.0625;
  const Samples samples(now.random, now.batch);
  Inputs inputs = give_inputs(memory, now, storage, flat);
  const Bn2 bn(now, s);
  memory.give(s.samples.images, samples.images);
  memory.give(s.samples.order, samples.order);
  const auto give_bn2 = [&](float& to, const std::vector<double>& values, double factor) {  // of z2 in its unit
    std::vector<double> of_stored(values);
    for (auto& x : of_stored) x *= factor;
    memory.give_as(&to, of_stored);
  };
  give_bn2(s.bn2.scale(0), bn.scale, inputs.unit.z2);
  give_bn2(s.bn2.shift(0), bn.shift, 1);
  give_bn2(s.bn2.mean(0), bn.mean, 1 / inputs.unit.z2);
  give_bn2(s.bn2.inv_sigma(0), bn.inv_sigma, inputs.unit.z2);
  give_bn2(s.bn2.mean_rest(0), bn.mean_rest, 1 / inputs.unit.z2);
  memory.give_as(s.parameters + kParameters[kBn2Weight].offset, bn.gamma);
  memory.give_as(s.parameters + kParameters[kBn2Bias].offset, bn.beta);
  memory.give_as(s.learning_rate, {learning_rate});
  memory.give_as(s.dy2_sums, bn.sums);
  double next_scale = 0;
  if (storage.terms || storage.scaled) {
    auto largest = now.random.values(s.dy2_maxima(), 0, 0.5 * inputs.largest_dy2);
    largest.end()[-60] = inputs.largest_dy2;
    memory.give_as(s.dy2_max, largest);
    inputs.unit.dz2 = scale_of(bn.largest_dz2(s, inputs.largest_dy2));
    auto weights = now.random.values(fused::kConv2Values / 32, 0, 1);
    weights[300] = 3;
    memory.give_as(s.conv2_max, weights);
    next_scale = weight_scale(3);
    memory.give_scale(fused::kConv2Scale, inputs.unit.filter);
  }
  if (storage.scaled) {
    const double largest = largest_of(inputs.filter);
    memory.give_scale(fused::kLargestConv2, largest);
    // Of products of values below 2^15 units of dz2 and of weights.
    inputs.unit.da1 = inputs.unit.dz2 * power_of_two_scale(std::ldexp(kConv2Channels * kTaps * largest, 15), 15, -100);
  }
  if (!probes) s.gradients = nullptr, s.route2 = nullptr;
  memory.run([&](const State& s, cudaStream_t stream) { now.launch(Phase::kConv2Backward, s, stream); });

  const Dz2 dz2 = dz2_of(now, inputs, bn, storage);
  check_bn2(memory, now, bn, learning_rate);
  if (storage.terms || storage.scaled)
    memory.check_scale("conv2's next weights", now.name, fused::kNextConv2Scale, next_scale);
  if (probes)
    check_equal("route2", now.name, {{"image", now.batch}, {"channel", kConv2Channels}, {"cell", fused::kCells2}},
                memory.result(s.route2, now.batch * kFeatures), dz2.route2);
  const int blocks = now.plan.conv2_backward_blocks;
  check_weight_gradient(now, inputs, dz2.value, memory.result(s.conv2_sums, blocks * fused::kConv2Values));
  check_routed_taps(now, inputs, dz2.value, samples, storage, flat,
                    memory.result(s.routed_tap_sums, blocks * kConv1Channels * fused::kRoutedTapColumns));
  memory.check_rest(now.name);
}

}  // namespace

int main() {
  require_gpu();
  require_code(cuda::kTensorCapability);
  // Halves of images; whole ones; several items a block, more than its stages, in full rounds and in ragged ones; sums
  // of more clusters than eight.
  for_every_size(
      Phase::kConv2Backward, {{132, 1}, {12, 5}, {4, 2}, {7, 7}, {4, 4}, {9, 11}, {5, 13}, {2, 11}, {2, 7}, {72, 129}},
      [](Case now) {
        test(now, false);
        if (scaled(now.precision)) test(now, true);  // where it carries on what rounding takes
      },
      7);  // the emulator takes seconds for an image
  return finish_phase();
}
