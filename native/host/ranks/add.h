// The sum over ranks, one rank at a time: the only place that adds what ranks computed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace mnist::ranks {

// total = values of the first rank, or total + values.
template <class T>
void add(std::span<T> total, const T* values, bool first) {
  if (first)
    std::copy_n(values, total.size(), total.data());
  else
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += values[i];
}

}  // namespace mnist::ranks
