// The judge's machine without a GPU.
#include "judge/machine.h"

#include "emulator.h"

namespace judge {

const std::int64_t kGuard = 0;  // the emulator sees every access

// The first two calls get the same inputs, and run in other orders of threads: all orders, then one.
void before_call(int number, cudaStream_t) {
  emulator::set_orders(number == 0 ? 3 : 1);
  emulator::reset();
}

void poison(void* data, std::int64_t bytes, cudaStream_t) { emulator::forget(data, std::size_t(bytes)); }

std::optional<std::vector<char>> stored(const void* data, std::int64_t bytes) {
  return emulator::stored(data, std::size_t(bytes));
}

void empty_caches(cudaStream_t) {}

std::string report(const std::function<void(cudaStream_t)>&, cudaStream_t) {
  return emulator::to_json(emulator::report());
}

bool record(const std::function<void(cudaStream_t)>&, int, cudaStream_t, cudaGraphExec_t*, std::string* why) {
  *why = "nothing is timed in the emulator";
  return false;
}

}  // namespace judge
