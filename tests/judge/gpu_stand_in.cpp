// In the place of judge/kernels.cpp, which asks the driver: whatever the emulator recorded is a kernel.
#include "judge/kernels.h"

namespace judge {

Kernels kernels_of(cudaGraph_t graph) {
  const std::size_t count = reinterpret_cast<std::vector<std::function<void()>>*>(graph)->size();
  const char* kernel =
      "[{\"name\": \"kernel\", \"threads\": 256, \"registers\": 8, \"local_bytes\": 0, \"shared_bytes\": 0, "
      "\"blocks_per_multiprocessor\": 8, \"occupancy\": 1}]";
  return {count, count ? kernel : "[]"};
}

}  // namespace judge
