// update of `fused` by itself, and what a training starts from (repack_weights and start_bn1): gradients and parameters
// from the sums that other phases left, conv1's in closed form, and what the next step's kernels read.
#include <optional>

#include "fused_fc1.h"
#include "kernels/fused/shared/pixels.h"

using namespace testing;

namespace {

constexpr int kNoScale = 5;  // a channel of bn1 whose scale is 0: of ties the first wins
constexpr double kLearningRate = 0.125, kUnit = 0x1.01p-24;

double updated(double old, double gradient) { return old - kLearningRate * gradient; }
double updating(double old, double gradient) {  // what its rounding loses
  return kUnit * (std::abs(updated(old, gradient)) + std::abs(kLearningRate * gradient));
}

std::vector<double> added_up(const std::vector<double>& rows, std::int64_t width, bool magnitudes = false) {
  std::vector<double> total(width);
  for (std::size_t i = 0; i < rows.size(); ++i) total[i % width] += magnitudes ? std::abs(rows[i]) : rows[i];
  return total;
}

// Floats, except for a copy in double.
std::vector<double> floats(Random& random, std::int64_t count, double low, double high) {
  auto values = random.values(count, low, high);
  for (auto& value : values) value = float(value);
  return values;
}

// ---- conv1 and bn1 --------------------------------------------------------------------------------------------------

// A filter as conv forward uses it, except for gamma's sign: terms of 16 bits, after a division by a power of two.
struct Filter {
  double divisor = 1, value[kTaps] = {}, terms[2][kTaps] = {};
  int count;

  Filter(Precision precision, const double* weight, double sign) : count(conv1_terms(precision)) {
    double largest = 0;
    for (int tap = 0; tap < kTaps; ++tap) largest = std::max(largest, std::abs(weight[tap]));
    if (largest > 0) divisor = std::ldexp(1.0, std::ilogb(largest));
    for (int tap = 0; tap < kTaps; ++tap) {
      float rest = float(sign * weight[tap] / divisor);
      for (int term = 0; term < count; ++term) {
        terms[term][tap] = to_fp16(rest);
        rest -= float(terms[term][tap]);
        value[tap] += divisor * terms[term][tap];
      }
    }
  }
};

// Mean and covariance of the pixels under a filter, and what follows for a filter.
struct Pixels {
  double mean[kTaps], covariance[kTaps][kTaps];

  Pixels(const std::vector<double>& moments, double inv_n) {
    constexpr double kScale = fused::MomentPixels::kScale;
    for (int j = 0; j < kTaps; ++j) mean[j] = kScale * inv_n * moments[j];
    for (int j = 0, at = kTaps; j < kTaps; ++j)
      for (int k = j; k < kTaps; ++k, ++at)
        covariance[j][k] = covariance[k][j] = kScale * kScale * inv_n * moments[at] - mean[j] * mean[k];
  }
  double mean_of(const Filter& filter) const {
    double total = 0;
    for (int tap = 0; tap < kTaps; ++tap) total += filter.value[tap] * mean[tap];
    return total;
  }
  double covariance_of(const Filter& filter, int tap) const {
    double total = 0;
    for (int k = 0; k < kTaps; ++k) total += covariance[tap][k] * filter.value[k];
    return total;
  }
  double inv_sigma_of(const Filter& filter) const {
    double variance = 0;
    for (int tap = 0; tap < kTaps; ++tap) variance += filter.value[tap] * covariance_of(filter, tap);
    return 1 / std::sqrt(std::max(variance, 0.0) + kBatchNormEpsilon);
  }
};

// The form in which products take pixels.
struct Form {
  int (*of)(int);
  double scale, zero;

