// The operators of mnist/operators.h in arrays of exactly the size that they may have, against the host's in float64.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "mnist/model.h"
#include "mnist/operators.h"
#include "testing.h"

namespace testing {

using Results = std::vector<std::pair<std::string, std::vector<double>>>;

template <class T>
std::vector<T> normal_as(std::int64_t count, unsigned seed) {
  const auto values = random_normal<float>(count, seed);  // the same numbers for every T
  return {values.begin(), values.end()};
}

// An Array of the host, of which AddressSanitizer knows the size.
template <class T>
class Vector {
 public:
  explicit Vector(std::int64_t count)
      : values_(count, std::numeric_limits<T>::has_quiet_NaN ? std::numeric_limits<T>::quiet_NaN() : T(255)) {}
  explicit Vector(std::vector<T> values) : values_(std::move(values)) {}
  T* data() const { return values_.data(); }
  const std::vector<T>& read(const std::string&) const { return values_; }

 private:
  mutable std::vector<T> values_;
};

// Array<T>(values) holds inputs, Array<T>(count) outputs, which start as NaN or as bytes of 255; read() gives them.
template <template <class> class Array, class T>
Results conv_bn_relu_pool_results(mnist::Operators<T>& operators, std::int64_t batch, int in, int out, int side) {
  const std::string what = "conv_bn_relu_pool of " + std::to_string(batch) + ", " + std::to_string(in) + " to " +
                           std::to_string(out) + ", side " + std::to_string(side);
  const auto z_size = batch * out * side * side, a_size = z_size / 4, w_size = std::int64_t(out) * in * mnist::kTaps;
  const Array<T> x(normal_as<T>(batch * in * side * side, 1)), w(normal_as<T>(w_size, 2)), bias(normal_as<T>(out, 3)),
      gamma(normal_as<T>(out, 4)), beta(normal_as<T>(out, 5)), da(normal_as<T>(a_size, 6));
  const auto scratch_size = operators.conv_bn_relu_pool_scratch(batch, in, out, side);
  const Array<T> a(a_size), z(z_size), mean(out), var(out), scratch(scratch_size), again(a_size), z_again(z_size);
  const Array<std::uint8_t> route(a_size), route_again(a_size);
  operators.conv_bn_relu_pool_forward(a.data(), z.data(), mean.data(), var.data(), route.data(), scratch.data(),
                                      x.data(), w.data(), bias.data(), gamma.data(), beta.data(), true, batch, in, out,
                                      side);
  operators.conv_bn_relu_pool_forward(again.data(), z_again.data(), mean.data(), var.data(), route_again.data(),
                                      scratch.data(), x.data(), w.data(), bias.data(), gamma.data(), beta.data(), false,
                                      batch, in, out, side);
  const Array<T> dx(batch * in * side * side), dw(w_size), dgamma(out), dbeta(out), dw_alone(w_size);
  for (const bool data : {false, true}) {
    const Array<T> fresh(scratch_size);
    operators.conv_bn_relu_pool_backward(data ? dx.data() : nullptr, data ? dw.data() : dw_alone.data(), dgamma.data(),
                                         dbeta.data(), fresh.data(), da.data(), x.data(), z.data(), mean.data(),
                                         var.data(), route.data(), w.data(), gamma.data(), batch, in, out, side);
    fresh.read(what + " scratch of backward");
  }
  Results results;
  scratch.read(what + " scratch");
  const auto add = [&](const char* name, const Array<T>& array) {
    const auto values = array.read(what + " " + name);
    results.push_back({what + " " + name, {values.begin(), values.end()}});
  };
  add("a", a), add("z", z), add("mean", mean), add("var", var), add("a by given statistics", again);
  add("dx", dx), add("dw", dw), add("dgamma", dgamma), add("dbeta", dbeta), add("dw without dx", dw_alone);
  return results;
}

template <template <class> class Array, class T>
Results linear_results(mnist::Operators<T>& operators, std::int64_t batch, int in, int out, bool relu) {
  const std::string what = std::string(relu ? "linear_relu" : "linear") + " of " + std::to_string(batch) + ", " +
                           std::to_string(in) + " to " + std::to_string(out);
  const Array<T> x(normal_as<T>(batch * in, 1)), w(normal_as<T>(std::int64_t(out) * in, 2)), bias(normal_as<T>(out, 3)),
      dy(normal_as<T>(batch * out, 4));
  const auto scratch_size = operators.linear_scratch(batch, in, out);
  const Array<T> y(batch * out), scratch(scratch_size), fresh(scratch_size);
  const Array<T> dx(batch * in), dw(std::int64_t(out) * in), dbias(out);
  const Array<std::uint8_t> pass(batch * out);
  std::uint8_t* const decisions = relu ? pass.data() : nullptr;
  operators.linear_forward(y.data(), decisions, scratch.data(), x.data(), w.data(), bias.data(), batch, in, out);
  operators.linear_backward(dx.data(), dw.data(), dbias.data(), fresh.data(), dy.data(), decisions, x.data(), w.data(),
                            batch, in, out);
  Results results;
  scratch.read(what + " scratch");
  fresh.read(what + " scratch of backward");
  const auto add = [&](const char* name, const Array<T>& array) {
    const auto values = array.read(what + " " + name);
    results.push_back({what + " " + name, {values.begin(), values.end()}});
  };
  add("y", y), add("dx", dx), add("dw", dw), add("dbias", dbias);
  return results;
}

template <template <class> class Array, class T>
Results log_softmax_nll_results(mnist::Operators<T>& operators, std::int64_t batch, int classes) {
  const std::string what = "log_softmax_nll of " + std::to_string(batch) + ", " + std::to_string(classes) + " classes";
  std::vector<std::uint8_t> of(batch);
  for (std::int64_t b = 0; b < batch; ++b) of[b] = std::uint8_t(b * 7 % classes);
  const Array<std::uint8_t> labels(of);
  const Array<T> logits(normal_as<T>(batch * classes, 1)), upstream(std::vector<T>{T(-1.5)});
  const Array<T> loss(1), log_p(batch * classes), dlogits(batch * classes);
  operators.log_softmax_nll_forward(loss.data(), log_p.data(), logits.data(), labels.data(), batch, classes);
  operators.log_softmax_nll_backward(dlogits.data(), upstream.data(), log_p.data(), labels.data(), batch, classes);
  Results results;
  const auto add = [&](const char* name, const Array<T>& array) {
    const auto values = array.read(what + " " + name);
    results.push_back({what + " " + name, {values.begin(), values.end()}});
  };
  add("loss", loss), add("log_p", log_p), add("dlogits", dlogits);
  return results;
}

template <template <class> class Array, class T>
Results all_results(int device) {
  const auto operators = mnist::operators_on<T>(device, nullptr);
  Results all;
  const auto add = [&](const Results& results) { all.insert(all.end(), results.begin(), results.end()); };
  for (const auto& [batch, in, out, side] :
       {std::array{3, 2, 5, 6}, {1, 1, 1, 2}, {9, 1, 32, 28}, {17, 32, 64, 14}, {2, 3, 9, 98}})
    add(conv_bn_relu_pool_results<Array>(*operators, batch, in, out, side));
  for (const auto& [batch, in, out] : {std::array{5, 7, 3}, {1, 1, 1}, {9, 3136, 128}, {70, 128, 10}, {130, 65, 131}})
    for (const bool relu : {false, true}) add(linear_results<Array>(*operators, batch, in, out, relu));
  for (const auto& [batch, classes] : {std::array{5, 3}, {1, 1}, {300, 10}})
    add(log_softmax_nll_results<Array>(*operators, batch, classes));
  return all;
}

inline void check_results(const Results& got, const Results& want, double bound) {
  CHECK(got.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) CHECK_CLOSE(got[i].second, want[i].second, bound, got[i].first);
}

}  // namespace testing
