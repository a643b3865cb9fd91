// The emulator as the project's one GPU: test programs that ask for a GPU run.
#include "mnist/engine.h"

namespace mnist {
CudaStatus cuda_status() { return {.compiled = true, .device_count = 1, .architectures = "the emulator"}; }
std::string cuda_device_reason(int) { return ""; }
}  // namespace mnist
