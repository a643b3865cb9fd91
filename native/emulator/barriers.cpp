// Barriers of some of a block's threads: by number (bar.sync), and in shared memory (mbarrier).
//
// Who passes one knows what those did that came to it. A clock says how far: its k-th number is the last moment of
// thread k that lies behind. (Within a warp threads keep theirs in Thread::clock, of other warps in Thread::known.)
#include <algorithm>
#include <bitset>
#include <map>
#include <span>

#include "machine.h"

namespace emulator {
namespace {

struct Clock {
  std::vector<std::uint32_t> of = {};  // by thread
  Told told = {};
};

// What this thread knows and has done is known to those that take `clock`; what it does from here on is not.
void leave(Clock& all) {
  Thread& me = *machine.current;
  all.told.join(me.told);
  auto& clock = all.of;
  clock.resize(std::size_t(machine.thread_count));
  for (std::size_t k = 0; k < me.known.size(); ++k) clock[k] = std::max(clock[k], me.known[k]);
  const std::size_t first = std::size_t(me.warp()) * kLanes;
  for (std::size_t k = first; k < std::min(first + kLanes, clock.size()); ++k)
    clock[k] = std::max(clock[k], me.clock[k - first]);
  ++me.clock[me.lane()];
}

void take(Thread& thread, const Clock& all) {
  thread.told.join(all.told);
  const auto& clock = all.of;
  thread.known.resize(clock.size());
  for (std::size_t k = 0; k < clock.size(); ++k) thread.known[k] = std::max(thread.known[k], clock[k]);
  const std::size_t first = std::size_t(thread.warp()) * kLanes;
  for (std::size_t k = first; k < std::min(first + kLanes, clock.size()); ++k)
    thread.clock[k - first] = std::max(thread.clock[k - first], clock[k]);
}

// Those that wait for `barrier` go on.
void release(std::uint64_t barrier, const Clock& clock) {
  for (Thread& thread : std::span(machine.threads, std::size_t(machine.thread_count)))
    if (thread.state == State::kAtPart && thread.value == barrier) {
      take(thread, clock);
      thread.state = State::kReady;
    }
  if (machine.counting) ++machine.barriers;
}

void wait_for(std::uint64_t barrier, std::uint64_t place) {
  machine.current->value = barrier;
  wait(State::kAtPart, place);
}

struct Named {
  int wanted = 0;
  std::bitset<kMaxThreads> came;
  Clock clock;
};
std::array<Named, 16> named;

struct InMemory {
  int wanted, missing;
  std::uint64_t phase;  // how many have ended
  Clock clock, of_last;
};
std::map<std::uint32_t, InMemory> in_memory;  // by address in shared memory
constexpr int kBytes = 8;

InMemory& at(std::uint32_t address, std::uint64_t place) {
  access(shared_pointer(address, kBytes, place), kBytes, true, Strength::kAtomic, place);
  const auto found = in_memory.find(address);
  if (found != in_memory.end()) return found->second;
  add_fault("barrier", who(machine.current->number, machine.block) + " uses an mbarrier that nothing has initialised",
            place);
  abandon_launch();
}

void come(std::uint32_t address, InMemory& barrier) {
  leave(barrier.clock);
  if (--barrier.missing > 0) return;
  barrier.missing = barrier.wanted;
  barrier.of_last = barrier.clock;
  ++barrier.phase;
  release(kMaxThreads + address, barrier.of_last);
}

}  // namespace

void forget_barriers() {
  named.fill({});
  in_memory.clear();
}

__attribute__((noinline)) void named_barrier(int number, int count, bool waits) {
  const auto place = std::uint64_t(__builtin_return_address(0)) - 1;
  {
    const Inside own;
    Thread& me = *machine.current;
    Named& barrier = named.at(std::size_t(number) % named.size());
    if (barrier.came.none()) barrier.wanted = count;
    const std::string its = "barrier " + std::to_string(number);
    if (count != barrier.wanted || count % kLanes != 0)
      add_fault("barrier",
                "threads come to " + its + " for " + std::to_string(count) + " threads and for " +
                    std::to_string(barrier.wanted) + ", expected one multiple of 32",
                place);
    if (barrier.came[std::size_t(me.number)])
      add_fault("barrier", who(me.number, machine.block) + " comes to " + its + " again before all have come", place);
    barrier.came.set(std::size_t(me.number));
    leave(barrier.clock);
    if (int(barrier.came.count()) >= barrier.wanted) {
      release(std::uint64_t(number), barrier.clock);
      if (waits) take(me, barrier.clock);
      barrier = {};
      return;
    }
  }
  if (waits) wait_for(std::uint64_t(number), place);
}

__attribute__((noinline)) void init_mbarrier(std::uint32_t address, int count) {
  const auto place = std::uint64_t(__builtin_return_address(0)) - 1;
  access(shared_pointer(address, kBytes, place), kBytes, true, Strength::kPlain, place);
  const Inside own;
  in_memory[address] = {count, count, 0, {}, {}};
}

__attribute__((noinline)) void arrive_at_mbarrier(std::uint32_t address) {
  InMemory& barrier = at(address, std::uint64_t(__builtin_return_address(0)) - 1);
  const Inside own;
  come(address, barrier);
}

// What is copied is there before the others see this thread arrive, and no earlier for them.
__attribute__((noinline)) void arrive_at_mbarrier_after_copies(std::uint32_t address) {
  InMemory& barrier = at(address, std::uint64_t(__builtin_return_address(0)) - 1);
  async_finish();
  const Inside own;
  come(address, barrier);
}

__attribute__((noinline)) void wait_at_mbarrier(std::uint32_t address, int parity) {
  const auto place = std::uint64_t(__builtin_return_address(0)) - 1;
  InMemory& barrier = at(address, place);
  if (int(barrier.phase & 1) == parity) return wait_for(kMaxThreads + address, place);
  const Inside own;
  take(*machine.current, barrier.of_last);
}

}  // namespace emulator
