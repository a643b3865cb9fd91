// random_delay(): where the host of a debug build (CMake's MNIST_DELAYS) sleeps for a random while, up to 0.2 ms:
// before launches. Elsewhere it is nothing. MNIST_DELAYS_SEED chooses among the ways to be late.
#pragma once

#ifdef MNIST_DELAYS

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <thread>

namespace mnist::cuda {

inline std::uint32_t delays_seed() {
  const char* text = std::getenv("MNIST_DELAYS_SEED");
  return text ? std::uint32_t(std::strtoul(text, nullptr, 10)) : 0;
}

inline void random_delay() {
  thread_local std::minstd_rand random(delays_seed() + 1);
  if (const auto ticks = random(); ticks % 4 == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(ticks / 4 % 200));
}

}  // namespace mnist::cuda

#else

namespace mnist::cuda {
inline void random_delay() {}
}  // namespace mnist::cuda

#endif
