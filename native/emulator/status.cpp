// The emulator as the project's one GPU: test programs that ask for a GPU run.
#include "cuda/capability.h"
#include "mnist/engine.h"

namespace mnist {
CudaStatus cuda_status() {
  return {.compiled = true, .device_count = 1, .architectures = "the emulator", .reason = ""};
}
std::string cuda_device_reason(int) { return ""; }
std::string cuda::code_lacks(int, int) { return ""; }
}  // namespace mnist