  Form(Precision precision) {
    const auto set = [&]<class Pixels>(Pixels) { of = Pixels::of, scale = Pixels::kScale, zero = Pixels::kZero; };
    if (precision == Precision::kBf16)
      set(fused::Bf16Pixels());
    else
      set(fused::ExactPixels());
  }
};

// What conv forward reads of conv1 and bn1, from parameters and pixels.
void check_next_conv1(PhaseMemory& memory, const Case& now, const std::vector<double>& moments,
                      const std::vector<double>& weight, const std::vector<double>& gamma,
                      const std::vector<double>& beta) {
  const State& s = memory.state();
  const Pixels pixels(moments, s.inv_n1);
  const Form form(now.precision);
  const int terms = conv1_terms(now.precision), rows = fp16_terms(now.precision) > 0 || scaled(now.precision) ? 4 : 3;
  Expected bn1(rows * kConv1Channels);
  std::vector<double> packed(terms * 4 * kConv1Channels * 16);
  for (int c = 0; c < kConv1Channels; ++c) {
    const Filter filter(now.precision, weight.data() + c * kTaps, gamma[c] < 0 ? -1 : 1);
    double total = 0, most = 0;
    for (int tap = 0; tap < kTaps; ++tap) {
      const double w = gamma[c] < 0 ? -weight[c * kTaps + tap] : weight[c * kTaps + tap];
      total += filter.value[tap];
      most += std::max(w * form.of(255), w * form.of(0));
      for (int term = 0; term < terms; ++term)
        for (int position = 0; position < 4; ++position) {
          const int row = tap / 3 + (gamma[c] == 0 ? 0 : position / 2),
                    column = tap % 3 + (gamma[c] == 0 ? 0 : position % 2);
          packed[((term * 4 + position) * kConv1Channels + c) * 16 + 4 * row + column] =
              bits_of_fp16(float(filter.terms[term][tap]));
        }
    }
    const double scale = std::abs(gamma[c]) * pixels.inv_sigma_of(filter),
                 shift = beta[c] - scale * (pixels.mean_of(filter) + form.scale * form.zero * total);
    const auto set = [&](int row, double value, double bound) {
      bn1.value[row * kConv1Channels + c] = value, bn1.bound[row * kConv1Channels + c] = bound;
    };
    set(0, scale * form.scale, kUnit * scale * form.scale + 1e-15);
    set(1, shift, kUnit * std::abs(shift) + 1e-12);
    const double largest = fused::kRoundingSlack * scale * form.scale * most;
    if (rows == 4) set(2, std::max(largest + shift, 0.0), std::ldexp(largest + std::abs(shift), -21));
    set(rows - 1, filter.divisor, 0);
  }
  const Axes channels{{"row", rows}, {"channel", kConv1Channels}};
  auto got = memory.result(&s.bn1.scale(0), 2 * kConv1Channels);
  if (rows == 4) std::ranges::copy(memory.result(&s.bn1.largest_a1(0), kConv1Channels), std::back_inserter(got));
  std::ranges::copy(memory.result(&s.bn1.filter_scale(0), kConv1Channels), std::back_inserter(got));
  check_elements("bn1", now.name, channels, got, bn1);
  check_equal("conv1", now.name, {{"term", terms}, {"position", 4}, {"channel", kConv1Channels}, {"pixel", 16}},
              memory.result(static_cast<const std::uint16_t*>(s.conv1), std::int64_t(packed.size())), packed);
  std::vector<double> copies;
  for (int block = 0; block < fused::kConv1Blocks; ++block) copies.insert(copies.end(), moments.begin(), moments.end());
  check_equal("moments", now.name, {{"block", fused::kConv1Blocks}, {"moment", fused::kMoments}},
              memory.result(s.moments, fused::kConv1Blocks * fused::kMoments), copies);
}

struct Conv1 {
  static constexpr std::int64_t kWeight = kParameters[kConv1Weight].offset, kGamma = kParameters[kBn1Weight].offset,
                                kBeta = kParameters[kBn1Bias].offset;
  std::vector<double> weight, gamma, beta;

