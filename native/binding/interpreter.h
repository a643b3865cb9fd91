// Python's lock, given back while native code works and taken again after it; also while the program ends.
//
// At the interpreter's end CPython (up to 3.13) ends a thread that wants the lock by pthread_exit, which unwinds its
// C++ frames and so aborts the process. Here such a thread sleeps for ever instead, which a process that ends allows.
// `close` draws the line: what wants the lock before it gets it, what wants it after it does not.
#pragma once
#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

namespace mnist::interpreter {

struct Door {
  std::atomic<int> away{0};    // threads that gave the lock back and have not taken it again
  std::atomic<int> taking{0};  // threads that are taking it
  std::atomic<bool> closing{false}, closed{false};
  std::atomic<std::thread::id> closer{};  // it ends the interpreter, and may go on
};
inline Door door;

// Whether the program ends, by another thread than this one, which is to stop.
inline bool ending() { return door.closing && door.closer.load() != std::this_thread::get_id(); }

[[noreturn]] inline void sleep_for_ever() {
  for (;;) pause();
}

// take(), which takes the lock, unless it is too late.
template <class Take>
auto through_door(Take take) {
  ++door.taking;
  if (door.closed && ending()) {
    --door.taking;
    sleep_for_ever();
  }
  struct Leave {
    ~Leave() { --door.taking; }
  } leave;
  return take();
}

inline thread_local bool has_lock = true;  // of the threads that Python knows

// Gives the lock back, from here to the end of the block.
class Released {
 public:
  Released() : state_(PyEval_SaveThread()) {
    has_lock = false;
    ++door.away;
  }
  ~Released() {
    through_door([&] { PyEval_RestoreThread(state_); });
    has_lock = true;
    --door.away;
  }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

 private:
  PyThreadState* state_;
};

// Runs work() with the lock, which this thread may have given back.
template <class Work>
void with_lock(Work work) {
  if (has_lock) return work();
  const auto state = through_door(PyGILState_Ensure);
  struct Release {
    PyGILState_STATE state;
    ~Release() {
      PyGILState_Release(state);
      has_lock = false;
    }
  } release{state};
  has_lock = true;
  try {
    work();
  } catch (abi::__forced_unwind&) {  // pthread_exit, in Python code that had given back the lock by itself
    sleep_for_ever();
  }
}

// Closes the door, when the program ends: threads that come back from native code within `patience` get the lock once
// more, and see that it is `ending`.
inline void close(double patience) {
  using namespace std::chrono;
  door.closer = std::this_thread::get_id();
  door.closing = true;
  PyThreadState* const state = PyEval_SaveThread();
  const auto end = steady_clock::now() + duration<double>(patience);
  constexpr auto kMoment = milliseconds(1);
  while (door.away > 0 && steady_clock::now() < end) std::this_thread::sleep_for(kMoment);
  door.closed = true;
  while (door.taking > 0) std::this_thread::sleep_for(kMoment);
  PyEval_RestoreThread(state);
}

// The threads of a fork's parent are not in it.
inline void forget_threads_after_fork() {
  pthread_atfork(nullptr, nullptr, [] { door.away = door.taking = 0; });
}

}  // namespace mnist::interpreter
