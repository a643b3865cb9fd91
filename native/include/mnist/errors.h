// Exception types, one for each kind of fault, and the macro that checks what a caller passes in.
#pragma once

#include <sstream>
#include <stdexcept>

namespace mnist {

// The caller's fault: a wrong shape, index or option. Python sees ValueError.
struct ArgumentError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// This machine or this build cannot do it: no GPU, no library, not built. Exit code 4.
struct UnavailableError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Host or device memory ran out. Exit code 5.
struct OutOfMemoryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace mnist

// MNIST_REQUIRE(count > 0, "train: batch size is " << count << ", expected at least 1");
#define MNIST_REQUIRE(condition, sentence)                \
  do {                                                    \
    if (!(condition)) {                                   \
      std::ostringstream mnist_sentence;                  \
      mnist_sentence << sentence;                         \
      throw ::mnist::ArgumentError(mnist_sentence.str()); \
    }                                                     \
  } while (false)