  Conv1(PhaseMemory& memory, Random& random)
      : weight(floats(random, kConv1Channels * kTaps, -0.5, 0.5)),
        gamma(floats(random, kConv1Channels, -1.5, 1.5)),
        beta(floats(random, kConv1Channels, -0.5, 0.5)) {
    gamma[kNoScale] = 0;
    const State& s = memory.state();
    memory.give_as(s.parameters + kWeight, weight);
    memory.give_as(s.parameters + kGamma, gamma);
    memory.give_as(s.parameters + kBeta, beta);
  }
};

// The gradients in closed form and the update, of a batch with these moments.
void check_conv1(PhaseMemory& memory, const Case& now, const Conv1& old, const std::vector<double>& routed_taps,
                 const std::vector<double>& moments, const std::vector<double>& next_moments) {
  const State& s = memory.state();
  const Pixels pixels(moments, s.inv_n1);
  constexpr int kWidth = kConv1Channels * fused::kRoutedTapColumns;
  const auto sums = added_up(routed_taps, kWidth), sizes = added_up(routed_taps, kWidth, true);
  const double adding = summing(now.plan.conv2_backward_blocks);
  const Form form(now.precision);
  Expected weight(kConv1Channels * kTaps), gamma(kConv1Channels), beta(kConv1Channels);
  for (int c = 0; c < kConv1Channels; ++c) {
    const Filter filter(now.precision, old.weight.data() + c * kTaps, 1);
    const double inv_sigma = pixels.inv_sigma_of(filter);
    const double* g = sums.data() + c * fused::kRoutedTapColumns;
    const double* size = sizes.data() + c * fused::kRoutedTapColumns;
    const double d = g[kTaps], error_of_d = adding * size[kTaps];
    double gt[kTaps], error[kTaps], w_gt = 0, error_of_w_gt = 0;
    for (int tap = 0; tap < kTaps; ++tap) {
      gt[tap] = form.scale * (g[tap] - form.zero * d) - d * pixels.mean[tap];
      error[tap] = form.scale * adding * size[tap] + (form.scale + std::abs(pixels.mean[tap])) * error_of_d;
      w_gt += filter.value[tap] * gt[tap];
      error_of_w_gt += std::abs(filter.value[tap]) * error[tap];
    }
    for (int tap = 0; tap < kTaps; ++tap) {
      const double cw = inv_sigma * inv_sigma * pixels.covariance_of(filter, tap);
      auto& dw = weight.value[c * kTaps + tap];
      dw = old.gamma[c] * inv_sigma * (gt[tap] - w_gt * cw);
      weight.bound[c * kTaps + tap] = std::abs(old.gamma[c]) * inv_sigma * (error[tap] + error_of_w_gt * std::abs(cw)) +
                                      kUnit * std::abs(dw) + 1e-13;
    }
    gamma.value[c] = w_gt * inv_sigma;
    gamma.bound[c] = error_of_w_gt * inv_sigma + kUnit * std::abs(gamma.value[c]) + 1e-13;
    beta.value[c] = d;
    beta.bound[c] = error_of_d + kUnit * std::abs(d);
  }
  const auto check = [&](const std::string& array, const Axes& axes, std::int64_t at, const Expected& gradient,
                         const std::vector<double>& old) {
    const std::int64_t count = count_of(axes);
    Expected want(count);
    for (std::int64_t i = 0; i < count; ++i) {
      want.value[i] = updated(old[i], gradient.value[i]);
      want.bound[i] = kLearningRate * gradient.bound[i] + updating(old[i], gradient.value[i]);
    }
    check_elements(array + "'s gradient", now.name, axes, memory.result(s.gradients + at, count), gradient);
    const auto got = memory.result(s.parameters + at, count);
    check_elements(array, now.name, axes, got, want);
    return got;
  };
  const Axes channels{{"channel", kConv1Channels}};
  const auto new_weight =
      check("conv1.weight", {{"channel", kConv1Channels}, {"tap", kTaps}}, Conv1::kWeight, weight, old.weight);
  const auto new_gamma = check("bn1.weight", channels, Conv1::kGamma, gamma, old.gamma);
  const auto new_beta = check("bn1.bias", channels, Conv1::kBeta, beta, old.beta);
  check_next_conv1(memory, now, next_moments, new_weight, new_gamma, new_beta);
}

// ---- conv2 ----------------------------------------------------------------------------------------------------------

constexpr Axis kOut{"output channel", kConv2Channels}, kIn{"input channel", kConv1Channels}, kTap{"tap", kTaps};

// conv2.weight (out, in, tap), signs folded in, as conv forward and its dgrad read it.
void check_packed_conv2(PhaseMemory& memory, const Case& now, const std::vector<double>& weight, double scale) {
  using Pieces = fused::DgradFilter;
  const State& s = memory.state();
  const bool wgmma = now.gpu.wgmma;
  const int terms = fp16_terms(now.precision), copies = std::max(terms, 1);
  constexpr int kValues = fused::kConv2Values;
  std::vector<double> forward(copies * kValues), dgrad(copies * kValues);
  std::vector<double> pieces(Pieces::kBytes / 2, 0xffff);  // its zeros stay as they are
  for (int out = 0; out < kConv2Channels; ++out)
    for (int in = 0; in < kConv1Channels; ++in)
      for (int tap = 0; tap < kTaps; ++tap) {
        const double w = weight[(out * kConv1Channels + in) * kTaps + tap];
        const int flipped = kTaps - 1 - tap, u = flipped / 3, v = flipped % 3;
        const int r = out & 15, row = ((out & 48) + 8 * (r >> 1 & 1) + 2 * (r >> 2) + (r & 1)) * kTaps + tap;
        const int chunked = ((tap * (kConv1Channels / 8) + in / 8) * kConv2Channels + out) * 8 + in % 8;
        const auto parts = terms_of(w / scale, terms);
        for (int term = 0; term < terms; ++term) {
          const int piece = (term * 3 + u) * (kConv2Channels / 8) + out / 8;
          forward[wgmma ? term * kValues + chunked : row * kConv1Channels * terms + place_of(in, term, terms)] =
              bits_of_fp16(parts[term]);
          dgrad[wgmma ? ((piece * 3 + 2 - v) * kConv1Channels + in) * 8 + out % 8
                      : (in * kTaps + flipped) * kConv2Channels * terms + place_of(out, term, terms)] =
              bits_of_fp16(parts[term]);
        }
        if (terms > 0) continue;
        forward[wgmma ? chunked : row * kConv1Channels + in] = stored(now.precision, w, scale);
        dgrad[(in * kTaps + flipped) * kConv2Channels + out] = stored(now.precision, w, scale);
        const int at = (u * Pieces::kChunks + out / 8) * Pieces::kPieceBytes + Pieces::kZeroBytes +
                       (2 - v) * Pieces::kTapBytes + in * 16;
        pieces[at / 2 + out % 8] = bits_of(now.precision, w, scale);
      }
  const Axes places{{"place", std::int64_t(forward.size())}};
  const auto halves = [&](const void* from, std::size_t count) {
    return memory.result(static_cast<const std::uint16_t*>(from), std::int64_t(count));
  };
  if (terms > 0) {
    check_equal("conv2_forward", now.name, places, halves(s.conv2_forward, forward.size()), forward);
    check_equal("conv2_dgrad", now.name, places, halves(s.conv2_dgrad, dgrad.size()), dgrad);
    return;
  }
  const std::string where = with_unit(now.name, now.precision, scale);
  check_equal("conv2_forward", where, places, memory.stored_result(s.conv2_forward, kValues, scale), forward);
  if (wgmma)
    check_equal("conv2_dgrad", now.name, {{"place", std::int64_t(pieces.size())}}, halves(s.conv2_dgrad, pieces.size()),
                pieces);
  else
    check_equal("conv2_dgrad", where, places, memory.stored_result(s.conv2_dgrad, kValues, scale), dgrad);
}

// Element (out, in, tap) of value `e` of conv2_sums.
int weight_of(int e) {
  const int value = e & 3, thread = e / 4 % 512, tap = e / (4 * 512), warp = thread / 32, lane = thread % 32;
  const int out = (warp & 3) * 16 + (value >> 1) * 8 + (lane >> 2), in = (warp >> 2) * 8 + 2 * (lane & 3) + (value & 1);
  return (out * kConv1Channels + in) * kTaps + tap;
}

// The largest of every 32 weights, in the order of place(i).
template <class Place>
std::vector<double> largest_of_warps(const std::vector<double>& weight, Place place) {
  std::vector<double> largest(fused::kConv2Values / 32);
  for (int i = 0; i < fused::kConv2Values; ++i) largest[i / 32] = std::max(largest[i / 32], std::abs(weight[place(i)]));
  return largest;
}

void check_conv2(PhaseMemory& memory, const Case& now, const std::vector<double>& old, const std::vector<double>& rows,
                 const std::vector<double>& old_sign, const std::vector<double>& gamma, double scale) {
  const State& s = memory.state();
  constexpr int kValues = fused::kConv2Values;
  const std::int64_t at = kParameters[kConv2Weight].offset;
  const auto sums = added_up(rows, kValues), sizes = added_up(rows, kValues, true);
  Expected gradient(kValues), want(kValues);
  for (int e = 0; e < kValues; ++e) {
    const int i = weight_of(e);
    gradient.value[i] = old_sign[i / (kConv1Channels * kTaps)] * sums[e];
    gradient.bound[i] = summing(now.plan.conv2_backward_blocks) * sizes[e];
    want.value[i] = updated(old[i], gradient.value[i]);
    want.bound[i] = kLearningRate * gradient.bound[i] + updating(old[i], gradient.value[i]);
  }
  const Axes axes{kOut, kIn, kTap};
  check_elements("conv2.weight's gradient", now.name, axes, memory.result(s.gradients + at, kValues), gradient);
  auto weight = memory.result(s.parameters + at, kValues);
  check_elements("conv2.weight", now.name, axes, weight, want);
  if (now.scales_conv2()) {
    check_equal("conv2_max", now.name, {{"warp", kValues / 32}}, memory.result(s.conv2_max, kValues / 32),
                largest_of_warps(weight, weight_of));
    memory.check_scale("conv2", now.name, fused::kConv2Scale, scale);
  }
  for (int i = 0; i < kValues; ++i)
    if (gamma[i / (kConv1Channels * kTaps)] < 0) weight[i] = -weight[i];
  check_packed_conv2(memory, now, weight, scale);
}

// ---- head -----------------------------------------------------------------------------------------------------------

void check_head(PhaseMemory& memory, const Case& now, const std::vector<double>& old, const std::vector<double>& rows) {
  const State& s = memory.state();
  const auto sums = added_up(rows, fused::kHeadValues), sizes = added_up(rows, fused::kHeadValues, true);
  const double adding = summing(s.head_blocks);
  int first = 0;
  for (const auto index : {kFc2Weight, kFc1Bias, kFc2Bias}) {
    const auto& parameter = kParameters[index];
    const int count = int(parameter.size);
    Expected gradient(count), want(count);
    for (int i = 0; i < count; ++i) {
      gradient.value[i] = sums[first + i];
      gradient.bound[i] = adding * sizes[first + i];
      want.value[i] = updated(old[first + i], gradient.value[i]);
      want.bound[i] = kLearningRate * gradient.bound[i] + updating(old[first + i], gradient.value[i]);
    }
    const Axes axes{{"element", count}};
    const std::string name = parameter.name;
    check_elements(name + "'s gradient", now.name, axes, memory.result(s.gradients + parameter.offset, count),
                   gradient);
    check_elements(name, now.name, axes, memory.result(s.parameters + parameter.offset, count), want);
    first += count;
  }
  Expected loss(1);
  loss.value[0] = sums[first] / now.batch;
  loss.bound[0] = adding * sizes[first] / now.batch;
  const StepResult* result = s.results + kGraphStep;
  check_elements("loss", now.name, {{"step", 1}}, memory.result(&result->loss, 1), loss);
  check_equal("hits", now.name, {{"step", 1}}, memory.result(&result->correct, 1), {sums[first + 1]});
}

// ---- the launches ---------------------------------------------------------------------------------------------------

// An image's, on their grid.
std::vector<double> pixel_moments(const std::uint8_t* image) {
  auto moments = moments_of(image);
  for (auto& moment : moments) moment = std::rint(moment * 2048) / 2048;
  return moments;
}

// Of the batch that begins at `step` of the order.
std::vector<double> moments_of_batch(const Samples& samples, const Case& now, int step) {
  std::vector<double> total(fused::kMoments);
  for (int b = 0; b < now.batch; ++b) {
    const auto moments = pixel_moments(samples.image(step, now.batch, b));
    for (int i = 0; i < fused::kMoments; ++i) total[i] += moments[i];
  }
  return total;
}

// What fc leaves for fc1's gradient, which comes with the update behind it.
struct Fc1Gradient {
  static constexpr double kNextScale = 1.0 / 1024;
  std::vector<double> dh, a2, master;

