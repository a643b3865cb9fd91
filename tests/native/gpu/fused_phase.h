// What the tests of one phase of `fused` share: its arrays between guard words, the sizes in which it comes, and a
// comparison that names the first wrong element.
//
// A phase runs by itself on a State in which everything is NaN but what the test gives it. So a value that it should
// not read shows in its results, and whatever it changes beyond them is found: all memory is compared with what it was.
#pragma once

#include <cuda_fp16.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "engines/fused/arena.h"
#include "engines/fused/steps.h"
#include "gpu_testing.h"

namespace testing {

using namespace mnist;
using fused::KernelRow;
using fused::Layout;
using fused::Limits;
using fused::Phase;
using fused::Plan;
using fused::State;

// ---- values as they are stored --------------------------------------------------------------------------------------

inline float to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}
inline float to_fp16(float x) { return __half2float(__float2half_rn(x)); }

// Whether a precision stores 16 bits, and whether these are fp16, each tensor in a unit of its own: see
// scales.cuh. The others know no units.
inline bool in_16_bits(Precision precision) { return precision != Precision::kFp32; }
inline bool scaled(Precision precision) { return precision == Precision::kTf32; }

// As a precision stores it, and its relative error at most; and what fp16 may lose of a small one.
inline double stored(Precision precision, double x, double unit = 1) {
  return precision == Precision::kBf16   ? to_bf16(float(x))
         : precision == Precision::kTf32 ? unit * to_fp16(float(x / unit))
                                         : float(x);
}
inline double storing(Precision precision) {
  return std::ldexp(1.001, precision == Precision::kBf16 ? -8 : precision == Precision::kTf32 ? -11 : -24);
}
inline double storing_small(Precision precision, double unit) { return scaled(precision) ? std::ldexp(unit, -25) : 0; }
// What fp32 loses of a product, which it makes of three; the others' products are exact.
inline double multiplying(Precision precision) { return precision == Precision::kFp32 ? std::ldexp(1.0, -20) : 0.0; }
// What a float sum loses of the sum of its terms' magnitudes: tensor cores cut off as they add, and terms cancel.
inline double summing(double terms) { return std::ldexp(8 + std::sqrt(terms), -23); }

// 16 bits of a value that is exact in them.
inline std::uint16_t bits_of_bf16(float x) { return std::uint16_t(std::bit_cast<std::uint32_t>(x) >> 16); }
inline std::uint16_t bits_of_fp16(float x) { return std::bit_cast<std::uint16_t>(__float2half_rn(x)); }
inline float from_bf16(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t(x) << 16); }
inline float from_fp16(std::uint16_t x) { return __half2float(std::bit_cast<__half>(x)); }
// Of any value, as a precision of 16 bits stores it.
inline std::uint16_t bits_of(Precision precision, double x, double unit) {
  return precision == Precision::kBf16 ? bits_of_bf16(to_bf16(float(x))) : bits_of_fp16(float(x / unit));
}

// Values times a power of two.
inline std::vector<double> times(double factor, std::vector<double> values) {
  for (auto& x : values) x *= factor;
  return values;
}

// How many terms of fp16 conv2's operands are, or 0, and by wgmma fc1's: see scales.cuh.
inline int fp16_terms(Precision precision) { return precision == Precision::kFp32 ? 2 : 0; }
// And those of conv1's weights, everywhere.
inline int conv1_terms(Precision precision) { return precision == Precision::kBf16 ? 1 : 2; }
inline std::vector<float> terms_of(double x, int count) {
  std::vector<float> terms;
  for (float rest = float(x); count > 0; --count) {
    terms.push_back(to_fp16(rest));
    rest -= terms.back();
  }
  return terms;
}
// The least power of two of which `largest` holds fewer than 2^bits, but at least 2^at_least.
inline double power_of_two_scale(double largest, int bits, int at_least) {
  const int exponent = largest > 0 ? std::ilogb(largest) + 1 - bits : -1000;
  return std::ldexp(1.0, std::max(exponent, at_least));
}
// Of a tensor of which nothing exceeds `largest`; of weights, before their last update.
inline double scale_of(double largest) { return largest > 0 ? power_of_two_scale(largest, 15, -100) : 1; }
inline double weight_scale(double largest) { return power_of_two_scale(largest, 7, -12); }

