// Rounds are announced by a counter and ended by another; both are waited for by spinning first, then asleep.
#include "cpu/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <system_error>

#include "mnist/errors.h"

namespace mnist::cpu {
namespace {

constexpr int kSpins = 2000;  // some 50 us: longer than the gap between two loops of a step

void pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

// Returns when `value` is no longer `old`.
template <class T>
void wait_while(const std::atomic<T>& value, T old) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

int available_cores() {
  // The mask of a machine with more than 1024 cores does not fit cpu_set_t; hardware_concurrency is the answer then.
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) return std::max(1, CPU_COUNT(&mask));
  return std::max(1, int(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int threads) {
  const int size = threads > 0 ? threads : available_cores();
  shares_ = std::make_unique<Share[]>(size);
  threads_.reserve(size - 1);
  try {
    for (int worker = 1; worker < size; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
  } catch (const std::system_error& error) {
    stop();
    throw UnavailableError("thread " + std::to_string(threads_.size() + 2) + " of " + std::to_string(size) +
                           " could not be started: " + error.what());
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_ = true;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::start(Loop loop) {
  loop_ = loop;
  for (int w = 0; w < size(); ++w) {
    shares_[w].next.store(int(std::int64_t(loop.tasks) * w / size()), std::memory_order_relaxed);
    shares_[w].end = int(std::int64_t(loop.tasks) * (w + 1) / size());
  }
  busy_.store(size() - 1, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  work(0);
  for (int left; (left = busy_.load(std::memory_order_acquire)) != 0;) wait_while(busy_, left);
}

void ThreadPool::work(int worker) {
  for (int i = 0; i < size(); ++i) {
    Share& share = shares_[(worker + i) % size()];
    for (int task; (task = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;)
      loop_.call(loop_.body, task, worker);
  }
}

void ThreadPool::serve(int worker) {
  for (std::uint32_t round = 0;; ++round) {
    wait_while(round_, round);
    if (stopping_) return;
    work(worker);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

}  // namespace mnist::cpu