  Fc1Gradient(Case& now, PhaseMemory& memory) : master(floats(now.random, kHidden * kFeatures, -0.05, 0.05)) {
    const State& s = memory.state();
    const double dh_unit = scaled(now.precision) ? std::ldexp(1.0, -14) : 1,
                 a2_unit = scaled(now.precision) ? std::ldexp(1.0, -6) : 1;
    const Inputs inputs(now, memory);
    const auto scale = floats(now.random, kConv2Channels, 0.5, 1.5), shift = floats(now.random, kConv2Channels, -1, 1);
    memory.give_as(&s.bn2.scale(0), times(inputs.z2_unit, scale));
    memory.give_as(&s.bn2.shift(0), shift);
    for (int i = 0; i < now.batch * kHidden; ++i)
      dh.push_back(now.random.bits() % 4 ? stored(now.precision, now.random.uniform(-1, 1), dh_unit) : 0);
    memory.give_stored(s.dh, dh, dh_unit);
    memory.give_as(s.parameters + kParameters[kFc1Weight].offset, master);
    if (scaled(now.precision)) {
      memory.give_scale(fused::kA2Scale, a2_unit);
      memory.give_scale(fused::kDhScale, dh_unit);
    }
    a2 = a2_of(now, inputs.pooled_z2, scale, shift, a2_unit);
  }
};

void test_update(Case now) {
  PhaseMemory memory = now.memory();
  const State& s = memory.state();
  const int blocks = now.plan.conv2_backward_blocks, head_blocks = s.head_blocks;
  std::optional<Fc1Gradient> fc1;
  if (now.plan.with_fc) fc1.emplace(now, memory);
  const Samples samples(now.random, now.batch);
  const auto moments = moments_of_batch(samples, now, kGraphStep),
             next = moments_of_batch(samples, now, kGraphStep + 1);
  const Conv1 conv1(memory, now.random);
  auto routed_taps = floats(now.random, blocks * kConv1Channels * fused::kRoutedTapColumns, -100, 100);
  const auto conv2_sums = floats(now.random, blocks * fused::kConv2Values, -1, 1);
  const auto conv2 = floats(now.random, fused::kConv2Values, -0.1, 0.1);
  const auto gamma = floats(now.random, kConv2Channels, -1, 1);
  auto sign = now.random.values(kConv2Channels, -1, 1);
  auto head_sums = floats(now.random, head_blocks * fused::kHeadValues, -1, 1);
  const auto head = floats(now.random, fused::kHeadValues - 2, -1, 1);
  const double scale = std::ldexp(1.0, -9);
  for (std::size_t i = 0; i < routed_taps.size(); ++i) {
    const int column = int(i % fused::kRoutedTapColumns), c = int(i / fused::kRoutedTapColumns) % kConv1Channels;
    if (column > kTaps || c == kNoScale) routed_taps[i] = 0;
  }
  for (auto& x : sign) x = x < 0 ? -1 : 1;
  for (int block = 0; block < head_blocks; ++block) {  // loss and hits
    auto* values = head_sums.data() + (block + 1) * fused::kHeadValues - 2;
    values[0] = std::abs(values[0]), values[1] = block % 3;
  }
  std::vector<double> moment_sums(head_blocks * fused::kMoments), copies;
  for (int b = 0; b < now.batch; ++b) {
    const auto of_image = pixel_moments(samples.image(kGraphStep + 1, now.batch, b));
    for (int i = 0; i < fused::kMoments; ++i) moment_sums[b % head_blocks * fused::kMoments + i] += of_image[i];
  }
  for (int block = 0; block < fused::kConv1Blocks; ++block) copies.insert(copies.end(), moments.begin(), moments.end());

  memory.give_as(s.learning_rate, {kLearningRate});
  memory.give_as(s.parameters + kParameters[kConv2Weight].offset, conv2);
  memory.give_as(s.parameters + kParameters[kBn2Weight].offset, gamma);
  memory.give_as(s.parameters + kParameters[kFc2Weight].offset, {head.begin(), head.begin() + kClasses * kHidden});
  memory.give_as(s.parameters + kParameters[kFc1Bias].offset, {head.end() - kHidden - kClasses, head.end() - kClasses});
  memory.give_as(s.parameters + kParameters[kFc2Bias].offset, {head.end() - kClasses, head.end()});
  memory.give_as(s.routed_tap_sums, routed_taps);
  memory.give_as(s.conv2_sums, conv2_sums);
  memory.give_as(s.bn2_sign, sign);
  memory.give_as(s.head_sums, head_sums);
  memory.give(s.moment_sums, moment_sums);
  memory.give(s.moments, copies);
  const double fc1_scale = Fc1Gradient::kNextScale;
  if (now.scales_conv2()) memory.give_scale(fused::kNextConv2Scale, scale);
  if (scaled(now.precision)) memory.give_scale(fused::kNextFc1Scale, fc1_scale);
  memory.run([&](const State& s, cudaStream_t stream) {
    now.launch(fc1 ? Phase::kUpdateWithFc1 : Phase::kUpdate, s, stream);
  });

  check_conv1(memory, now, conv1, routed_taps, moments, next);
  check_conv2(memory, now, conv2, conv2_sums, sign, gamma, scale);
  if (scaled(now.precision)) memory.check_scale("fc1", now.name, fused::kFc1Scale, fc1_scale);
  check_head(memory, now, head, head_sums);
  if (fc1)
    check_fc1_update(memory, now, fc1->dh, fc1->a2, fc1->master, kLearningRate, scaled(now.precision) ? fc1_scale : 1);
  memory.check_rest(now.name);
}

void test_prepare(Case now) {
  now.name += ", prepare";
  PhaseMemory memory = now.memory();
  const State& s = memory.state();
  const Samples samples(now.random, now.batch);
  const Conv1 conv1(memory, now.random);
  std::vector<double> moments;
  for (int i = 0; i < PhaseMemory::kSamples; ++i)
    std::ranges::copy(pixel_moments(samples.images.data() + i * kImagePixels), std::back_inserter(moments));
  memory.give(s.samples.moments, moments);
  memory.give(s.samples.order, samples.order);
  memory.run([&](const State& s, cudaStream_t stream) { now.launch(Phase::kStartBatchNorm, s, stream); });
  check_next_conv1(memory, now, moments_of_batch(samples, now, kGraphStep), conv1.weight, conv1.gamma, conv1.beta);
  memory.check_rest(now.name);
}

void test_pack(Case now) {
  now.name += ", pack";
  PhaseMemory memory = now.memory();
  const State& s = memory.state();
  auto conv2 = floats(now.random, fused::kConv2Values, -0.1, 0.1);
  const auto gamma = floats(now.random, kConv2Channels, -1, 1),
             fc1 = floats(now.random, kHidden * kFeatures, -0.1, 0.1);
  memory.give_as(s.parameters + kParameters[kConv2Weight].offset, conv2);
  memory.give_as(s.parameters + kParameters[kBn2Weight].offset, gamma);
  memory.give_as(s.parameters + kParameters[kFc1Weight].offset, fc1);
  memory.run([&](const State& s, cudaStream_t stream) { fused::repack_weights(now.rows, s, stream); });
  const auto largest_of = [](const std::vector<double>& weights) {
    double largest = 0;
    for (const double w : weights) largest = std::max(largest, std::abs(w));
    return largest;
  };
  const double scale = weight_scale(largest_of(conv2));
  if (now.scales_conv2()) {
    memory.check_scale("conv2", now.name, fused::kConv2Scale, scale);
    check_equal("conv2_max", now.name, {{"warp", fused::kConv2Values / 32}},
                memory.result(s.conv2_max, fused::kConv2Values / 32), largest_of_warps(conv2, [](int i) { return i; }));
  }
  for (int i = 0; i < fused::kConv2Values; ++i)
    if (gamma[i / (kConv1Channels * kTaps)] < 0) conv2[i] = -conv2[i];
  check_packed_conv2(memory, now, conv2, scale);
  double fc1_scale = 1;
  if (scaled(now.precision)) {
    constexpr std::int64_t kShares = 2 * fused::kCells2 * fused::kGradientWarps, kShare = kHidden * kFeatures / kShares;
    std::vector<double> of_shares;
    for (std::int64_t i = 0; i < kShares; ++i)
      of_shares.push_back(largest_of({fc1.begin() + i * kShare, fc1.begin() + (i + 1) * kShare}));
    check_equal("fc1_max", now.name, {{"share", kShares}}, memory.result(s.fc1_max(), kShares), of_shares);
    fc1_scale = weight_scale(largest_of(fc1));
    memory.check_scale("fc1", now.name, fused::kFc1Scale, fc1_scale);
  }
  std::vector<double> copy(fc1.size());
  std::ranges::transform(fc1, copy.begin(), [&](double x) { return stored(now.precision, x, fc1_scale); });
  if (fp16_terms(now.precision) > 0 && now.gpu.wgmma)
    Fc1Terms(fc1).check(memory, now.name);
  else if (now.gpu.wgmma)
    check_equal("fc1_copy", now.name, {{"value", kHidden * kFeatures}},
                memory.stored_result(s.fc1_copy, kHidden * kFeatures, fc1_scale), in_chunks(copy));
  check_equal("fc1", with_unit(now.name, now.precision, fc1_scale), {{"hidden unit", kHidden}, {"feature", kFeatures}},
              memory.stored_result(s.fc1, kHidden * kFeatures, fc1_scale), copy);
  memory.check_rest(now.name);
}

}  // namespace

int main() {
  require_gpu();
  require_code(cuda::kTensorCapability);
  // A block's sums alone, and those of many: of several rounds of loads.
  for_every_size(Phase::kUpdate, {{132, 1}, {60, 7}, {5, 13}, {132, 140}, {132, 1100}}, [](Case now) {
    test_update(now);
    test_prepare(now);
    if (now.batch == 1) test_pack(now);
  });
  const std::vector<Cut> with_fc1 = {{132, 1}, {132, 17}, {132, 64}, {132, 127}, {132, 128}, {132, 150}, {132, 208}};
  for_every_size(Phase::kUpdateWithFc1, with_fc1, test_update);
  return finish_phase();
}