// The draw that decides how tf32 rounds a sample's unit or channel in batches of more than 128: see scales.cuh.
inline bool rounds_by_draws(Precision precision, std::int64_t batch) { return scaled(precision) && batch > 128; }
inline std::uint32_t draw_of(std::int64_t sample, int unit) {
  return std::uint32_t(sample) * 0x9e3779b9u + std::uint32_t(unit) * 0x85ebca6bu;
}

// ---- random values --------------------------------------------------------------------------------------------------

struct Random {
  std::mt19937 bits;
  explicit Random(unsigned seed) : bits(seed) {}
  double uniform(double low, double high) { return low + (high - low) * double(bits()) / 4294967296.0; }
  std::vector<double> values(std::int64_t count, double low, double high) {
    std::vector<double> values(count);
    for (auto& value : values) value = uniform(low, high);
    return values;
  }
};

// ---- a comparison that names the place ------------------------------------------------------------------------------

struct Axis {
  const char* name;
  std::int64_t size;
};
using Axes = std::vector<Axis>;

inline std::int64_t count_of(const Axes& axes) {
  std::int64_t count = 1;
  for (const auto& axis : axes) count *= axis.size;
  return count;
}
inline std::string place_in(const Axes& axes, std::int64_t i) {
  std::string text;
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis, text = text.empty() ? text : ", " + text) {
    text = std::string(axis->name) + " " + std::to_string(i % axis->size) + text;
    i /= axis->size;
  }
  return text.substr(text.rfind(", ", 0) == 0 ? 2 : 0);
}

// Values in the order of their axes, and how far a result may be from each.
struct Expected {
  std::vector<double> value, bound;
  explicit Expected(std::int64_t count) : value(count), bound(count) {}
};

inline std::map<std::string, double> largest_shares;  // of a bound, by array; printed at the end
inline std::mutex one_at_a_time;                      // runs of a phase, and reports: cases have threads of their own

// Elements in the order of `axes`; the first one beyond its bound is named. An equal infinity is right, a NaN never.
inline void check_elements(const std::string& array, const std::string& where, const Axes& axes,
                           const std::vector<double>& got, const Expected& want) {
  const std::lock_guard lock(one_at_a_time);
  std::int64_t wrong = 0, first = -1;
  double& largest = largest_shares[array];
  for (std::int64_t i = 0; i < std::int64_t(want.value.size()); ++i) {
    const double error = std::abs(got[i] - want.value[i]);
    if (!(error <= want.bound[i])) {
      if (wrong++ == 0) first = i;
    } else if (want.bound[i] > 0) {
      largest = std::max(largest, error / want.bound[i]);
    }
  }
  const bool sizes = got.size() == want.value.size() && count_of(axes) == std::int64_t(got.size());
  char text[512];
  if (!sizes)
    std::snprintf(text, sizeof text, "%s, %s: %zu values, expected %zu", where.c_str(), array.c_str(), got.size(),
                  want.value.size());
  else if (first >= 0)
    std::snprintf(text, sizeof text, "%s, %s at %s: %.9g, expected %.9g to within %.2g; %lld of %zu are wrong",
                  where.c_str(), array.c_str(), place_in(axes, first).c_str(), got[first], want.value[first],
                  want.bound[first], static_cast<long long>(wrong), got.size());
  report(sizes && wrong == 0, sizes && first < 0 ? array : text, __FILE__, __LINE__);
}

// The same of values that have to be equal.
inline void check_equal(const std::string& array, const std::string& where, const Axes& axes,
                        const std::vector<double>& got, const std::vector<double>& want) {
  Expected expected(std::int64_t(want.size()));
  expected.value = want;
  check_elements(array, where, axes, got, expected);
}

// A message's place with the unit of what is stored there.
inline std::string with_unit(const std::string& where, Precision precision, double unit) {
  return scaled(precision) ? where + ", in units of 2^" + std::to_string(std::ilogb(unit)) : where;
}
// As scales.cuh promises, a tensor does not come near fp16's end.
inline void check_room(const std::string& array, const std::string& where, Precision precision,
                       const std::vector<double>& got, double unit) {
  if (!scaled(precision)) return;
  Expected none(std::int64_t(got.size()));
  std::ranges::fill(none.bound, std::ldexp(1.001 * unit, 15));
  check_elements("room for " + array, with_unit(where, precision, unit), {{"value", std::int64_t(got.size())}}, got,
                 none);
}

