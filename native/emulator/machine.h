// What the parts of the emulator share: the block that runs now, its threads, and where they stand in time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda_runtime_api.h"
#include "emulator.h"

namespace emulator {

constexpr int kLanes = 32, kMaxThreads = 1024, kMostShared = 163 << 10;

enum class State { kReady, kAtBarrier, kAtMeeting, kAtPart, kActive, kDone };  // kAtPart: a barrier of some threads

// A copy by cp.async: of `given` bytes, then zeros, in group `group` of its thread.
struct AsyncCopy {
  char* to;
  const void* from;
  int bytes, given, group;
  std::uint64_t place;
};

// A thread of a kernel is a fiber: it runs until it waits for others. Time has two hands. `epoch` counts the block's
// barriers: what lies in different epochs is ordered. Within an epoch lanes order themselves by __syncwarp: clock[k] is
// the last moment of lane k that this lane knows to lie behind it (a vector clock); known[k], of thread k of another
// warp, by the barriers of barriers.cpp.
struct Thread {
  void* stack_pointer = nullptr;
  State state = State::kReady;
  int number = 0;
  uint3 index{};
  std::uint64_t place = 0;  // where it waits: an address of code
  unsigned mask = 0;
  bool order = false;
  std::uint64_t value = 0;
  std::uint64_t met[kLanes] = {};
  unsigned met_mask = 0;
  std::uint32_t clock[kLanes] = {};
  std::vector<std::uint32_t> known = {};  // empty until there is such a barrier

  std::vector<AsyncCopy> copies = {};  // of cp.async, on their way, first to last
  int groups = 0;                      // of them that are committed

  std::uint32_t given[2][9] = {};  // registers for the other lanes, of an instruction of the warp and of the one before
  int turn = 0;

  int lane() const { return number % kLanes; }
  int warp() const { return number / kLanes; }
};

struct Machine {
  Thread *current = nullptr, *threads = nullptr;
  int thread_count = 0;
  std::int64_t barriers = 0, atomics = 0;
  const char* kernel = "";
  std::uint32_t run = 0;    // number of this pass over a grid: each order of each launch is one
  std::uint32_t block = 0;  // number within the grid, from 1
  std::uint32_t epoch = 0;
  bool counting = false, aborted = false;
  dim3 grid, block_size;
  uint3 block_index{};
  char* stacks = nullptr;
  std::size_t stacks_bytes = 0;
  const char* body = nullptr;
  std::size_t body_bytes = 0;
};
extern Machine machine;

// The emulator's own work on a thread's stack. The linker may take an instrumented copy of a template of the standard
// library for it, whose hooks must find nothing to do.
inline int inside;
struct Inside {
  Inside() { ++inside; }
  ~Inside() { --inside; }
};

// Bytes of the sectors of global memory that warps asked for, and distinct ones.
struct GlobalBytes {
  std::int64_t all, least;
};

// machine.cpp
void wait(State state, std::uint64_t place);  // until another thread makes this one ready
Met meet_at(std::uint64_t place, unsigned mask, std::uint64_t value, bool order);
[[noreturn]] void abandon_launch();  // from a thread: the launch ends here, as after an illegal address
void set_last_error(cudaError_t error);
// barriers.cpp
void forget_barriers();  // a block begins
// memory.cpp
void access(const void* pointer, int bytes, bool write, bool atomic, std::uint64_t place);  // a load or store
char* shared_pointer(std::uint32_t address, int bytes,
                     std::uint64_t place);  // of memory that exists, or ends the launch
void begin_epoch();
void begin_run();
void begin_block(std::size_t dynamic_bytes);
void end_warp();                 // all lanes of the warp wait or have ended: its accesses are counted
void begin_launch();             // keeps a copy of memory
void restore_memory();           // puts it back for another order, and keeps what the first one left
GlobalBytes finish_counts();     // after the first order: of all of its accesses
void compare_memory(int order);  // reports where this order left other bits
std::string who(int number, std::uint32_t block);
// report.cpp
bool known_fault(const char* kind, std::uint64_t place,
                 std::uint64_t other = 0);  // then it counts it, and needs no words
void add_fault(const char* kind, const std::string& words, std::uint64_t place, std::uint64_t other = 0);
bool same_line(std::uint64_t a, std::uint64_t b);
struct Counted {  // as Line has it
  std::uint64_t place = 0;
  int bytes = 0;
  bool write = false, shared = false;
  std::int64_t accesses = 0, lanes = 0, cost = 0, least = 0;
  std::string name = {};
  Lanes first = {};
};
void add_counts(const Counted& counted);
void add_kernel(const GlobalBytes& bytes, std::size_t dynamic_bytes);  // the first order of its launch

}  // namespace emulator
