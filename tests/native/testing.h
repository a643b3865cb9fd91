// The C++ tests' own small frame: test programs are main() functions that CHECK and return finish().
//
// Exit codes: 0 all checks passed, 1 some failed, 77 skipped (with the reason printed). A NaN never passes: every
// comparison is written as `error <= bound`. With MNIST_CUDA_REQUIRE_GPU=1 what is not tested is a failure, unless the
// GPU is too old for it.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "mnist/engine.h"

namespace testing {

inline int checks = 0, failures = 0;

inline void report(bool ok, const std::string& what, const char* file, int line) {
  ++checks;
  if (ok) return;
  ++failures;
  std::printf("FAILED %s:%d %s\n", file, line, what.c_str());
}

#define CHECK(condition) ::testing::report((condition), #condition, __FILE__, __LINE__)

// Relative L2 distance of `got` from `want`; the absolute one where `want` is 0. NaN where either holds a NaN.
template <class A, class B>
double relative_error(std::span<const A> got, std::span<const B> want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = double(got[i]) - double(want[i]);
    difference += d * d;
    norm += double(want[i]) * double(want[i]);
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

template <class A, class B>
void check_close(const std::vector<A>& got, const std::vector<B>& want, double bound, const std::string& what,
                 const char* file, int line) {
  const double error = relative_error(std::span<const A>(got), std::span<const B>(want));
  char text[256];
  std::snprintf(text, sizeof text, "%s: relative error %.3g, expected <= %.3g", what.c_str(), error, bound);
  report(error <= bound, text, file, line);
}

#define CHECK_CLOSE(got, want, bound, what) ::testing::check_close(got, want, bound, what, __FILE__, __LINE__)

template <class T>
std::vector<T> random_normal(std::size_t count, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<double> normal;
  std::vector<T> values(count);
  for (auto& v : values) v = T(normal(rng));
  return values;
}

// Weights of the size that a trained network has; batch norm near 1 and 0, neither exactly.
inline std::vector<double> random_parameters() {
  using namespace mnist;
  auto values = random_normal<double>(kParameterCount, 1);
  for (const auto& p : kParameters)
    for (std::int64_t k = p.offset; k < p.offset + p.size; ++k)
      values[k] = p.ndim > 1 ? values[k] / std::sqrt(double(p.size / p.shape[0])) : 0.1 * values[k];
  for (const auto index : {kBn1Weight, kBn2Weight})
    for (std::int64_t k = 0; k < kParameters[index].size; ++k) values[kParameters[index].offset + k] += 1;
  return values;
}

// Says that something is not tested, and why; whether that is a failure here. In code that a GPU, or this build's code
// for it, is too old for, the reason says which compute capability it needs.
inline bool not_tested(const std::string& what, const std::string& reason) {
  const char* required = std::getenv("MNIST_CUDA_REQUIRE_GPU");
  const bool too_old = reason.find("needs compute capability") != std::string::npos;
  const bool fail = required && std::string(required) == "1" && !too_old;
  std::printf("%s: %s: %s\n", fail ? "FAILED, MNIST_CUDA_REQUIRE_GPU=1 and not tested" : "not tested", what.c_str(),
              reason.c_str());
  if (fail) report(false, what + " was not tested", __FILE__, __LINE__);
  return fail;
}

// Ends a program that cannot test anything here.
[[noreturn]] inline void skip(const std::string& reason) { std::exit(not_tested("this program", reason) ? 1 : 77); }

// Ends a program that needs a GPU where there is none.
inline void require_gpu() {
  const auto status = mnist::cuda_status();
  if (status.device_count == 0) skip(status.reason);
}

inline int finish() {
  std::printf("%d checks, %d failed\n", checks, failures);
  return failures == 0 && checks > 0 ? 0 : 1;
}

}  // namespace testing
