// thresholds_of: batch sizes at which what an engine does changes, found by asking it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "mnist/ceil_div.h"

namespace mnist {

// How often a loop or ring goes round, as far as it matters: later rounds are like those before.
constexpr std::int64_t rounds(std::int64_t items, std::int64_t at_once) {
  constexpr std::int64_t kMatter = 5;  // two stages with a parity each have been used, and used again
  return std::min(ceil_div(items, at_once), kMatter);
}

// The batch sizes from 2 to `most` for which schedule(batch), anything that compares, is not that of one image less.
template <class Schedule>
std::vector<std::int64_t> thresholds_of(std::int64_t most, Schedule schedule) {
  std::vector<std::int64_t> found;
  auto last = schedule(std::int64_t(1));
  for (std::int64_t batch = 2; batch <= most; ++batch) {
    auto now = schedule(batch);
    if (!(now == last)) found.push_back(batch);
    last = now;
  }
  return found;
}

}  // namespace mnist