inline int finish_phase() {
  for (const auto& [array, share] : largest_shares)
    std::printf("%-28s largest error: %5.1f %% of its bound\n", array.c_str(), 100 * share);
  return finish_on_gpu();
}

// ---- a step's memory ------------------------------------------------------------------------------------------------

// Every array of a step, and the parameters, gradients and inputs, in one allocation of bytes 0xff, which are NaN, with
// guards of them between the arrays.
class PhaseMemory {
 public:
  static constexpr int kSamples = 7;  // of the data set

  PhaseMemory(Precision precision, const Limits& gpu, const Plan& plan, std::int64_t batch, bool overlap)
      : precision_(precision) {
    state_.overlap = overlap;
    state_.wgmma = gpu.wgmma;
    const auto list = [&](auto place) {
      fused::for_arrays_of_engine(state_, precision, place);
      fused::for_arrays_of_batch(state_, precision, gpu.multiprocessors, batch, place);
      place("parameters", state_.parameters, kParameterCount * 4);
      place("gradients", state_.gradients, kParameterCount * 4);
      place("learning_rate", state_.learning_rate, 4);
      place("upstream", state_.upstream, 4);
      place("results", state_.results, 4 * sizeof(StepResult));
      place("route2", state_.route2, batch * kPool2Size);
      place("images", state_.samples.images, kSamples * kImagePixels);
      place("labels", state_.samples.labels, kSamples);
      place("pixel moments", state_.samples.moments, kSamples * fused::kMoments * 8);
      place("order", state_.samples.order, 4 * batch * 4);
    };
    std::int64_t bytes = kGuard;
    list([&](const char* name, auto&, std::int64_t size) {
      arrays_.push_back({name, bytes, size});
      bytes += (size + kGuard - 1) / kGuard * kGuard + kGuard;
    });
    memory_.reserve(bytes);
    auto array = arrays_.begin();
    list([&](const char*, auto& pointer, std::int64_t) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory_.data() + array++->offset);
    });
    if (precision == Precision::kFp32) state_.fc1 = state_.parameters + kParameters[kFc1Weight].offset;
    host_.assign(bytes, 0xff);
    fused::set_batch(state_, plan, batch);
  }

  State& state() { return state_; }

  // An input.
  template <class T>
  void give(const T* to, const std::vector<T>& values) {
    std::ranges::copy(values, reinterpret_cast<T*>(host_.data() + offset_of(to)));
  }
  // Of doubles, as another type.
  template <class T>
  void give_as(const T* to, const std::vector<double>& values) {
    give(to, std::vector<T>(values.begin(), values.end()));
  }
  // As the precision stores them.
  void give_stored(const void* to, const std::vector<double>& values, double unit = 1) {
    if (!in_16_bits(precision_)) return give_as(static_cast<const float*>(to), values);
    std::vector<std::uint16_t> bits(values.size());
    std::ranges::transform(values, bits.begin(), [&](double x) { return bits_of(precision_, x, unit); });
    give(static_cast<const std::uint16_t*>(to), bits);
  }
  void give_fp16(const void* to, const std::vector<double>& values) {
    std::vector<std::uint16_t> bits(values.size());
    std::ranges::transform(values, bits.begin(), [](double x) { return bits_of_fp16(float(x)); });
    give(static_cast<const std::uint16_t*>(to), bits);
  }
  void give_scale(fused::Scale scale, double value) { give_as(state_.scales + scale, {value}); }

  // run(state, stream), then all memory is here.
  template <class Run>
  void run(Run run) {
    const std::lock_guard lock(one_at_a_time);
    before_ = host_;
    cuda::upload(memory_.data(), host_, nullptr);
    MNIST_CHECK(cudaDeviceSynchronize());
    run(state_, nullptr);
    MNIST_CHECK(cudaGetLastError());
    MNIST_CHECK(cudaDeviceSynchronize());
    cuda::download(host_, memory_.data(), nullptr);
  }

  // A result, or a part of an array that is one: `count` values from `from` on.
  template <class T>
  std::vector<double> result(const T* from, std::int64_t count) {
    const auto values = read(from, count);
    std::copy_n(host_.begin() + offset_of(from), count * sizeof(T), before_.begin() + offset_of(from));
    return values;
  }
  std::vector<double> stored_result(const void* from, std::int64_t count, double unit = 1) {
    if (!in_16_bits(precision_)) return result(static_cast<const float*>(from), count);
    auto values = result(static_cast<const std::uint16_t*>(from), count);
    for (auto& value : values)
      value = scaled(precision_) ? unit * from_fp16(std::uint16_t(value)) : from_bf16(std::uint16_t(value));
    return values;
  }
  std::vector<double> fp16_result(const void* from, std::int64_t count) {
    auto values = result(static_cast<const std::uint16_t*>(from), count);
    for (auto& value : values) value = from_fp16(std::uint16_t(value));
    return values;
  }
  // A scale that the phase has chosen. `name` is of what it divides.
  void check_scale(const std::string& name, const std::string& where, fused::Scale scale, double want) {
    check_equal("scale of " + name, where, {{"scale", 1}}, result(state_.scales + scale, 1), {want});
  }

  // What is there, without a claim that it is a result.
  template <class T>
  std::vector<double> read(const T* from, std::int64_t count) const {
    const auto* values = reinterpret_cast<const T*>(host_.data() + offset_of(from));
    return {values, values + count};
  }

  // Nothing but results has changed.
  void check_rest(const std::string& where) const {
    const auto differs = std::ranges::mismatch(host_, before_);
    const std::lock_guard lock(one_at_a_time);
    if (differs.in1 == host_.end()) return report(true, where, __FILE__, __LINE__);
    const std::int64_t at = differs.in1 - host_.begin();
    const auto array =
        std::prev(std::ranges::upper_bound(arrays_, std::max(at, arrays_[0].offset), {}, &Array::offset));
    const bool guard = at < array->offset || at >= array->offset + array->bytes;
    report(false,
           where + ": wrote to byte " + std::to_string(at - array->offset) + " of " + array->name +
               (guard ? ", which is a guard" : ", which is no result"),
           __FILE__, __LINE__);
  }

 private:
  static constexpr std::int64_t kGuard = 1024;
  struct Array {
    const char* name;
    std::int64_t offset, bytes;
  };

  std::int64_t offset_of(const void* pointer) const {
    return static_cast<const std::uint8_t*>(pointer) - memory_.data();
  }

  Precision precision_;
  cuda::DeviceBuffer<std::uint8_t> memory_;
  State state_{};
  std::vector<Array> arrays_;
  std::vector<std::uint8_t> host_, before_;  // before_: what has to be there after the run
};

