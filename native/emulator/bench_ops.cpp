// `mnist-cuda bench ops --emulate`: every row of an op's ladder in the emulator; JSON on stdout.
// Usage: bench_ops OP VARIANT BATCH, the first two empty for all.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/op_cases.h"
#include "emulator.h"

using namespace mnist;

namespace {

struct Checked {
  double error = 0;
  std::string wrong;  // the first wrong element, with those around it; empty if there is none
};

Checked check(const bench::OpCase& op, double bound) {
  std::vector<double> got = bench::output_of(op, nullptr);
  got.resize(op.want.size());
  Checked result{bench::relative_error(got, op.want), ""};
  if (result.error <= bound) return result;
  double norm = 0;
  for (const double value : op.want) norm += value * value;
  const double typical = std::sqrt(norm / double(got.size()));
  const auto right = [&](std::size_t k) { return std::abs(got[k] - op.want[k]) <= 1e-3 * typical; };
  for (std::size_t k = 0; k < got.size(); ++k) {
    if (right(k)) continue;
    char text[100];
    std::snprintf(text, sizeof text, "output[%zu] is %g, expected %g; from there on ", k, got[k], op.want[k]);
    result.wrong = text;
    for (std::size_t n = k; n < std::min(got.size(), k + 32); ++n) result.wrong += right(n) ? '.' : 'X';
    break;
  }
  return result;
}

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return std::isfinite(value) ? text : "null";
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return 2;
  const std::string wanted = arguments[1], variant = arguments[2];
  const std::int64_t batch = std::atoll(arguments[3]);
  emulator::set_orders(3);
  const char* comma = "";
  std::printf("{\"rows\": [");
  for (const auto& entry : bench::op_entries()) {
    if (!wanted.empty() && wanted != entry.name) continue;
    const bench::OpCase op = entry.make(batch, nullptr);
    for (const auto& rung : op.ladder) {
      if (!variant.empty() && variant != rung.name) continue;
      const double bound = std::max(op.bound, rung.own_error);
      std::printf(
          "%s{\"op\": \"%s\", \"shape\": \"%s\", \"variant\": \"%s\", \"bound\": %s, \"absent\": \"%s\", "
          "\"bytes\": %s, \"flops\": %s, \"unit\": \"%s\"",
          comma, entry.name, op.shape.c_str(), rung.name, number(bound).c_str(), rung.absent.c_str(),
          number(op.cost.bytes).c_str(), number(op.cost.flops).c_str(), kernels::name_of(rung.unit));
      comma = ", ";
      if (rung.absent.empty()) {
        cuda::fill_bytes(op.output.data(), 0xff, op.output.size(), nullptr);
        emulator::reset();
        std::string failed;
        try {
          rung.run(nullptr);
        } catch (const std::exception& error) {
          failed = error.what();
        }
        const auto [error, wrong] = check(op, bound);
        std::printf(", \"error\": %s, \"wrong\": \"%s\", \"failed\": \"%s\", \"report\": %s", number(error).c_str(),
                    wrong.c_str(), failed.c_str(), emulator::to_json(emulator::report()).c_str());
      }
      std::printf("}");
      std::fflush(stdout);
    }
  }
  std::printf("]}\n");
}
