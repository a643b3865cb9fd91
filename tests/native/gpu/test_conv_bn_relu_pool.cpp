// conv_bn_relu_pool against the reference: every row of the ladders, forward and then backward of what it left.
#include "cpu/reference_ops.h"
#include "gpu_testing.h"
#include "kernels/conv_bn_relu_pool/conv_bn_relu_pool.h"
#include "mnist/model.h"

using namespace mnist;
using namespace testing;

namespace {

struct Shape {
  int in, out, side;
};

// Of sums in float32, relative to the result: batch norm divides z by sigma, so an error of z stays what it is.
constexpr double kBound = 5e-6;

struct Reference {
  std::vector<double> z, y, a, mean, var;

  Reference(const std::vector<double>& x, const std::vector<double>& w, const std::vector<double>& bias,
            const std::vector<double>& gamma, const std::vector<double>& beta, std::int64_t batch, const Shape& s)
      : z(batch * s.out * s.side * s.side), y(z.size()), a(z.size() / 4), mean(s.out), var(s.out) {
    const int area = s.side * s.side;
    reference::conv2d_forward(z.data(), x.data(), w.data(), bias.data(), batch, s.in, s.out, s.side);
    reference::batch_norm_statistics(mean.data(), var.data(), z.data(), batch, s.out, area);
    reference::batch_norm_forward(y.data(), z.data(), gamma.data(), beta.data(), mean.data(), var.data(), batch, s.out,
                                  area);
    std::vector<std::uint8_t> route(a.size());
    reference::relu_max_pool2d_forward(a.data(), route.data(), y.data(), batch * s.out, s.side / 2);
  }

