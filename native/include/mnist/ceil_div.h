// ceil_div: how many parts of `b` cover `a`, for host and device code.
#pragma once

namespace mnist {

template <class A, class B>
constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

}  // namespace mnist