// ---- the sizes of a phase -------------------------------------------------------------------------------------------

// Where the phases are in a graph: neither the first step nor the last.
inline constexpr int kGraphStep = 1;
inline constexpr int kEmulatedBatch = 13;  // the largest for which the emulator has the time

// A phase in one size, and a batch as a GPU with so many multiprocessors cuts it up.
struct Case {
  Precision precision;
  std::span<const KernelRow> rows;
  Limits gpu;
  Plan plan;
  int batch;
  Random random;
  std::string name;

  PhaseMemory memory() const { return {precision, gpu, plan, batch, fused::overlaps(rows)}; }
  void launch(Phase phase, const State& s, cudaStream_t stream) const {
    const bool of_step = plan[phase].one.kernel;
    fused::launch(of_step ? plan[phase] : fused::row_of(rows, phase), s, kGraphStep, stream);
  }
  bool scales_conv2() const { return scaled(precision) || fp16_terms(precision) > 0; }
};

struct Cut {
  int multiprocessors, batch;
};

// Whether a plan has this row.
inline bool takes(const Plan& plan, const KernelRow& row) {
  return plan[row.phase].one == row.one && plan[row.phase].rows == row.rows;
}

// Calls test(case) for every size in which `phase` comes and that this GPU can run, with each of the cuts that plans
// bring to it under limits; in each precision, several at a time. A size that none of them comes to is a failure. The
// emulator gets batches up to `emulated_batch`.
template <class Test>
void for_every_size(Phase phase, const std::vector<Cut>& cuts, Test test, int emulated_batch = kEmulatedBatch) {
  int shared = 0;
  MNIST_CHECK(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  const bool has_wgmma = fused::runs_wgmma();
  std::vector<Case> cases;
  for (const Precision precision : {Precision::kBf16, Precision::kTf32, Precision::kFp32}) {
    if (kEmulated && precision == Precision::kFp32) continue;  // g++ takes many minutes for its kernels
    const auto all = fused::kernel_rows(precision);
    std::set<int, std::greater<>> limits = {shared};  // of shared memory: each that makes a difference
    for (const KernelRow& row : all)
      if (row.shared() < shared) limits.insert(row.shared());
    for (const KernelRow& size : all) {
      if (size.phase != phase) continue;
      const std::string name =
          std::string(to_string(precision)) + (size.rows ? ", " + std::to_string(size.rows) + " rows" : "") +
          (size.persistent ? " again and again" : "") +
          (size.channel_splits > 1 ? ", channels in " + std::to_string(size.channel_splits) + " parts" : "") +
          (size.stages ? ", " + std::to_string(size.stages) + " stages" : "") +
          (size.wgmma || size.layout != Layout::kPixels ? ", wgmma" : "");
      if (size.shared() > shared) {
        not_tested(name, "it needs " + std::to_string(size.shared()) + " bytes of shared memory a block");
        continue;
      }
      std::vector<KernelRow> rows(all.begin(), all.end());
      rows[std::size_t(&size - all.data())].min_batch = 0;  // small batches may have it, too
      const bool of_hopper = size.wgmma || size.layout != Layout::kPixels || size.phase == Phase::kUpdateWithFc1;
      const bool of_all = phase == Phase::kHead || phase == Phase::kUpdate;  // they do what the others want
      const std::size_t before = cases.size();
      for (const bool wgmma : {true, false})
        for (const Cut& cut : cuts) {
          if (kEmulated && cut.batch > emulated_batch) continue;
          if (wgmma ? !has_wgmma || !(of_hopper || of_all) : of_hopper) continue;
          // The first of the limits under which the plan of this batch takes this size.
          for (const int limit : limits) {
            if (wgmma && limit < shared) break;  // every Hopper has all of it
            const Limits gpu{cut.multiprocessors, limit, wgmma};
            auto plan = fused::plan_for(rows, gpu, cut.batch);
            const auto neighbours = {Phase::kFc, Phase::kConv2Backward, Phase::kUpdateWithFc1};
            if (plan) plan->with_fc &= std::ranges::find(neighbours, phase) != neighbours.end();
            if (!plan || !(of_all || takes(*plan, size))) continue;
            cases.push_back(
                {precision, all, gpu, *plan, cut.batch, Random(unsigned(1000 * cut.multiprocessors + cut.batch)),
                 name + ", " + std::to_string(cut.batch) + " samples on " + std::to_string(cut.multiprocessors) +
                     " multiprocessors" + (wgmma ? "" : " without wgmma")});
            break;
          }
        }
      report(cases.size() > before || (of_hopper && !has_wgmma), name + ": no batch comes to it", __FILE__, __LINE__);
    }
  }
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < cases.size(); i = next++) try {
        test(cases[i]);
      } catch (const std::exception& error) {
        const std::lock_guard lock(one_at_a_time);
        report(false, cases[i].name + ": " + error.what(), __FILE__, __LINE__);
      }
  };
  if (kEmulated) return work();
  std::vector<std::jthread> threads(std::clamp(std::thread::hardware_concurrency(), 1u, 8u));
  for (auto& thread : threads) thread = std::jthread(work);
}

