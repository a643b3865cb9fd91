// The program of an emulated engine: mnist_cuda/judge/emulated.py asks, this answers.
//
// Usage: run ENGINE OP LIBRARY NUMBER LEFT_OUT..., the last four for each launcher of the user's, as in OwnOp; they are
// linked with this program, and so is open_own().
// A question is a line, its name and numbers, and arrays behind it; an answer the word `ok` or `error` with the number
// of bytes that follow.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "emulator.h"
#include "mnist/engine.h"
#include "profile/kernel_use.h"

namespace mnist {
namespace cuda {
std::vector<std::vector<KernelUse>> kernels_between_events(cudaGraph_t) { return {}; }  // of profile()
}  // namespace cuda
std::unique_ptr<Engine> create_naive(const EngineInfo& info, const EngineOptions& options);
std::unique_ptr<Engine> create_tiled(const EngineInfo& info, const EngineOptions& options);
}  // namespace mnist

using namespace mnist;

namespace {

template <class T>
std::vector<T> read(std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  if (std::fread(values.data(), sizeof(T), values.size(), stdin) != values.size()) std::_Exit(1);  // nobody asks
  return values;
}

template <class T>
std::string bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The answer to a question whose numbers are `of`.
std::string answer(Engine& engine, const std::string& question, const std::vector<std::int64_t>& of) {
  if (question == "orders") {
    emulator::set_orders(int(of.at(0)));
  } else if (question == "report") {
    return emulator::to_json(emulator::report());
  } else if (question == "set_parameters") {
    engine.set_parameters(std::span<const double>(read<double>(kParameterCount)));
  } else if (question == "initialize_parameters") {
    using Word = Pcg64::Word;
    const auto part = read<std::uint64_t>(4);
    engine.initialize_parameters({Word(part[0]) << 64 | part[1], Word(part[2]) << 64 | part[3]});
  } else if (question == "get_parameters") {
    std::vector<double> values(kParameterCount);
    engine.get_parameters(std::span(values));
    return bytes(values);
  } else if (question == "set_dataset") {
    const auto images = read<std::uint8_t>(of.at(0) * kImagePixels);
    engine.set_dataset(images, read<std::uint8_t>(of.at(0)));
  } else if (question == "train") {  // steps, images, images a step
    const auto rates = read<double>(of.at(0));
    std::vector<StepResult> results(rates.size());
    engine.train(read<std::int32_t>(of.at(1)), of.at(2), rates, results);
    std::vector<double> found;
    for (const auto& result : results) found.insert(found.end(), {result.loss, double(result.correct)});
    return bytes(found);
  } else if (question == "gradients") {  // of a batch
    const auto images = read<std::uint8_t>(of.at(0) * kImagePixels);
    return bytes(engine.probe(images, read<std::uint8_t>(of.at(0))).gradients);
  } else {
    throw ArgumentError("no question is called " + question);
  }
  return "";
}

}  // namespace

int main(int count, char** words) {
  if (count < 2) return 2;
  // What a kernel or a launcher prints goes to standard error.
  std::FILE* answers = ::fdopen(::dup(1), "wb");
  ::dup2(2, 1);
  EngineOptions options;
  for (int k = 2; k + 3 < count; k += 4)
    options.own_ops.push_back({words[k], words[k + 1], std::atoi(words[k + 2]), unsigned(std::atoi(words[k + 3]))});
  emulator::set_orders(1);
  const EngineInfo info{.name = words[1], .precisions = {Precision::kFp32}, .follows_routing = true};
  const auto engine = info.name == "naive" ? create_naive(info, options) : create_tiled(info, options);
  std::string line;
  for (int letter; (letter = std::getchar()) != EOF;) {
    if (letter != '\n') {
      line += char(letter);
      continue;
    }
    std::istringstream question(line);
    std::string name, found;
    std::vector<std::int64_t> numbers;
    question >> name;
    for (std::int64_t number; question >> number;) numbers.push_back(number);
    const char* state = "ok";
    try {
      found = answer(*engine, name, numbers);
    } catch (const std::exception& error) {
      found = error.what();
      state = "error";
    }
    std::fprintf(answers, "%s %zu\n", state, found.size());
    std::fwrite(found.data(), 1, found.size(), answers);
    std::fflush(answers);
    line.clear();
  }
}
