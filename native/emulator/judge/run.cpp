// The program that runs the kernels of one judged file in the emulator. It knows inputs and no answers.
//
// Usage: run TASKS INPUTS OUTPUTS RESULTS. TASKS are words, see `main`; INPUTS are the arrays that the calls read, one
// after the other, OUTPUTS those that they left. A line of RESULTS, in JSON, says that a call has ended.
#include <cctype>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "emulator.h"
#include "judge/own.h"
#include "kernels/batch_norm/naive_ops.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/linear/linear.h"
#include "mnist/errors.h"

using namespace mnist;

namespace {

using Sizes = std::vector<std::int64_t>;

std::int64_t scratch_floats(const std::string& what, const Sizes& of) {
  if (what == "linear_partial_size") return kernels::linear_partial_size(of[0], int(of[1]), int(of[2]));
  if (what == "linear_backward_partial_size")
    return kernels::linear_backward_partial_size(of[0], int(of[1]), int(of[2]));
  if (what == "conv2d_backward_weight_partial_size")
    return kernels::conv2d_backward_weight_partial_size(of[0], int(of[1]), int(of[2]));
  if (what == "batch_norm_partial_size") return kernels::naive::batch_norm_partial_size(of[0], int(of[1]));
  if (what == "statistics") return 2 * of[1];
  throw std::runtime_error("no scratch is called " + what);
}

struct Array {
  std::string role;
  std::int64_t bytes = 0, shift = 0;
  char* data = nullptr;
  std::vector<char> given;  // of an input
  char* begin() const { return data + shift; }
};

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c < ' ' && c >= 0 ? ' ' : c;
  }
  return out + '"';
}

}  // namespace

int main(int count, char** names) {
  if (count != 5) return 2;
  std::ifstream tasks(names[1]), inputs(names[2], std::ios::binary);
  std::ofstream outputs(names[3], std::ios::binary);
  std::FILE* results = std::fopen(names[4], "w");
  if (!tasks || !inputs || !outputs || !results) return 2;
  // A task: launcher, calls, sizes and reals, each with its number; then arrays: role, bytes or the name of a size in
  // floats, bytes by which it is shifted.
  for (int launcher, calls, task = 0; tasks >> launcher >> calls; ++task) {
    std::size_t number;
    tasks >> number;
    Sizes sizes(number);
    for (auto& size : sizes) tasks >> size;
    tasks >> number;
    std::vector<double> reals(number);
    for (auto& real : reals) tasks >> real;
    tasks >> number;
    std::vector<Array> arrays(number);
    std::vector<void*> addresses;
    for (auto& array : arrays) {
      std::string bytes;
      tasks >> array.role >> bytes >> array.shift;
      array.bytes = std::isdigit(bytes[0]) ? std::stoll(bytes) : 4 * scratch_floats(bytes, sizes);
      void* data = nullptr;
      if (cudaMalloc(&data, std::size_t(array.bytes + array.shift)) != cudaSuccess) return 5;
      array.data = static_cast<char*>(data);
      addresses.push_back(array.begin());
    }
    std::vector<char> first;
    for (int n = 0; n < calls; ++n) {
      // The first two calls get the same inputs, and run in other orders of threads: all orders, then one.
      for (auto& array : arrays) {
        if (array.role == "in" && n != 1) {
          array.given.resize(std::size_t(array.bytes));
          inputs.read(array.given.data(), array.bytes);
          cudaMemcpy(array.begin(), array.given.data(), array.given.size(), cudaMemcpyHostToDevice);
        } else if (n > 0 && array.role != "in") {
          cudaMemset(array.begin(), 0xff, std::size_t(array.bytes));  // NaN
        }
      }
      emulator::set_orders(n == 0 ? 3 : 1);
      emulator::reset();
      const char* why = "";
      const int result = mnist_own_launch(launcher, 0, addresses.data(), sizes.data(), reals.data(), nullptr, &why);
      const std::string failed = result == kOwnDone ? "" : why;
      std::string changed;
      std::vector<char> left;
      for (std::size_t k = 0; k < arrays.size(); ++k) {
        const Array& array = arrays[k];
        if (array.role == "in" && std::memcmp(array.begin(), array.given.data(), array.given.size()) != 0)
          changed += (changed.empty() ? "" : ", ") + std::to_string(k);
        if (array.role == "out") left.insert(left.end(), array.begin(), array.begin() + array.bytes);
      }
      outputs.write(left.data(), std::streamsize(left.size()));
      outputs.flush();
      const bool differs = n == 1 && left != first;
      if (n == 0) first = left;
      const auto report = emulator::report();
      std::fprintf(results,
                   "{\"task\": %d, \"call\": %d, \"failed\": %s, \"refused\": %s, \"changed\": [%s], \"differs\": %s, "
                   "\"report\": %s}\n",
                   task, n, quoted(failed).c_str(), result == kOwnThrew ? "true" : "false", changed.c_str(),
                   differs ? "true" : "false", emulator::to_json(report).c_str());
      std::fflush(results);
    }
    for (auto& array : arrays) cudaFree(array.data);
  }
}
