// What the GPU tests of ops share: guarded buffers, the inputs of the suite, and one bound for sums in float32.
//
// CMake builds some of these tests a second time, for the emulator (native/emulator) and with MNIST_EMULATED: it runs
// the smaller sizes and reports every fault of a kernel.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "bench/ladders.h"
#include "cuda/architectures.h"
#include "cuda/buffer.h"
#include "cuda/capability.h"
#include "testing.h"
#ifdef MNIST_EMULATED
#include <exception>

#include "emulator.h"
#endif

namespace testing {

#ifdef MNIST_EMULATED
inline constexpr bool kEmulated = true;
inline constexpr std::int64_t kGuardElements = 0;  // the emulator sees the bounds, and what was never written
#else
inline constexpr bool kEmulated = false;
inline constexpr std::int64_t kGuardElements = 64;  // keeps data() aligned to 64 bytes
#endif
inline const std::vector<std::int64_t> kBatches =
    kEmulated ? std::vector<std::int64_t>{1, 2, 3, 31, 33, 127, 1000, 4096}  // every second one, for time
              : std::vector<std::int64_t>{1, 2, 3, 31, 32, 33, 64, 100, 127, 256, 1000, 1024, 4096};
inline constexpr std::int64_t kEmulatedWork = 1'000'000;  // multiply-adds of an op

// Whether an op of this size is left out: beyond `most`, or more than the emulator gets done.
inline bool too_large(std::int64_t work, std::int64_t most) {
  return work > most || (kEmulated && work > kEmulatedWork);
}

#ifdef MNIST_EMULATED
// A launch that the emulator had to end is an exception of the launcher: its faults are printed before that.
inline const auto kBeforeTerminate = std::set_terminate([] {
  std::printf("the emulator ended a launch:\n%s", emulator::to_words({emulator::report().faults, {}, {}}).c_str());
  std::fflush(stdout);
  std::abort();
});
#endif

inline int finish_on_gpu() {
#ifdef MNIST_EMULATED
  auto faults = emulator::report().faults;
  // Every block of conv2_backward loads bn2's parameters, of which only the first one uses and then changes them.
  std::erase_if(faults, [](const auto& fault) {
    return fault.kind == "race of blocks" && fault.file.ends_with("bn2_backward.cuh") && fault.file == fault.other_file;
  });
  report(faults.empty(), "the emulator found faults:\n" + emulator::to_words({faults, {}, {}}), __FILE__, __LINE__);
#endif
  return finish();
}

// With MNIST_STOP_AT_FAILURE=1 the emulated tests end at the first failure, which is all that scripts/check mutations
// asks.
inline void stop_at_failure() {
#ifdef MNIST_EMULATED
  static const bool kStops = std::getenv("MNIST_STOP_AT_FAILURE");
  if (kStops && (failures > 0 || emulator::any_fault())) std::exit(finish_on_gpu());
#endif
}

// Device memory between guard words of 0xff bytes, which are NaN as floats: an output starts as NaN and its guards
// must survive; a read beyond an input brings a NaN into the result. Usable on every stream: what is made is complete,
// and read() waits for the whole GPU.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::int64_t count) : count_(count), buffer_(count + 2 * kGuard) {
    if (!kEmulated) mnist::cuda::fill_bytes(buffer_.data(), 0xff, buffer_.size(), nullptr);
    MNIST_CHECK(cudaDeviceSynchronize());
  }
  explicit Guarded(const std::vector<T>& values) : Guarded(std::int64_t(values.size())) {
    mnist::cuda::upload(data(), values, nullptr);
    MNIST_CHECK(cudaDeviceSynchronize());
  }

  T* data() const { return buffer_.data() + kGuard; }

  // The values, after a check of the guards.
  std::vector<T> read(const std::string& what) const {
    MNIST_CHECK(cudaDeviceSynchronize());
    stop_at_failure();
    std::vector<T> all(buffer_.size());
    mnist::cuda::download(all, buffer_.data(), nullptr);
    const auto* bytes = reinterpret_cast<const unsigned char*>(all.data());
    const std::size_t guard = kGuard * sizeof(T), end = all.size() * sizeof(T);
    const bool intact = std::all_of(bytes, bytes + guard, [](auto b) { return b == 0xff; }) &&
                        std::all_of(bytes + end - guard, bytes + end, [](auto b) { return b == 0xff; });
    report(intact, what + ": wrote outside its output", __FILE__, __LINE__);
    return {all.begin() + kGuard, all.begin() + kGuard + count_};
  }

 private:
  static constexpr std::int64_t kGuard = kGuardElements;
  std::int64_t count_;
  mnist::cuda::DeviceBuffer<T> buffer_;
};

