// Every task runs exactly once, whatever the numbers of tasks and threads; loops may follow each other at any pace.
#include <chrono>

#include "cpu/thread_pool.h"
#include "testing.h"

using mnist::cpu::ThreadPool;

int main() {
  CHECK(mnist::cpu::available_cores() >= 1);
  CHECK(ThreadPool(0).size() == mnist::cpu::available_cores());
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK(pool.size() == threads);
    for (int round = 0; round < 400; ++round) {
      const int tasks = round % 37;
      std::vector<std::atomic<int>> runs(tasks);
      std::atomic<bool> in_range = true;
      pool.run(tasks, [&](int task, int worker) {
        ++runs[task];
        if (worker < 0 || worker >= threads) in_range = false;
      });
      bool once = in_range;
      for (const auto& count : runs) once &= count == 1;
      if (!once || round == 0) CHECK(once);
      // Long enough for the other workers to fall asleep.
      if (round % 100 == 99) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  {
    // A worker that is held up does not hold up the others: they take over its share.
    ThreadPool pool(2);
    std::atomic<int> done = 0;
    bool all_others = false;
    pool.run(100, [&](int task, int) {
      if (task == 0) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (done < 99 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
        all_others = done == 99;
      }
      ++done;
    });
    CHECK(all_others);
  }
  return testing::finish();
}
