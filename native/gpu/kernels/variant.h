// One row of an op's table: the same function computed by another idea.
//
// Tests, the benchmark of the ops and the CLI iterate the tables; each stands in kernels/<op>/<op>.cpp, plainest row
// first. A new variant is one file and one row. A variant that lost stays only if it teaches, and `why` says so.
#pragma once

#include "profile/cost.h"

namespace mnist::kernels {

template <class Function>
struct Variant {
  const char* name;  // the idea
  Function run;
  const char* why;
  // Error that the idea brings with it, on top of what a plain sum in float32 has: relative to what is summed.
  double own_error = 0;
  Unit unit = Unit::kFma;
  int needs = 0;  // compute capability (cuda/architectures.h) below which it has no code, and `run` may be null
};

}  // namespace mnist::kernels
