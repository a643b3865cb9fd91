// What the tests of the reference ops share: inputs of every kind, guarded outputs, and answers with error bounds.
#pragma once

#include <algorithm>

#include "cpu/reference_ops.h"
#include "testing.h"

namespace testing {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
constexpr double kDenormal = std::numeric_limits<double>::denorm_min();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kBatches[] = {1, 2, 3, 33};

enum class Kind { kNormal, kConstant, kZero, kOneHot, kHuge, kDenormal, kOneNaN };
constexpr Kind kKinds[] = {Kind::kNormal, Kind::kConstant, Kind::kZero,  Kind::kOneHot,
                           Kind::kHuge,   Kind::kDenormal, Kind::kOneNaN};

inline std::vector<double> make_input(Kind kind, std::size_t count, unsigned seed) {
  auto values = random_normal<double>(count, seed);
  switch (kind) {
    case Kind::kNormal:
      break;
    case Kind::kConstant:
      std::ranges::fill(values, 0.1);
      break;
    case Kind::kZero:
      std::ranges::fill(values, 0.0);
      break;
    case Kind::kOneHot:
      std::ranges::fill(values, 0.0), values[count / 2] = 1;
      break;
    case Kind::kHuge:
      std::ranges::transform(values, values.begin(), [](double v) { return v < 0 ? -1e4 : 1e4; });
      break;
    case Kind::kDenormal:
      std::ranges::transform(values, values.begin(), [](double v) { return v * 1e-310; });
      break;
    case Kind::kOneNaN:
      values[count / 2] = kNaN;
      break;
  }
  values.push_back(kNaN);  // left behind the end, for an op that reads too far
  values.pop_back();
  return values;
}

// A buffer for an op to write into: NaN where nothing was set yet, guard words on both sides.
class Output {
 public:
  explicit Output(std::size_t count) : words_(count + 2 * kGuards, kNaN) {
    std::fill_n(words_.begin(), kGuards, kGuard);
    std::fill_n(words_.end() - kGuards, kGuards, kGuard);
  }
  double* data() { return words_.data() + kGuards; }
  std::vector<double> values() const {
    const auto is_guard = [](double word) { return word == kGuard; };
    CHECK(std::all_of(words_.begin(), words_.begin() + kGuards, is_guard));
    CHECK(std::all_of(words_.end() - kGuards, words_.end(), is_guard));
    return {words_.begin() + kGuards, words_.end() - kGuards};
  }

 private:
  static constexpr std::size_t kGuards = 8;
  static constexpr double kGuard = 1.2345e67;
  std::vector<double> words_;
};

// A sum with what bounds its rounding error: n terms summed in any order in float64 are within
// n * epsilon * (sum of their absolute values) of the true value.
struct Sum {
  long double value = 0, magnitude = 0;
  int terms = 0;
  void add(long double term) { value += term, magnitude += std::fabs(term), ++terms; }
  bool agrees(double got) const {
    if (std::isnan(value)) return std::isnan(got);
    const long double bound = (terms + 1) * (kEpsilon * magnitude + kDenormal);
    return std::fabs(got - value) <= bound;
  }
};

inline void check_sums(const std::vector<double>& got, const std::vector<Sum>& want, const std::string& what) {
  std::size_t bad = 0;
  CHECK(got.size() == want.size());
  while (bad < want.size() && want[bad].agrees(got[bad])) ++bad;
  char text[256];
  std::snprintf(text, sizeof text, "%s: element %zu is %.17g, expected %.17Lg", what.c_str(), bad,
                bad < want.size() ? got[bad] : 0.0, bad < want.size() ? want[bad].value : 0.0L);
  report(bad == want.size(), text, __FILE__, __LINE__);
}

inline std::string name(const char* op, Kind kind, std::int64_t batch) {
  return std::string(op) + ", input kind " + std::to_string(int(kind)) + ", batch " + std::to_string(batch);
}

// Every element of `values` stepped to both sides; exact to about 1e-8 in long double.
template <class Objective>
std::vector<double> difference_quotients(std::vector<long double>& values, long double step, Objective objective) {
  std::vector<double> quotients;
  for (auto& v : values) {
    const auto middle = v;
    v = middle + step;
    const auto above = objective();
    v = middle - step;
    quotients.push_back(double((above - objective()) / (2 * step)));
    v = middle;
  }
  return quotients;
}

}  // namespace testing
