// A fixed set of threads that run the tasks of one loop after the other.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace mnist::cpu {

// Cores this process may run on (its affinity mask), at least 1.
int available_cores();

// The calling thread is worker 0; the others spin for some microseconds between loops and then sleep.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // 0: available_cores()
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return int(threads_.size()) + 1; }

  // Calls body(task, worker) once for each task in [0, tasks), worker in [0, size()), and returns when all are done.
  // Worker w starts with the w-th share of the tasks, so that consecutive loops find the same data in its cache, and
  // then helps the others. Which worker runs a task must not matter to the result. `body` must not throw.
  template <class Body>
  void run(int tasks, const Body& body) {
    start({tasks, &body, [](const void* b, int task, int worker) { (*static_cast<const Body*>(b))(task, worker); }});
  }

 private:
  struct Loop {
    int tasks = 0;
    const void* body = nullptr;
    void (*call)(const void* body, int task, int worker) = nullptr;
  };
  struct alignas(64) Share {
    std::atomic<int> next{0};
    int end = 0;
  };

  void start(Loop loop);
  void stop();
  void work(int worker);
  void serve(int worker);

  Loop loop_;
  std::unique_ptr<Share[]> shares_;
  std::atomic<std::uint32_t> round_{0};  // of the loop that runs; a worker waits for it to change
  std::atomic<int> busy_{0};             // workers that have not finished the round yet
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace mnist::cpu
