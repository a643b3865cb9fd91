// The emulator against kernels with planted faults: each is found, at its line; and against right ones: no report.
#include <cuda_runtime_api.h>
#include <stdio_ext.h>

#include <fstream>
#include <map>

#include "emulator.h"
#include "faults.h"
#include "testing.h"

namespace {

// Line number to what follows the mark, from the comments of a file.
std::map<int, std::string> marked_lines(const std::string& file, const std::string& mark) {
  std::map<int, std::string> lines;
  std::ifstream source(MNIST_FAULTS + file);
  std::string text;
  for (int line = 1; std::getline(source, text); ++line)
    if (const auto at = text.find(mark); at != std::string::npos) lines[line] = text.substr(at + mark.size());
  return lines;
}

// Where the function's own lines begin and end.
std::pair<int, int> lines_of(const std::string& file, const std::string& name) {
  std::ifstream source(MNIST_FAULTS + file);
  std::string text;
  int begin = 0;
  for (int line = 1; std::getline(source, text); ++line) {
    if (text.find("void " + name + "(") != std::string::npos) begin = line;
    if (begin && text == "}") return {begin, line};
  }
  return {0, 0};
}

template <class T>
T* on_gpu(const std::vector<T>& values) {
  T* data = nullptr;
  cudaMalloc(&data, values.size() * sizeof(T));
  cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  return data;
}

void check_planted(const std::string& file, const Planted& one) {
  const auto marked = marked_lines(file, "// fault: ");
  float* y = nullptr;
  cudaMalloc(&y, 256 * sizeof(float));
  const float* x = on_gpu(testing::random_normal<float>(192, 1));
  reset_variables();
  emulator::reset();
  one.run(y, x);
  (void)cudaGetLastError();
  const auto report = emulator::report();
  const auto [begin, end] = lines_of(file, one.name);
  int found = 0, elsewhere = 0;
  for (const auto& fault : report.faults) {
    if (fault.kind == "order") continue;  // a consequence
    const auto mark = marked.find(fault.line);
    const bool here = fault.file.ends_with(file) && fault.line >= begin && fault.line <= end;
    const std::string kinds = here && mark != marked.end() ? mark->second : "";
    if (kinds.starts_with(fault.kind))
      ++found;
    else if (!kinds.ends_with(", " + fault.kind))
      ++elsewhere;
  }
  testing::report(begin > 0 && found > 0 && elsewhere == 0,
                  std::string(one.name) + ": found " + std::to_string(found) +
                      " times, and elsewhere or as another kind " + std::to_string(elsewhere) + ":\n" +
                      emulator::to_words({report.faults, {}, {}}),
                  __FILE__, __LINE__);
}

void check_right(const Planted& one) {
  float* y = nullptr;
  cudaMalloc(&y, 256 * sizeof(float));
  const float* x = on_gpu(testing::random_normal<float>(192, 1));
  reset_variables();
  emulator::reset();
  one.run(y, x);
  testing::report(__fpending(stdout) == 0, std::string(one.name) + ": its print waits", __FILE__, __LINE__);
  testing::report(cudaGetLastError() == cudaSuccess, std::string(one.name) + ": an error", __FILE__, __LINE__);
  const auto report = emulator::report();
  testing::report(report.faults.empty(), std::string(one.name) + ": " + emulator::to_words({report.faults, {}, {}}),
                  __FILE__, __LINE__);
  std::vector<float> got(256);
  cudaMemcpy(got.data(), y, 256 * sizeof(float), cudaMemcpyDeviceToHost);
  // What each leaves in y[0] and y[1], by hand.
  std::vector<float> from(192);
  cudaMemcpy(from.data(), x, 192 * sizeof(float), cudaMemcpyDeviceToHost);
  const std::string name = one.name;
  const auto sum = [&](int count) {
    double total = 0;
    for (int k = 0; k < count; ++k) total += from[std::size_t(k)];
    return total;
  };
  double want = name.starts_with("right_") ? from[0] : 0;
  if (name == "good_tile" || name == "good_copy") want = from[63];
  if (name == "good_warp" || name == "good_roles" || name == "good_ring") want = from[31];
  if (name == "good_halves") want = from[15];
  if (name == "good_bytes" || name == "good_active" || name == "good_votes" || name == "good_product" ||
      name == "good_readers" || name == "good_matrices")
    want = from[0];
  if (name == "good_atomics") {
    int start, count;
    std::memcpy(&start, &from[0], 4), std::memcpy(&count, &got[0], 4);
    testing::report(count == start + 192, name + ": " + std::to_string(count - start), __FILE__, __LINE__);
    return;
  }
  if (name == "good_same_value") want = from[5];
  if (name == "good_early_warp") want = sum(32);
  if (name == "good_groups") want = sum(16);
  if (name == "good_short_warp") want = double(from[0]) + 1;
  testing::report(std::abs(got[0] - want) < 1e-5,
                  name + ": " + std::to_string(got[0]) + ", expected " + std::to_string(want), __FILE__, __LINE__);
  if (name == "good_active") testing::report(got[1] == 16, "good_active: lanes", __FILE__, __LINE__);
}

void check_costs() {
  float* y = nullptr;
  cudaMalloc(&y, 256 * sizeof(float));
  const float* x = on_gpu(testing::random_normal<float>(192, 1));
  emulator::reset();
  run_costs(y, x);
  std::map<int, std::string> found;
  const auto report = emulator::report();
  for (const auto& line : report.lines) {
    char text[100];
    const double n = double(line.accesses);
    std::snprintf(text, sizeof text, "%g of %g, %g lanes", double(line.cost) / n, double(line.least) / n,
                  double(line.lanes) / n);
    found[line.line] = text;
    CHECK(line.name == (line.shared ? line.name : line.write ? "y" : "x"));
  }
  const auto marked = marked_lines("faults.cu", "// cost: ");
  int checked = 0;
  for (const auto& [line, want] : marked) {
    if (want.find('"') != std::string::npos || want.find('N') != std::string::npos) continue;
    ++checked;
    testing::report(found[line] == want, "line " + std::to_string(line) + ": " + found[line] + ", expected " + want,
                    __FILE__, __LINE__);
  }
  CHECK(checked == 17);
  CHECK(report.faults.empty());
  CHECK(report.kernels.size() == 1 && report.kernels[0].least_bytes == 4 * (134 + 32) &&
        report.kernels[0].bytes == 32 * (4 + 20 + 1 + 5 + 4 + 16 + 4));
}

}  // namespace

void set(float* y, const float* x, int count) {
  cudaMemset(y, 0, 256 * sizeof(float));
  cudaMemcpy(y, x, std::size_t(count) * sizeof(float), cudaMemcpyDeviceToDevice);
}
const float* host() {
  static const std::vector<float> kValues(64, 1.0f);
  return kValues.data();
}
const float* gone() {
  float* data = on_gpu(std::vector<float>(64, 1.0f));
  cudaFree(data);
  return data;
}

int main() {
  emulator::set_orders(3);
  for (const auto& one : planted()) check_planted("faults.cu", one);
  for (const auto& one : right()) check_right(one);
  for (const auto& one : nearest()) check_planted("nearest.cu", one);
  for (const auto& one : nearly()) check_right(one);
  check_costs();
  return testing::finish();
}
