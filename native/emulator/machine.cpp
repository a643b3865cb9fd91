// How a grid executes: blocks one after the other, the threads of a block as fibers that take turns.
//
// A thread runs until it waits for its warp (a meeting: shuffle, vote, __syncwarp) or for its block (__syncthreads).
// A meeting ends when all lanes of its mask are there; a barrier ends when all threads of the block are. What never
// comes is noticed when nothing can move any more, so no mistake of a kernel hangs the emulator. A thread that sleeps
// or looks at one place again and again lets all others of its block run first.
#include "machine.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>

#include "emulator.h"

#if defined(__x86_64__)
extern "C" void emulator_switch(void** save, void* to);
// Pushes what a callee must keep, changes stacks, pops.
asm(".text\n.globl emulator_switch\nemulator_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
#else
#error "the emulator switches fibers by x86-64 code"
#endif

namespace emulator {

Machine machine;

namespace {

std::size_t dynamic_limit = 48 << 10;
constexpr int kSeconds = 120;                   // that a launch may take
constexpr std::size_t kBehindLocals = 2 << 10;  // where an index beyond a local array does no harm
constexpr int kPolls = 200;                     // of one place without a change, until others run
constexpr int kRoundsOfPolls = 5000;  // of all threads that can run, in which none finds anything new: it never comes
constexpr int kPauses = 500'000;      // of all of them together, so that a thread may also count to 100,000

std::array<Thread, kMaxThreads> threads;
void* host_stack;
void (*thread_function)(const void*);
int orders = 2;
cudaError_t last_error = cudaSuccess;
int barrier_true, barrier_all;

[[noreturn]] void thread_start() {
  thread_function(machine.body);
  if (machine.current->row.place) end_row(nullptr, 0);
  machine.current->state = State::kDone;
  void* dead;
  emulator_switch(&dead, host_stack);
  std::abort();
}

void resume(Thread& thread) {
  machine.current = &thread;
  emulator_switch(&host_stack, thread.stack_pointer);
  machine.current = nullptr;
}

// Where a thread goes on after a signal: at the top of its stack, to end the launch.
[[noreturn]] void end_by_signal() {
  {
    const Inside own;
    const Thread& me = *machine.current;
    const char* what = me.signal == SIGFPE ? "divides a whole number by zero; the result on a GPU is undefined"
                       : me.full ? "needs more than the 512 KB that a thread has for local variables and calls"
                                 : "goes where there is no memory";
    add_fault(me.signal == SIGFPE ? "division"
              : me.full           ? "stack"
                                  : "outside",
              who(me.number, machine.block) + " " + what, me.place);
  }
  abandon_launch();
}

// A fault of the processor in a kernel. Its stack may be full or overwritten, so the handler has one of its own.
void on_fault(int number, siginfo_t* info, void* context) {
  if (!machine.current) {
    std::signal(number, SIG_DFL);  // the host's code: it ends as without us
    return;
  }
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  Thread& me = *machine.current;
  const char* stack = machine.stacks + kStack * std::size_t(me.number);
  me.signal = number;
  me.full = std::size_t(static_cast<char*>(info->si_addr) - stack) < kStackGuard;
  me.place = std::uint64_t(registers[REG_RIP]);
  // A call that went nowhere: where it came from still lies on the stack.
  const auto top = std::uint64_t(registers[REG_RSP]);
  if (registers[REG_RIP] < 4096 && top - std::uint64_t(stack) < kStack - 8)
    me.place = *reinterpret_cast<const std::uint64_t*>(top) - 1;
  registers[REG_RSP] = std::int64_t(stack + kStack - 8);  // as after a call
  registers[REG_RIP] = std::int64_t(&end_by_signal);
}

void make_stacks() {
  const std::size_t bytes = kStack * kMaxThreads;
  machine.stacks = static_cast<char*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  for (int k = 0; k < kMaxThreads; ++k) mprotect(machine.stacks + kStack * std::size_t(k), kStackGuard, PROT_NONE);
  static char own[64 << 10];
  stack_t alternative{};
  alternative.ss_sp = own;
  alternative.ss_size = sizeof own;
  sigaltstack(&alternative, nullptr);
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(number, &action, nullptr);
}

void too_long(int) {
  std::fflush(stdout);
  const char text[] = "emulator: a kernel did not end in 120 s: a loop without an end, or a wait for another block\n";
  if (::write(2, text, sizeof text - 1) < 0) std::_Exit(3);
  std::fprintf(stderr, "emulator: in %s\n", machine.kernel);
  std::_Exit(3);
}

struct Warp {
  Thread* first;
  int lanes;
};

// Ends the meeting of `group`, the lanes in `mask`.
void end_meeting(const Warp& warp, unsigned mask) {
  std::uint64_t values[kLanes] = {};
  std::uint32_t latest[kLanes] = {};
  std::uint64_t place = 0;
  bool order = false, differ = false;
  std::vector<std::uint32_t> known;
  for (int k = 0; k < warp.lanes; ++k) {
    if (!(mask >> k & 1)) continue;
    const Thread& lane = warp.first[k];
    values[k] = lane.value;
    order |= lane.order;
    differ |= place && place != lane.place && !same_line(place, lane.place);
    place = lane.place;
    for (int j = 0; j < kLanes; ++j) latest[j] = std::max(latest[j], lane.clock[j]);
  }
  for (int k = 0; k < warp.lanes && order; ++k) {
    if (!(mask >> k & 1)) continue;
    const auto& of_lane = warp.first[k].known;
    if (!of_lane.empty()) known.resize(of_lane.size());
    for (std::size_t j = 0; j < of_lane.size(); ++j) known[j] = std::max(known[j], of_lane[j]);
  }
  if (differ) add_fault("meeting", "lanes of a warp wait for each other at different places", place);
  if (order && machine.telling) {
    std::vector<Thread*> lanes;
    for (int k = 0; k < warp.lanes; ++k)
      if (mask >> k & 1) lanes.push_back(&warp.first[k]);
    join_told(lanes);
  }
  for (int k = 0; k < warp.lanes; ++k) {
    if (!(mask >> k & 1)) continue;
    Thread& lane = warp.first[k];
    std::copy(values, values + kLanes, lane.met);
    lane.met_mask = mask;
    if (order) {
      std::copy(latest, latest + kLanes, lane.clock);
      ++lane.clock[k];
      lane.known = known;
    }
    lane.state = State::kReady;
  }
}

// Meetings whose lanes are all there. `despite_ended`: a lane that has ended is waited for no longer, and reported.
bool end_meetings(const Warp& warp, bool despite_ended) {
  const unsigned exist = warp.lanes == kLanes ? ~0u : (1u << warp.lanes) - 1;
  bool any = false;
  for (int k = 0; k < warp.lanes; ++k) {
    const Thread& lane = warp.first[k];
    if (lane.state != State::kAtMeeting) continue;
    const unsigned wanted = lane.mask & exist;
    unsigned there = 0, ended = 0;
    for (int j = 0; j < warp.lanes; ++j) {
      const Thread& other = warp.first[j];
      if (other.state == State::kAtMeeting && other.mask == lane.mask) there |= 1u << j;
      if (other.state == State::kDone) ended |= 1u << j;
    }
    there &= wanted;
    if (there != wanted &&
        !(despite_ended && (there | ended) & wanted & ~there && (there | (ended & wanted)) == wanted))
      continue;
    if (there != wanted)
      add_fault(
          "meeting",
          "a mask names " + std::to_string(std::popcount(wanted & ~there)) + " lanes that have ended and never come",
          lane.place);
    if (!(wanted >> k & 1)) continue;
    end_meeting(warp, there);
    any = true;
  }
  return any;
}

// Runs a warp until all of its lanes wait for the block or have ended, pause, or wait for what does not come. Whether
// one did more than pause.
bool run_warp(const Warp& warp, const std::vector<int>& lane_order) {
  bool moved = false;
  for (bool again = true; again && !machine.aborted;) {
    bool ran = again = false;
    for (const int k : lane_order) {
      if (k >= warp.lanes || warp.first[k].state != State::kReady) continue;
      resume(warp.first[k]);
      ran = true;
      if (machine.aborted) return true;
      if (warp.first[k].state != State::kPaused) again = moved = true;
    }
    if (ran) end_warp();
    if (end_meetings(warp, false)) again = moved = true;
  }
  return moved;
}

void end_barrier(int live) {
  std::uint64_t place = 0;
  for (int k = 0; k < machine.thread_count; ++k) {
    Thread& thread = threads[k];
    if (thread.state != State::kAtBarrier) continue;
    if (place && place != thread.place && !same_line(place, thread.place)) {
      add_fault("barrier", "threads of a block wait at different barriers", place, thread.place);
    }
    place = thread.place;
    thread.state = State::kReady;
  }
  if (live < machine.thread_count)
    add_fault("barrier",
              std::to_string(machine.thread_count - live) +
                  " threads of the block have ended without this barrier, at which " + std::to_string(live) +
                  " wait; undefined before compute capability 7.0",
              place);
  barrier_all = barrier_true == live;
  for (int k = 0; k < machine.thread_count; ++k) threads[k].met[0] = barrier_true, threads[k].met[1] = barrier_all;
  barrier_true = 0;
  if (machine.telling) {
    std::vector<Thread*> all;
    for (int k = 0; k < machine.thread_count; ++k) all.push_back(&threads[k]);
    join_told(all);
  }
  ++machine.epoch;
  begin_epoch();
  if (machine.counting) ++machine.barriers;
}

Warp warp_of(int number) {
  const int first = number * kLanes;
  return {&threads[first], std::min(kLanes, machine.thread_count - first)};
}

// All threads of a block at the beginning of the kernel.
void begin_threads() {
  for (int k = 0; k < machine.thread_count; ++k) {
    Thread& thread = threads[k];
    thread.state = State::kReady;
    thread.number = k;
    thread.copies.clear();
    thread.groups = 0;
    thread.turn = 0;
    thread.known.clear();
    thread.told = {};
    thread.row = {};
    thread.polled = nullptr;
    const unsigned n = unsigned(k);
    thread.index = {n % machine.block_size.x, n / machine.block_size.x % machine.block_size.y,
                    n / machine.block_size.x / machine.block_size.y};
    std::fill(thread.clock, thread.clock + kLanes, 0u);
    thread.clock[thread.lane()] = 1;
    auto** top = reinterpret_cast<void**>(machine.stacks + kStack * std::size_t(k + 1) - kBehindLocals);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(thread_start);
    for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
    thread.stack_pointer = top;
  }
}

// For when nothing moves: lanes that ask which lanes are active get those that ask at the same place, and if none asks,
// meetings end without lanes that have ended. Whether anything moves then.
bool end_standstill(const std::vector<int>& warp_order) {
  bool moved = false;
  for (const int w : warp_order) {
    const Warp warp = warp_of(w);
    unsigned asking = 0;
    std::uint64_t place = 0;
    for (int k = 0; k < warp.lanes; ++k)
      if (warp.first[k].state == State::kActive && (!place || warp.first[k].place == place)) {
        asking |= 1u << k;
        place = warp.first[k].place;
      }
    if (asking) {
      end_meeting(warp, asking);
      moved = true;
    }
    if (!moved) moved = end_meetings(warp, true);
  }
  return moved;
}

void end_deadlock(int live, int at_barrier) {
  std::uint64_t stuck = 0, waiting = 0;  // where the first thread is
  for (int k = machine.thread_count - 1; k >= 0; --k) {
    const Thread& thread = threads[k];
    if (thread.state == State::kAtMeeting || thread.state == State::kAtPart) stuck = thread.place;
    if (thread.state == State::kAtBarrier) waiting = thread.place;
  }
  add_fault("deadlock",
            std::to_string(live - at_barrier) + " of the block's threads wait for others that never come, " +
                std::to_string(at_barrier) + " for the whole block",
            stuck, waiting);
  machine.aborted = true;
  set_last_error(cudaErrorLaunchTimeout);
}

// All threads that could run look at what never changes.
void end_polls() {
  std::uint64_t place = 0;
  int count = 0;
  for (int k = machine.thread_count - 1; k >= 0; --k)
    if (threads[k].state == State::kPaused) {
      place = threads[k].place;
      ++count;
    }
  const bool alone = std::uint64_t(machine.grid.x) * machine.grid.y * machine.grid.z == 1;
  add_fault(alone ? "deadlock" : "unsupported",
            std::to_string(count) + (count == 1 ? " thread waits" : " threads wait") +
                " for a change that no thread of the block makes" +
                (alone ? "" : "; if another block makes it: the emulator runs blocks one after the other"),
            place);
  machine.aborted = true;
  set_last_error(cudaErrorLaunchTimeout);
}

void run_block(const std::vector<int>& warp_order, const std::vector<int>& lane_order) {
  begin_threads();
  machine.epoch = 0;
  forget_barriers();
  barrier_true = 0;
  machine.telling = false;
  int rounds = 0;  // in which threads only paused
  while (!machine.aborted) {
    bool moved = false;
    for (int k = 0; k < machine.thread_count; ++k)
      if (threads[k].state == State::kPaused) threads[k].state = State::kReady;
    for (const int w : warp_order) {
      moved |= run_warp(warp_of(w), lane_order);
      if (machine.aborted) return;
    }
    int live = 0, at_barrier = 0, paused = 0;
    for (int k = 0; k < machine.thread_count; ++k) {
      live += threads[k].state != State::kDone;
      paused += threads[k].state == State::kPaused;
      at_barrier += threads[k].state == State::kAtBarrier;
    }
    if (live == 0) return;
    if (at_barrier == live)
      end_barrier(live);
    else if (moved || end_standstill(warp_order))
      rounds = 0;
    else if (!paused)
      end_deadlock(live, at_barrier);
    else if (++rounds >= std::max(kRoundsOfPolls, kPauses / paused))
      end_polls();
  }
}

void run_grid(int order, std::size_t dynamic_bytes) {
  ++machine.run;
  machine.counting = order == 0;
  machine.aborted = false;
  machine.barriers = machine.atomics = 0;
  begin_run();
  std::mt19937 random(unsigned(order) * 7919);
  const auto arranged = [&](std::uint64_t count) {
    std::vector<int> list(count);
    std::iota(list.begin(), list.end(), 0);
    if (order == 1) std::reverse(list.begin(), list.end());
    if (order > 1) std::shuffle(list.begin(), list.end(), random);
    return list;
  };
  const dim3 grid = machine.grid;
  const auto lanes = arranged(kLanes), warps = arranged((machine.thread_count + kLanes - 1) / kLanes);
  for (const int n : arranged(std::uint64_t(grid.x) * grid.y * grid.z)) {
    const unsigned b = unsigned(n);
    machine.block = b + 1;
    machine.block_index = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
    begin_block(dynamic_bytes);
    run_block(warps, lanes);
    if (machine.aborted) return;
  }
}

// Why no GPU starts this launch; empty where one does.
std::string launch_fault(dim3 grid, dim3 block, std::uint64_t count, std::size_t dynamic_bytes) {
  const auto words = [](const dim3& of) {
    return std::to_string(of.x) + " x " + std::to_string(of.y) + " x " + std::to_string(of.z);
  };
  if (count < 1) return "a block of " + words(block) + " threads, at least 1 each way";
  if (count > kMaxThreads) return "a block of " + std::to_string(count) + " threads, at most 1024";
  if (block.z > 64) return "a block of " + words(block) + " threads, at most 64 the third way";
  if (!grid.x || !grid.y || !grid.z) return "a grid of " + words(grid) + " blocks, at least 1 each way";
  if (grid.x > 0x7fffffff) return "a grid of " + words(grid) + " blocks, at most 2147483647 the first way";
  if (grid.y > 65535 || grid.z > 65535)
    return "a grid of " + words(grid) + " blocks, at most 65535 the second and the third way";
  if (dynamic_bytes > dynamic_limit)
    return std::to_string(dynamic_bytes) + " bytes of dynamic shared memory, at most " + std::to_string(dynamic_limit) +
           (dynamic_limit < kMostShared ? "; cudaFuncSetAttribute asks for more" : "");
  return "";
}

}  // namespace

void wait(State state, std::uint64_t place) {
  Thread& thread = *machine.current;
  if (thread.row.place) end_row(nullptr, 0);
  thread.state = state;
  thread.place = place;
  emulator_switch(&thread.stack_pointer, host_stack);
}

__attribute__((noinline)) void pause() {
  if (machine.current) wait(State::kPaused, std::uint64_t(__builtin_return_address(0)) - 1);
}

namespace {
void poll_once(const void* address, bool same, std::uint64_t place) {
  Thread& thread = *machine.current;
  if (same && thread.polled == address && thread.poll_place == place) {
    if (++thread.polls >= kPolls) wait(State::kPaused, place);
    return;
  }
  thread.polled = address;
  thread.poll_place = place;
  thread.polls = 0;
}
}  // namespace

__attribute__((noinline)) void atomic_done(const void* address, bool changed) {
  if (machine.current) poll_once(address, !changed, std::uint64_t(__builtin_return_address(0)) - 1);
}

void poll(const void* address, int bytes, std::uint64_t place) {
  std::uint64_t value = 0;
  copy_bytes(&value, address, std::size_t(std::min(bytes, 8)));
  poll_once(address, value == std::exchange(machine.current->poll_value, value), place);
}

void set_orders(int count) { orders = count; }
void set_last_error(cudaError_t error) { last_error = error; }

void abandon_launch() {
  inside = 0;  // nothing returns
  machine.aborted = true;
  set_last_error(cudaErrorIllegalAddress);
  void* dead;
  emulator_switch(&dead, host_stack);
  std::abort();
}

__attribute__((noinline)) std::uint64_t place_of_launch() {
  const std::uint64_t place = std::uint64_t(__builtin_return_address(0)) - 1;
  if (!machine.current) return place;
  const Inside own;
  add_fault("unsupported", "the emulator has no launch inside a kernel", place);
  abandon_launch();
}

uint3 thread_index() { return machine.current->index; }
uint3 block_index() { return machine.block_index; }
dim3 block_size() { return machine.block_size; }
dim3 grid_size() { return machine.grid; }
#define COMPONENTS(name, value)           \
  unsigned name##_x() { return value.x; } \
  unsigned name##_y() { return value.y; } \
  unsigned name##_z() { return value.z; }
COMPONENTS(threadIdx, machine.current->index)
COMPONENTS(blockIdx, machine.block_index)
COMPONENTS(blockDim, machine.block_size)
COMPONENTS(gridDim, machine.grid)
int lane() { return machine.current->lane(); }
unsigned warp() { return unsigned(machine.current->warp()); }
std::uint64_t cycles() { return __builtin_ia32_rdtsc(); }

__attribute__((noinline)) Met meet(unsigned mask, std::uint64_t value, bool order) {
  return meet_at(std::uint64_t(__builtin_return_address(0)) - 1, mask, value, order);
}

Met meet_at(std::uint64_t place, unsigned mask, std::uint64_t value, bool order) {
  Thread& thread = *machine.current;
  if (!(mask >> thread.lane() & 1)) {
    const Inside own;
    add_fault("meeting", "a lane calls with a mask that leaves it out", place);
    mask |= 1u << thread.lane();
  }
  thread.mask = mask;
  thread.value = value;
  thread.order = order;
  wait(State::kAtMeeting, place);
  return {thread.met, thread.met_mask};
}

__attribute__((noinline)) std::uint64_t value_of(const Met& met, int lane) {
  if (!(met.mask >> lane & 1)) {
    const Inside own;
    const bool exists = machine.current->number / kLanes * kLanes + lane < machine.thread_count;
    add_fault("meeting",
              exists ? "a shuffle reads a lane that takes no part in it"
                     : "a shuffle reads lane " + std::to_string(lane) + " of a warp that ends before it",
              std::uint64_t(__builtin_return_address(0)) - 1);
    return 0;
  }
  return met.values[lane];
}

__attribute__((noinline)) unsigned active_lanes() {
  machine.current->order = false;
  wait(State::kActive, std::uint64_t(__builtin_return_address(0)) - 1);
  return machine.current->met_mask;
}

__attribute__((noinline)) int meet_block(bool value, bool* all) {
  barrier_true += value;
  wait(State::kAtBarrier, std::uint64_t(__builtin_return_address(0)) - 1);
  const Thread& thread = *machine.current;
  if (all) *all = thread.met[1];
  return int(thread.met[0]);
}

void launch(const char* kernel, const void* body, std::size_t body_bytes, void (*thread)(const void*), dim3 grid,
            dim3 block, std::size_t dynamic_bytes, std::uint64_t place) {
  const std::uint64_t count = std::uint64_t(block.x) * block.y * block.z;
  if (const auto why = launch_fault(grid, block, count, dynamic_bytes); !why.empty()) {
    machine.kernel = kernel;
    add_fault("launch", why, place);
    return set_last_error(count > kMaxThreads || dynamic_bytes > dynamic_limit ? cudaErrorInvalidValue
                                                                               : cudaErrorInvalidConfiguration);
  }
  if (!machine.stacks) {
    make_stacks();
    std::signal(SIGALRM, too_long);
  }
  alarm(kSeconds);
  machine.kernel = kernel;
  machine.grid = grid;
  machine.block_size = block;
  machine.body = static_cast<const char*>(body);
  machine.body_bytes = body_bytes;
  thread_function = thread;
  machine.threads = threads.data();
  machine.thread_count = int(count);
  begin_launch();
  for (int order = 0; order < orders; ++order) {
    if (order > 0) restore_memory();
    run_grid(order, dynamic_bytes);
    if (order == 0) add_kernel(finish_counts(), dynamic_bytes);
    if (machine.aborted) break;
    if (order > 0) compare_memory(order);
  }
  alarm(0);
  std::fflush(stdout);  // what the kernel printed, before anything ends this program
}

cudaError_t take_last_error(bool clear) {
  const cudaError_t error = last_error;
  if (clear) last_error = cudaSuccess;
  return error;
}

}  // namespace emulator

// A function's limit counts for all: a launch does not say which function it is.
cudaError_t emulator::set_dynamic_limit(int bytes) {
  if (bytes > kMostShared) return cudaErrorInvalidValue;
  dynamic_limit = std::max(dynamic_limit, std::size_t(bytes));
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return emulator::take_last_error(true); }
cudaError_t cudaPeekAtLastError() { return emulator::take_last_error(false); }