// ---- data -----------------------------------------------------------------------------------------------------------

// Images with flat areas, strokes and noise; their labels; and an order of four batches.
struct Samples {
  std::vector<std::uint8_t> images, labels;
  std::vector<std::int32_t> order;

  Samples(Random& random, int batch) : images(PhaseMemory::kSamples * kImagePixels), order(4 * batch) {
    for (std::size_t i = 0; i < images.size(); ++i) {
      const int kind = int(i / kImagePixels) % 3, y = int(i / kImageSide) % kImageSide;
      const auto noise = std::uint8_t(random.bits());
      images[i] = kind == 0 ? noise : kind == 1 ? (y / 5 % 2 ? noise : 0) : random.bits() % 4 ? 0 : noise;
    }
    for (int i = 0; i < PhaseMemory::kSamples; ++i) labels.push_back(std::uint8_t(random.bits() % kClasses));
    for (auto& sample : order) sample = std::int32_t(random.bits() % PhaseMemory::kSamples);
  }
  const std::uint8_t* image(int step, int batch, std::int64_t b) const {
    return images.data() + order[step * batch + b] * kImagePixels;
  }
};

// An image's pixel moments one by one as data.cu defines them, before rounding to the grid.
inline std::vector<double> moments_of(const std::uint8_t* image) {
  const auto value = [&](int y, int x, int tap) {
    const int p = y + tap / 3 - 1, q = x + tap % 3 - 1;
    const bool inside = p >= 0 && p < kImageSide && q >= 0 && q < kImageSide;
    return inside ? image[p * kImageSide + q] - 255 * kPixelMean : 0.0;
  };
  std::vector<double> moments;
  const auto add = [&](int j, int k) {
    double total = 0;
    for (int y = 0; y < kImageSide; ++y)
      for (int x = 0; x < kImageSide; ++x) total += value(y, x, j) * (k < 0 ? 1.0 : value(y, x, k));
    moments.push_back(total);
  };
  for (int j = 0; j < kTaps; ++j) add(j, -1);
  for (int j = 0; j < kTaps; ++j)
    for (int k = j; k < kTaps; ++k) add(j, k);
  return moments;
}