// Ends a program of kernels that the GPU, or this build's code for it, is too old for.
inline void require_code(int capability) {
  const std::string reason = mnist::cuda::code_lacks(capability, 0);
  if (!reason.empty()) skip(reason);
}

// The rows that can run here, after a line for each that cannot and should.
template <class Function>
mnist::bench::Ladder<Function> present(mnist::bench::Ladder<Function> ladder, const char* op) {
  std::erase_if(ladder, [&](const auto& rung) {
    if (!rung.absent.empty() && !rung.optional) not_tested(std::string(op) + " " + rung.name, rung.absent);
    return !rung.absent.empty();
  });
  return ladder;
}

// An array of the op as `rung` takes it, and one that it gave as the op has it; (.., channels, area).
template <class Function, class T>
std::vector<T> to_order_of(const mnist::bench::Rung<Function>& rung, const std::vector<T>& values, int channels,
                           std::int64_t area) {
  return rung.channels_last ? mnist::bench::swapped(values, channels, area) : values;
}
template <class Function, class T>
std::vector<T> from_order_of(const mnist::bench::Rung<Function>& rung, const std::vector<T>& values, int channels,
                             std::int64_t area) {
  return rung.channels_last ? mnist::bench::swapped(values, area, channels) : values;
}

inline std::vector<double> widen(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// Inputs that hide no bug of their own kind: ties and flat areas as in digits, extremes, nothing but zeros.
// `slack` multiplies bounds where float32 has fewer digits left.
struct Input {
  const char* name;
  std::vector<float> values;
  double slack = 1;
};

inline std::vector<Input> inputs(std::int64_t count, unsigned seed) {
  const auto normal = random_normal<float>(count, seed);
  const auto scaled = [&](float factor) {
    auto values = normal;
    for (auto& v : values) v *= factor;
    return values;
  };
  std::vector<float> one_hot(count, 0.0f), digits(count, -0.42421296f);
  one_hot[count / 2] = 1;
  if (kEmulated && count > 200) return {{"normal", normal}};  // values change no access
  // Strokes: runs of equal bright values with soft ends on the flat background of a normalised digit.
  for (std::int64_t k = 0; k < count; ++k)
    if (normal[k / 7] > 0.8f) digits[k] = k % 7 == 0 || k % 7 == 6 ? 0.9f : 2.8214867f;
  return {{"normal", normal},
          {"constant", std::vector<float>(count, 0.7f)},
          {"zero", std::vector<float>(count, 0.0f)},
          {"one-hot", one_hot},
          {"huge", scaled(1e4f)},
          {"denormal", scaled(1e-40f), 1e3},  // spaced 1.4e-45: four to five digits
          {"digits", digits}};
}

// Relative error to expect of a sum of `terms` numbers added one after the other in float32: each addition rounds by
// at most 2^-24 of what it has.
inline double sum_bound(std::int64_t terms) { return std::ldexp(1.0, -24) * (8 + double(terms) / 4); }

// || got - want || <= bound * scale, for results that may cancel to nothing.
inline void check_near(const std::vector<float>& got, const std::vector<double>& want, double scale, double bound,
                       const std::string& what) {
  double squares = 0;
  for (std::size_t i = 0; i < want.size(); ++i) squares += (got[i] - want[i]) * (got[i] - want[i]);
  const double error = std::sqrt(squares);
  char text[256];
  std::snprintf(text, sizeof text, "%s: error %.3g of %.3g, expected <= %.3g", what.c_str(), error, scale, bound);
  report(got.size() == want.size() && error <= bound * scale, text, __FILE__, __LINE__);
}

template <class T>
double norm(const std::vector<T>& values) {
  double squares = 0;
  for (const auto v : values) squares += double(v) * double(v);
  return std::sqrt(squares);
}

// NaN in the same places.
inline void check_same_nans(const std::vector<float>& got, const std::vector<double>& want, const std::string& what) {
  bool same = got.size() == want.size(), any = false;
  for (std::size_t i = 0; same && i < want.size(); ++i) {
    same = std::isnan(got[i]) == std::isnan(want[i]);
    any |= std::isnan(want[i]);
  }
  report(same && any, what + ": NaN not where the reference has it", __FILE__, __LINE__);
}

}  // namespace testing
