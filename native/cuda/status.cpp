// cuda_status(): whether this machine can run CUDA code, and if not the one sentence that says why.
#include "mnist/engine.h"

#ifdef MNIST_WITH_CUDA
#include <cuda_runtime.h>
#endif

namespace mnist {

#ifdef MNIST_WITH_CUDA
namespace {
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}
}  // namespace

CudaStatus cuda_status() {
  CudaStatus status{.compiled = true, .architectures = MNIST_CUDA_ARCHITECTURES};
  cudaRuntimeGetVersion(&status.runtime_version);
  cudaDriverGetVersion(&status.driver_version);
  const cudaError_t error = cudaGetDeviceCount(&status.device_count);
  if (error == cudaSuccess && status.device_count > 0) return status;
  (void)cudaGetLastError();  // leave no error behind for the next call
  status.device_count = 0;
  if (status.driver_version == 0)
    status.reason = "no NVIDIA driver on this machine";
  else if (error == cudaErrorInsufficientDriver)
    status.reason = "the NVIDIA driver is for CUDA " + version_text(status.driver_version) + " and this build needs " +
                    version_text(status.runtime_version) + "; update the driver";
  else if (error == cudaErrorNoDevice)
    status.reason = "the NVIDIA driver shows no GPU (hidden by CUDA_VISIBLE_DEVICES?)";
  else
    status.reason = std::string("no usable GPU: ") + cudaGetErrorString(error);
  return status;
}
#else
CudaStatus cuda_status() { return {.reason = "this build has no CUDA code; see MNIST_CUDA in CMakeLists.txt"}; }
#endif

}  // namespace mnist
