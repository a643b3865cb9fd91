// Exception types, one for each kind of fault.
#pragma once

#include <stdexcept>

#include "mnist/require.h"

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
