// What a host program asks the emulator: which faults the kernels had, and what their memory accesses cost.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace emulator {

// One fault of one place in the source, however often it happened.
struct Fault {
  std::string kind;   // as in docs/emulator.md: "race", "outside", "unset", "misaligned", "barrier", ...
  std::string words;  // a sentence
  std::string file, other_file;
  int line = 0, other_line = 0;  // of the access or barrier, and of what it conflicts with; 0 if there is none
  std::int64_t count = 0;
};

// By lane of a warp's access: how many bytes behind the array's first one it begins; nothing where the lane is idle.
using Lanes = std::array<std::optional<std::int64_t>, 32>;

// What the loads or stores of one array in one source line cost, summed over warps and launches.
struct Line {
  std::string file, kernel, name;  // name: the array's
  int line = 0, bytes = 0;         // bytes: of one lane's access
  bool write = false, shared = false;
  std::int64_t accesses = 0, lanes = 0;  // of warps; and the lanes that took part, of 32 an access
  Lanes first = {};                      // where the first of them went
  // Global memory: sectors of 32 bytes. Shared memory: turns that the banks need. `least`: for the same bytes.
  std::int64_t cost = 0, least = 0;
};

struct Kernel {
  std::string name;
  std::int64_t launches = 0, blocks = 0, threads = 0, barriers = 0;
  std::int64_t atomics = 0;  // on global memory, by threads
  // Of global memory: bytes of the sectors that warps asked for, and distinct bytes, each counted once a launch.
  std::int64_t bytes = 0, least_bytes = 0;
  // Of the launch with the most threads: threads of a block, and bytes of shared memory that the launch asks for.
  std::int64_t largest = 0, block = 0, dynamic_bytes = 0;
  std::vector<std::string> functions = {};  // the kernel's instances, as addr2line names them
};

struct Report {
  std::vector<Fault> faults;
  std::vector<Fault> notes;  // what is no fault on a GPU, and is seldom meant
  std::vector<Line> lines;
  std::vector<Kernel> kernels;
};

// How many orders of threads and blocks every launch runs in; all must leave the same bits. 1: first to last; then last
// to first; then shuffled. Counts are those of the first order.
void set_orders(int count);
void reset();  // forgets what was seen; memory stays
bool any_fault();
void forget(void* data, std::size_t bytes);  // of global memory: it holds NaN and counts as never written
std::vector<char> stored(const void* data, std::size_t bytes);  // a bit for each byte: whether it was written since
Report report();
std::string to_json(const Report& report);
std::string to_words(const Report& report);

}  // namespace emulator