// ---- dh -------------------------------------------------------------------------------------------------------------

// Where dh of sample b and hidden unit h lies, of which a term may be one of several, and how many values there are:
// tiles of samples for fc1's backward by wgmma, which end in zeros.
struct DhOrder {
  bool tiles;
  int terms;  // of fp16, or 0

  explicit DhOrder(const Case& now)
      : tiles(now.plan[Phase::kFc1Backward].wgmma && !now.plan.with_fc), terms(tiles ? fp16_terms(now.precision) : 0) {}
  std::int64_t count(std::int64_t batch) const {
    return (tiles ? (batch + fused::kSamplesPerDhTile - 1) / fused::kSamplesPerDhTile * fused::kSamplesPerDhTile
                  : batch) *
           kHidden * std::max(terms, 1);
  }
  std::int64_t at(std::int64_t b, int h, int term = 0) const {
    if (!tiles) return b * kHidden + h;
    const std::int64_t chunk = (b / fused::kSamplesPerDhTile * std::max(terms, 1) + term) * (kHidden / 8) + h / 8;
    return (chunk * fused::kSamplesPerDhTile + b % fused::kSamplesPerDhTile) * 8 + h % 8;
  }
};

// ---- fc1.weight as terms --------------------------------------------------------------------------------------------

// (term, hidden unit, feature) divided by the scale of the feature's group, in the order of memory; and the scales.
struct Fc1Terms {
  std::vector<double> terms = std::vector<double>(2 * kHidden * kFeatures), scales;

  explicit Fc1Terms(const std::vector<double>& weight) {
    constexpr int kOrder[] = {0, 4, 1, 5, 2, 6, 3, 7};
    for (int group = 0; group < fused::kFc1Groups; ++group) {
      double largest = 0;
      for (int h = 0; h < kHidden; ++h)
        for (int c = 0; c < fused::kFc1Columns; ++c)
          largest = std::max(largest, std::abs(weight[h * kFeatures + group * fused::kFc1Columns + c]));
      scales.push_back(scale_of(largest));
    }
    for (int h = 0; h < kHidden; ++h)
      for (int at = 0; at < kFeatures; ++at) {
        const double x = weight[h * kFeatures + at / 8 * 8 + kOrder[at % 8]];
        const auto two = terms_of(x / scales[at / fused::kFc1Columns], 2);
        for (int term = 0; term < 2; ++term) terms[(term * kHidden + h) * kFeatures + at] = two[term];
      }
  }
  void give(PhaseMemory& memory) const {
    memory.give_fp16(memory.state().fc1_copy, terms);
    memory.give_as(memory.state().fc1_scales, scales);
  }
  void check(PhaseMemory& memory, const std::string& where) const {
    check_equal("fc1_scales", where, {{"group", fused::kFc1Groups}},
                memory.result(memory.state().fc1_scales, fused::kFc1Groups), scales);
    check_equal("fc1_copy", where, {{"term", 2}, {"hidden unit", kHidden}, {"place", kFeatures}},
                memory.fp16_result(memory.state().fc1_copy, std::int64_t(terms.size())), terms);
  }
};

