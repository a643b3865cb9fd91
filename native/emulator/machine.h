// What the parts of the emulator share: the block that runs now, its threads, and where they stand in time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda_runtime_api.h"
#include "emulator.h"

namespace emulator {

constexpr int kLanes = 32, kMaxThreads = 1024, kMostShared = 163 << 10;

// kAtPart: a barrier of some threads. kPaused: others come first.
enum class State { kReady, kPaused, kAtBarrier, kAtMeeting, kAtPart, kActive, kDone };

// A copy by cp.async: of `given` bytes, then zeros, in group `group` of its thread.
struct AsyncCopy {
  char* to;
  const void* from;
  int bytes, given, group;
  std::uint64_t place;
};

// How far a block has come: all of its epochs before `epoch`; in that one, thread `first` + k up to its moment
// clock[k].
struct Moment {
  std::uint32_t epoch = 0;
  std::size_t first = 0;
  std::vector<std::uint32_t> clock = {};
  std::uint32_t of(std::size_t thread) const {
    return thread >= first && thread < first + clock.size() ? clock[thread - first] : 0;
  }
  void join(const Moment& other);
};
// How far blocks have come, by their number. Those that know the same share it.
class Knowledge {
 public:
  bool empty() const { return !all_; }
  const Moment* of(std::uint32_t block) const;  // null: nothing is known of it
  void join(const Knowledge& other);
  void join(std::uint32_t block, const std::shared_ptr<const Moment>& moment);
  bool operator==(const Knowledge&) const = default;

 private:
  using Moments = std::map<std::uint32_t, std::shared_ptr<const Moment>>;
  std::shared_ptr<const Moments> all_;
};
// What was known at a fence: of other blocks, and of the thread's own one.
struct Fence {
  Knowledge known;
  std::shared_ptr<const Moment> own;
  void join(const Fence& other);
  bool operator==(const Fence&) const = default;
};
// What a thread knows of other blocks; and what its atomic operations tell, to all or to its own block.
struct Told {
  Knowledge known;
  Fence fenced, fenced_in_block;
  bool empty() const { return known.empty(); }
  void join(const Told& other) {
    known.join(other.known);
    fenced.join(other.fenced);
    fenced_in_block.join(other.fenced_in_block);
  }
  bool operator==(const Told&) const = default;
};

// An index beyond its array's type, at `place`; it may yet lie in the next row of a larger array.
struct Row {
  std::uint64_t place = 0;
  std::int64_t index = 0;
  const char* type = "";
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

  Told told = {};
  Row row = {};

  const void* polled = nullptr;  // what it has read or changed to the same `polls` times, at one place
  std::uint64_t poll_place = 0, poll_value = 0;
  int polls = 0;

  int signal = 0;                      // of the processor, which ended it
  bool full = false;                   // and whether its stack was
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
  bool telling = false;  // a thread of this block has executed a fence or was told something
  dim3 grid, block_size;
  uint3 block_index{};
  char* stacks = nullptr;
  const char* body = nullptr;
  std::size_t body_bytes = 0;
};
extern Machine machine;

// Threads have 512 KB for their local variables, as on a GPU; g++'s frames and the emulator's take a bit more. A page
// at the lower end is no memory. An odd number of pages, or all stacks would share few lines of the caches.
constexpr std::size_t kStackGuard = 4 << 10, kStack = 580 << 10;

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
void poll(const void* address, int bytes,
          std::uint64_t place);  // a volatile read: after many that find the same, others run
Met meet_at(std::uint64_t place, unsigned mask, std::uint64_t value, bool order);
[[noreturn]] void abandon_launch();  // from a thread: the launch ends here, as after an illegal address
void set_last_error(cudaError_t error);
// barriers.cpp
void forget_barriers();  // a block begins
// memory.cpp
// kTelling: a volatile store behind a fence. It and an atomic operation are no race with another one that is not plain.
enum class Strength : std::uint8_t { kPlain, kVolatile, kTelling, kAtomic };
void access(const void* pointer, int bytes, bool write, Strength strength, std::uint64_t place);  // a load or store
char* shared_pointer(std::uint32_t address, int bytes,
                     std::uint64_t place);     // of memory that exists, or ends the launch
void end_row(const char* address, int bytes);  // of a row that is open; address: of the thread's next access, or null
void join_told(std::span<Thread* const> threads);  // all of them know what one does
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
std::uint64_t load_base();  // what the loader added to the addresses of the program
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