  // y where `route` says: what a row must have taken for the maximum, or 0.
  std::vector<double> at(const std::vector<std::uint8_t>& route, int side) const {
    std::vector<double> values(route.size(), std::nan(""));
    if (std::ranges::all_of(route, [](auto k) { return k < 4 || k == Routing::kDead; }))
      reference::relu_max_pool2d_forward_routed(values.data(), y.data(), route.data(), y.size() / (side * side),
                                                side / 2);
    return values;
  }
};

std::vector<float> join(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<float> all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

void test(const bench::Ladder<kernels::ConvBnReluPoolForward>& forward,
          const bench::Ladder<kernels::ConvBnReluPoolBackward>& backward, std::int64_t batch, const Shape& s,
          const Input& input, bool with_dx) {
  const std::int64_t area = s.side * s.side, a_size = batch * s.out * area / 4, x_size = batch * s.in * area;
  const std::string what = std::string(" ") + input.name + ", batch " + std::to_string(batch) + ", " +
                           std::to_string(s.in) + "->" + std::to_string(s.out) + ", side " + std::to_string(s.side);
  const auto w = random_normal<float>(s.out * s.in * kTaps, 2), bias = random_normal<float>(s.out, 3),
             beta = random_normal<float>(s.out, 5), da = random_normal<float>(a_size, 6);
  auto gamma = random_normal<float>(s.out, 4);  // of both signs, and one of 0
  gamma[s.out / 2] = s.out > 2 ? 0 : gamma[s.out / 2];
  const Reference want(widen(input.values), widen(w), widen(bias), widen(gamma), widen(beta), batch, s);
  const Guarded<float> X(input.values), W(w), Bias(bias), Gamma(gamma), Beta(beta), Da(da);
  const auto scratch_size = kernels::conv_bn_relu_pool_scratch_size(batch, s.in, s.out, s.side);

  for (std::size_t row = 0; row < forward.size(); ++row) {
    const std::string rung = forward[row].name;
    if ((rung == "conv_statistics" || rung == "tensor_cores") && s.side != kPool1Side) continue;
    const double bound = std::max(kBound, forward[row].own_error);
    const std::string name = rung + what, back = backward[row].name + what;
    const Guarded<float> a(a_size), kept(kernels::conv_bn_relu_pool_kept_size(batch, s.out, s.side)),
        statistics(2 * s.out), scratch(scratch_size);
    const Guarded<std::uint8_t> route(a_size);
    const auto run = [&] {
      forward[row].run(a.data(), route.data(), kept.data(), statistics.data(), scratch.data(), X.data(), W.data(),
                       Bias.data(), Gamma.data(), Beta.data(), batch, s.in, s.out, s.side, nullptr);
    };
    run();
    const auto got = a.read(name), got_statistics = statistics.read(name);
    const auto got_route = route.read(name);
    kept.read("kept by " + name);
    scratch.read("scratch of " + name);
    CHECK_CLOSE(got, want.a, bound, name);
    CHECK_CLOSE(got, want.at(got_route, s.side), bound, "route of " + name);
    const auto both = join(want.mean, want.var);
    // A variance is made of squares, which have twice the relative error.
    CHECK_CLOSE(got_statistics, both, std::max(kBound, 2 * forward[row].own_error), "statistics of " + name);
    if (!kEmulated) {  // which runs the threads and blocks in several orders
      run();
      report(a.read(name) == got && statistics.read(name) == got_statistics, name + ": other bits", __FILE__, __LINE__);
    }

    // Backward: the reference follows this row's decisions.
    std::vector<double> dy(want.z.size()), dz(dy.size()), dgamma(s.out), dbeta(s.out), dw(w.size()), dx(x_size);
    const auto DA = widen(da), G = widen(gamma), Wide = widen(w), XX = widen(input.values);
    reference::relu_max_pool2d_backward(dy.data(), DA.data(), got_route.data(), batch * s.out, s.side / 2);
    reference::batch_norm_backward(dz.data(), dgamma.data(), dbeta.data(), dy.data(), want.z.data(), G.data(),
                                   want.mean.data(), want.var.data(), batch, s.out, int(area));
    reference::conv2d_backward_weight(dw.data(), dz.data(), XX.data(), batch, s.in, s.out, s.side);
    reference::conv2d_backward_data(dx.data(), dz.data(), Wide.data(), batch, s.in, s.out, s.side);
    const Guarded<float> Dx(x_size), Dw(std::int64_t(w.size())), Dgamma(s.out), Dbeta(s.out), fresh(scratch_size);
    const auto run_back = [&] {
      backward[row].run(with_dx ? Dx.data() : nullptr, Dw.data(), Dgamma.data(), Dbeta.data(), fresh.data(), Da.data(),
                        X.data(), kept.data(), statistics.data(), route.data(), W.data(), Gamma.data(), batch, s.in,
                        s.out, s.side, nullptr);
    };
    run_back();
    const auto got_dw = Dw.read("dw of " + back);
    fresh.read("scratch of " + back);
    // Terms may cancel to a small rest: the error is measured against what was added.
    const double scale = std::max(norm(dw), norm(dz) * norm(input.values) / std::sqrt(double(batch * area)));
    // Positions of a chunk of images one after the other, then the chunks, as in test_conv2d.
    const auto [few, many] = std::minmax(
        {kernels::conv2d_backward_weight_chunks(batch, s.in, s.out, s.side), kernels::gradient_in_conv_chunks(batch)});
    const double sum = input.slack * sum_bound((batch + few - 1) / few * area + many);
    check_near(got_dw, dw, scale, std::max(bound, sum), "dw of " + back);
    const double most = norm(da) * std::sqrt(1 / double(s.out));
    check_near(Dgamma.read("dgamma of " + back), dgamma, std::max(norm(dgamma), most), bound, "dgamma of " + back);
    check_near(Dbeta.read("dbeta of " + back), dbeta, std::max(norm(dbeta), most), bound, "dbeta of " + back);
    if (with_dx) CHECK_CLOSE(Dx.read("dx of " + back), dx, bound, "dx of " + back);
    if (!kEmulated) {
      run_back();
      report(Dw.read(back) == got_dw, back + ": other bits", __FILE__, __LINE__);
    }
  }
}

// The libraries' rows, on the network's layers.
void test_libraries(const bench::Ladder<kernels::ConvBnReluPoolForward>& ladder, std::int64_t batch, const Shape& s) {
  const std::int64_t area = s.side * s.side, a_size = batch * s.out * area / 4;
  const auto x = random_normal<float>(batch * s.in * area, 1), w = random_normal<float>(s.out * s.in * kTaps, 2),
             bias = random_normal<float>(s.out, 3), gamma = random_normal<float>(s.out, 4),
             beta = random_normal<float>(s.out, 5);
  const Reference want(widen(x), widen(w), widen(bias), widen(gamma), widen(beta), batch, s);
  const Guarded<float> Bias(bias), Gamma(gamma), Beta(beta), kept(4 * a_size), statistics(2 * s.out);
  for (const auto& rung : ladder) {
    if (!rung.library) continue;
    const std::string name = rung.name + std::string(", batch ") + std::to_string(batch) + ", " + std::to_string(s.in);
    const Guarded<float> X(to_order_of(rung, x, s.in, area)), W(to_order_of(rung, w, s.in, kTaps)), a(a_size);
    const Guarded<std::uint8_t> route(a_size);
    try {
      rung.run(a.data(), route.data(), kept.data(), statistics.data(), nullptr, X.data(), W.data(), Bias.data(),
               Gamma.data(), Beta.data(), batch, s.in, s.out, s.side, nullptr);
    } catch (const UnavailableError& error) {  // of one channel cuDNN need not have every graph
      if (s.in > 1)
        not_tested(name, error.what());
      else
        std::printf("not tested: %s: %s\n", name.c_str(), error.what());
      continue;
    }
    const auto got = from_order_of(rung, a.read(name), s.out, area / 4);
    auto places = from_order_of(rung, route.read("route of " + name), s.out, area / 4);
    const double bound = std::max(kBound, rung.own_error);
    CHECK_CLOSE(got, want.a, bound, name);
    if (name.starts_with("cudnn_fused")) {  // the others may take an older interface, which keeps no places
      for (std::size_t k = 0; k < places.size(); ++k)
        if (got[k] == 0) places[k] = Routing::kDead;
      CHECK_CLOSE(got, want.at(places, s.side), bound, "places of " + name);
    }
  }
}

template <class Error = ArgumentError, class F>
void check_refuses(F call, const char* what) {
  bool refused = false;
  try {
    call();
  } catch (const Error&) {
    refused = true;
  }
  report(refused, std::string(what) + " is not refused", __FILE__, __LINE__);
}

// Launches that would read or write beside their arrays.
void test_refusals() {
  const Guarded<float> values(4 * 1024);
  const Guarded<std::uint8_t> route(1024);
  float* const v = values.data();
  check_refuses([&] { kernels::conv2d_with_statistics(v, v, v, v, v, 1, 1, 1, 12, nullptr); }, "side 12");
  check_refuses([&] { kernels::apply_pool(v, route.data(), v, v, v, v, v, 1, 1, 7, nullptr); }, "an odd side");
  check_refuses([&] { kernels::gradient_in_conv_data(v, {}, v, 1, 1, 129, kPool1Side, nullptr); }, "129 channels");
#ifdef MNIST_WITH_SM80
  check_refuses([&] { kernels::conv2d_with_statistics_tensor_cores(v, v, v, v, v, 1, 1, 1, 12, nullptr); }, "12, tf32");
  check_refuses([&] { kernels::gradient_in_conv_data_tensor_cores(v, {}, v, 1, 1, 129, kPool1Side, nullptr); },
                "129 channels, tf32");
  check_refuses([&] { kernels::gradient_in_conv_data_tensor_cores(v + 1, {}, v, 1, 1, 1, kPool1Side, nullptr); },
                "half a pair");
  check_refuses([&] { kernels::gradient_in_conv_weight_tensor_cores(v, {}, v, 1, 1, 1, 12, nullptr); },
                "12, dw in tf32");
#endif
  check_refuses([&] { kernels::layer_of_one_channel(v, route.data(), v, v, v, v, v, v, v, 1, 1, 48, nullptr); },
                "side 48");
}

}  // namespace

int main() {
  require_gpu();
  using namespace kernels;
  const auto rows = [](auto table, const char* op) { return present(bench::own_rungs(table), op); };
  const auto forward = rows(conv_bn_relu_pool_forward_variants(), "conv_bn_relu_pool");
  const auto backward = rows(conv_bn_relu_pool_backward_variants(), "conv_bn_relu_pool_backward");
  const auto layer1_forward = rows(conv_bn_relu_pool_layer1_forward_variants(), "conv_bn_relu_pool_layer1");
  const auto layer1_backward = rows(conv_bn_relu_pool_layer1_backward_variants(), "conv_bn_relu_pool_layer1_backward");
  // 128 and 129: one or two blocks an image; 256 and 257: one or two images a chunk of moments.
  const std::vector<std::int64_t> batches =
      kEmulated ? std::vector<std::int64_t>{1, 3, 129, 257}
                : std::vector<std::int64_t>{1, 2, 3, 31, 64, 127, 128, 129, 256, 257, 300, 1024};
  constexpr std::int64_t kMostWork = kEmulated ? 700'000 : 240'000'000;  // multiply-adds of the convolution
  for (const auto batch : batches) {
    const auto run = [&](const auto& forward, const auto& backward, const Shape& s, bool with_dx) {
      if (kTaps * batch * s.in * s.out * s.side * s.side > kMostWork) return;
      for (const auto& input : inputs(batch * s.in * s.side * s.side, 1))
        if (input.name == std::string("normal") || input.name == std::string("digits"))
          test(forward, backward, batch, s, input, with_dx);
    };
    for (const Shape& s : {Shape{32, 64, 14}, Shape{5, 40, 14}, Shape{2, 3, 14}, Shape{1, 3, 14}, Shape{1, 70, 14},
                           Shape{40, 2, 14}, Shape{2, 3, 8}, Shape{1, 2, 2}})
      run(forward, backward, s, true);
    for (const Shape& s : {Shape{1, 32, 28}, Shape{1, 40, 6}, Shape{1, 3, 16}, Shape{1, 1, 2}})
      run(layer1_forward, layer1_backward, s, false);
  }
  if (!kEmulated)
    for (const std::int64_t batch : {3, 64}) {
      test_libraries(present(bench::conv_bn_relu_pool_forward_ladder(), "conv_bn_relu_pool"), batch, {32, 64, 14});
      test_libraries(present(bench::conv_bn_relu_pool_layer1_forward_ladder(), "conv_bn_relu_pool_layer1"), batch,
                     {1, 32, 28});
    }
  test_refusals();
  return finish_on_gpu();
}