// ---- layouts of images with channels --------------------------------------------------------------------------------

inline int slot_of(int padded_x) { return (padded_x & 1) * 8 + (padded_x >> 1); }

// A channel's place among the operands of mma.sync: each 32 channels as big terms, then as small ones.
inline int place_of(int channel, int term, int terms) {
  return terms < 2 ? channel : (channel / 32 * terms + term) * 32 + channel % 32;
}

// Where a1, or z2, lies: value (b, c, y, x), of which a term may be one of several; and how many values there are.
struct PixelOrder {
  Layout layout;
  int channels, of_chunk, terms = 1;

  std::int64_t count(std::int64_t batch) const {
    const bool pixels = layout == Layout::kPixels;
    return batch * terms * channels * (pixels ? fused::kCells1 : kPool1Side * 16);
  }
  std::int64_t at(std::int64_t b, int c, int y, int x, int term = 0) const {
    if (layout == Layout::kPixels)
      return (b * fused::kCells1 + y * kPool1Side + x) * channels * terms + place_of(c, term, terms);
    const int column = terms_in_order() ? x + 1 : slot_of(x + 1), chunks = channels / of_chunk;
    return (((b * terms + term) * chunks + c / of_chunk) * kPool1Side * 16 + y * 16 + column) * of_chunk + c % of_chunk;
  }
  bool terms_in_order() const { return layout == Layout::kFp16Terms && of_chunk == 8; }
};
inline PixelOrder order_of_a1(Precision precision, Layout layout) {
  return {layout, kConv1Channels, 8, std::max(fp16_terms(precision), 1)};
}
inline PixelOrder order_of_z2(Precision precision, Layout layout) {
  return {layout, kConv2Channels, in_16_bits(precision) ? 8 : 4};
}

// From the order of `order` to (batch, channels, 14, 14), and back, with 0 in padding; each term by itself.
inline std::vector<double> pixels_from(const PixelOrder& order, std::int64_t batch, const std::vector<double>& values,
                                       int term = 0) {
  std::vector<double> pixels;
  pixels.reserve(batch * order.channels * fused::kCells1);
  for (std::int64_t b = 0; b < batch; ++b)
    for (int c = 0; c < order.channels; ++c)
      for (int y = 0; y < kPool1Side; ++y)
        for (int x = 0; x < kPool1Side; ++x) pixels.push_back(values[order.at(b, c, y, x, term)]);
  return pixels;
}
inline void pixels_to(const PixelOrder& order, std::int64_t batch, std::vector<double>& values,
                      const std::vector<double>& pixels, int term = 0) {
  values.resize(order.count(batch));
  auto pixel = pixels.begin();
  for (std::int64_t b = 0; b < batch; ++b)
    for (int c = 0; c < order.channels; ++c)
      for (int y = 0; y < kPool1Side; ++y)
        for (int x = 0; x < kPool1Side; ++x) values[order.at(b, c, y, x, term)] = *pixel++;
}
// Padding is 0.
inline void check_padding(const std::string& array, const std::string& where, const PixelOrder& order,
                          std::int64_t batch, std::vector<double> values) {
  for (int term = 0; term < order.terms; ++term)
    pixels_to(order, batch, values, std::vector<double>(batch * order.channels * fused::kCells1), term);
  check_equal("padding of " + array, where, {{"value", std::int64_t(values.size())}}, values,
              std::vector<double>(values.size()));
}

}  // namespace testing
