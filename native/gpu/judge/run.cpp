// The program that runs the kernels of one judged file, on a GPU or in the emulator. It knows inputs and no answers.
//
// Usage: run TASKS INPUTS OUTPUTS RESULTS. TASKS are words, see Task's constructor; INPUTS are the arrays that the
// calls read, set by set, OUTPUTS those that they left, each followed by a bit for each of its bytes, whether it was
// stored, where the machine knows. A line of RESULTS, in JSON, says that a call has ended; it counts with the word that
// standard input has.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/buffer.h"
#include "cuda/stream.h"
#include "judge/machine.h"
#include "judge/own.h"
#include "kernels/batch_norm/naive_ops.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/linear/linear.h"
#include "mnist/errors.h"

using namespace mnist;

namespace {

constexpr double kBlockSeconds = 2e-3;  // of calls back to back: long against the cost of reading the clock
constexpr int kBlocks = 5;

// Read and hidden before any constructor of the judged file runs.
char word[33];
#pragma GCC diagnostic ignored "-Wprio-ctor-dtor"
__attribute__((constructor(1))) void read_word() {
  for (std::size_t got = 0; got < sizeof word - 1;) {
    const auto more = ::read(0, word + got, sizeof word - 1 - got);
    if (more <= 0) break;
    got += std::size_t(more);
  }
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing < 0 || ::dup2(nothing, 0) < 0) ::_exit(2);
}

constexpr std::size_t kMostWords = 300;  // bytes of what a launcher throws

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
  cuda::DeviceBuffer<char> memory = {}, kept = {};  // between guards; of an input, what a call begins with
  std::vector<std::vector<char>> sets = {};         // an input's values
  std::vector<char> left = {};                      // by a call, guards included
  std::int64_t before() const { return judge::kGuard + shift; }
  char* begin() const { return memory.data() + before(); }
};

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text.substr(0, kMostWords)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c < ' ' && c >= 0 ? ' ' : c;
  }
  return out + '"';
}

std::string numbers(const std::vector<std::size_t>& values) {
  std::string out;
  for (const auto value : values) out += (out.empty() ? "" : ", ") + std::to_string(value);
  return "[" + out + "]";
}

// What a call did: why it failed, whether the launcher threw that, and its seconds; 0 where they are not known, and
// why.
struct Done {
  std::string failed = {};
  bool threw = false;
  double seconds = 0;
  std::string untimed = {};
};

class Task {
 public:
  Task(std::istream& words, std::istream& inputs) {
    // Launcher; whether the calls are timed; the set of inputs of each call, sizes and reals, each with their number;
    // then arrays: role, bytes or the name of a size in floats, bytes by which it is shifted.
    words >> launcher_ >> timed_;
    read(words, calls_);
    read(words, sizes_);
    read(words, reals_);
    std::size_t number = 0;
    words >> number;
    for (std::size_t k = 0; k < number; ++k) {
      Array array;
      std::string bytes;
      words >> array.role >> bytes >> array.shift;
      array.bytes = std::isdigit(bytes[0]) ? std::stoll(bytes) : 4 * scratch_floats(bytes, sizes_);
      array.memory = cuda::DeviceBuffer<char>(array.bytes + array.shift + 2 * judge::kGuard);
      array.left.resize(std::size_t(array.memory.size()));
      addresses_.push_back(array.begin());
      arrays_.push_back(std::move(array));
    }
    const int sets = *std::ranges::max_element(calls_) + 1;
    for (int set = 0; set < sets; ++set)
      for (auto& array : arrays_) {
        if (array.role != "in") continue;
        inputs.read(array.sets.emplace_back(std::size_t(array.bytes)).data(), array.bytes);
        array.kept.reserve(array.bytes);
      }
  }

  std::size_t calls() const { return calls_.size(); }

  void run(int number, std::ostream& outputs, std::FILE* results, int task) {
    const bool last = number + 1 == int(calls_.size());
    fill(number);
    const Done done = timed_ ? last ? time_warm() : time_cold() : finish(launch(stream_.get()));
    std::function<void(cudaStream_t)> again;  // once a task, when everything lazy has happened
    if (last && done.failed.empty()) again = [this](cudaStream_t stream) { (void)launch(stream); };
    const std::string report = judge::report(again, stream_.get());
    std::vector<std::size_t> changed, outside;
    std::vector<char> found;
    std::vector<std::size_t> ends;
    std::vector<std::vector<char>> stored;
    for (std::size_t k = 0; k < arrays_.size(); ++k) {
      const Array& array = arrays_[k];
      const auto begin = array.left.begin() + array.before(), end = begin + array.bytes;
      const auto& given = array.role == "in" ? array.sets[std::size_t(calls_[std::size_t(number)])] : array.left;
      if (array.role == "in" && !std::equal(begin, end, given.begin())) changed.push_back(k);
      if (array.role == "out") {
        found.insert(found.end(), begin, end);
        if (const auto bits = judge::stored(array.begin(), array.bytes)) stored.push_back(*bits);
        ends.push_back(found.size());
      }
      const auto is_guard = [](char byte) { return byte == kSeen; };
      if (judge::kGuard > 0 &&
          !(std::all_of(array.left.begin(), begin, is_guard) && std::all_of(end, array.left.end(), is_guard)))
        outside.push_back(k);
    }
    for (std::size_t n = 0, at = 0; n < ends.size(); at = ends[n++]) {
      outputs.write(found.data() + at, std::streamsize(ends[n] - at));
      if (!stored.empty()) outputs.write(stored[n].data(), std::streamsize(stored[n].size()));
    }
    outputs.flush();
    const bool differs = !timed_ && number == 1 && found != first_;
    if (number == 0) first_ = found;
    std::fprintf(results,
                 "{\"word\": \"%s\", \"task\": %d, \"call\": %d, \"failed\": %s, \"refused\": %s, \"changed\": %s, "
                 "\"outside\": %s, "
                 "\"differs\": %s, \"seconds\": %.9g, \"untimed\": %s, \"report\": %s}\n",
                 word, task, number, quoted(done.failed).c_str(), done.threw ? "true" : "false",
                 numbers(changed).c_str(), numbers(outside).c_str(), differs ? "true" : "false", done.seconds,
                 quoted(done.untimed).c_str(), report.c_str());
    std::fflush(results);
  }

 private:
  static constexpr char kSeen = char(0xa5);

  template <class T>
  static void read(std::istream& words, std::vector<T>& values) {
    std::size_t number = 0;
    words >> number;
    values.resize(number);
    for (auto& value : values) words >> value;
  }

  // Queues what the call begins with: new inputs, NaN everywhere else.
  void fill(int number) {
    const auto set = std::size_t(calls_[std::size_t(number)]);
    for (auto& array : arrays_)
      if (array.role == "in") cuda::upload(array.kept.data(), std::span<const char>(array.sets[set]), stream_.get());
    stream_.synchronize();
    judge::before_call(number, stream_.get());
    for (auto& array : arrays_) {
      if (judge::kGuard > 0) {
        const auto behind = array.memory.size() - array.before() - array.bytes;
        cuda::fill_bytes(array.memory.data(), kSeen, array.before(), stream_.get());
        cuda::fill_bytes(array.begin() + array.bytes, kSeen, behind, stream_.get());
      }
      if (array.role == "in")
        cuda::copy(array.begin(), array.kept.data(), array.bytes, stream_.get());
      else
        judge::poison(array.begin(), array.bytes, stream_.get());
    }
  }

  Done launch(cudaStream_t stream) {
    const char* why = "";
    const int result = mnist_own_launch(launcher_, 0, addresses_.data(), sizes_.data(), reals_.data(), stream, &why);
    return {result == kOwnDone ? "" : why, result == kOwnThrew};
  }

  // Brings what the call left to the host, at once.
  Done finish(Done done) {
    cudaError_t error = cudaSuccess;
    for (auto& array : arrays_)
      if (error == cudaSuccess)
        error = cudaMemcpyAsync(array.left.data(), array.memory.data(), array.left.size(), cudaMemcpyDeviceToHost,
                                stream_.get());
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream_.get());
    if (error != cudaSuccess && done.failed.empty())
      done.failed = std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
    return done;
  }

  Done time_cold() {
    judge::empty_caches(stream_.get());
    start_.record(stream_.get());
    Done done = launch(stream_.get());
    stop_.record(stream_.get());
    done = finish(done);
    if (done.failed.empty()) cold_.push_back(done.seconds = cuda::elapsed_ms(start_, stop_) / 1e3);
    return done;
  }

  // Calls one after the other, as one launch of a graph, so that the host's launches do not show.
  Done time_warm() {
    const double one = cold_.empty() ? kBlockSeconds : std::max(1e-6, *std::ranges::min_element(cold_));
    const int repeats = std::clamp(int(kBlockSeconds / one), 1, 1000);
    cudaGraphExec_t graph = nullptr;
    std::string why;
    if (!judge::record([this](cudaStream_t stream) { (void)launch(stream); }, repeats, stream_.get(), &graph, &why)) {
      Done done = finish(launch(stream_.get()));
      done.untimed = why;
      return done;
    }
    Done done;
    try {
      MNIST_CHECK(cudaGraphLaunch(graph, stream_.get()));
      std::vector<double> times;
      for (int block = 0; block < kBlocks; ++block) {
        start_.record(stream_.get());
        MNIST_CHECK(cudaGraphLaunch(graph, stream_.get()));
        stop_.record(stream_.get());
        times.push_back(cuda::elapsed_ms(start_, stop_) / 1e3 / repeats);
      }
      done = finish({});
      std::ranges::sort(times);
      done.seconds = times[times.size() / 2];
    } catch (const std::exception& error) {
      done.failed = error.what();
    }
    (void)cudaGraphExecDestroy(graph);
    return done;
  }

  int launcher_ = 0, timed_ = 0;
  std::vector<int> calls_;
  Sizes sizes_;
  std::vector<double> reals_, cold_;
  std::vector<Array> arrays_;
  std::vector<void*> addresses_;
  std::vector<char> first_;
  cuda::Stream stream_;
  cuda::Event start_{0}, stop_{0};
};

}  // namespace

int main(int count, char** names) {
  if (count != 5) return 2;
  std::ifstream tasks(names[1]), inputs(names[2], std::ios::binary);
  std::ofstream outputs(names[3], std::ios::binary);
  std::FILE* results = std::fopen(names[4], "w");
  if (!tasks || !inputs || !outputs || !results) return 2;
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // what a kernel prints is there when it ends, however it ends
  try {
    for (int task = 0; tasks >> std::ws && !tasks.eof(); ++task) {
      Task one(tasks, inputs);
      for (int number = 0; number < int(one.calls()); ++number) one.run(number, outputs, results, task);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 5;
  }
}
