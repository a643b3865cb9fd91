// cuda_status(): whether this machine can run CUDA code, and if not the one sentence that says why.
#include "mnist/engine.h"

#ifdef MNIST_WITH_CUDA
#include <cuda_runtime_api.h>

#include "cuda/architectures.h"
#endif

namespace mnist {

#ifdef MNIST_WITH_CUDA
namespace {
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Empty if this build's machine code or PTX runs on the GPU.
std::string unsupported(int device) {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (cuda::runs_on(MNIST_CUDA_ARCHITECTURES, major, minor)) return "";
  return "GPU " + std::to_string(device) + " has compute capability " + std::to_string(major) + "." +
         std::to_string(minor) +
         " and this build is for " MNIST_CUDA_ARCHITECTURES "; build again with CMAKE_CUDA_ARCHITECTURES=" +
         std::to_string(10 * major + minor);
}
}  // namespace

std::string cuda_device_reason(int device) {
  const CudaStatus status = cuda_status();
  if (status.device_count == 0) return status.reason;
  MNIST_REQUIRE(device >= 0 && device < status.device_count,
                "device is " << device << ", expected 0 to " << status.device_count - 1);
  return unsupported(device);
}

CudaStatus cuda_status() {
  CudaStatus status{.compiled = true, .architectures = MNIST_CUDA_ARCHITECTURES};
  cudaRuntimeGetVersion(&status.runtime_version);
  cudaDriverGetVersion(&status.driver_version);
  const cudaError_t error = cudaGetDeviceCount(&status.device_count);
  if (error == cudaSuccess && status.device_count > 0) {
    for (int device = 0; device < status.device_count; ++device) {
      const std::string reason = unsupported(device);
      if (reason.empty()) {
        status.reason.clear();
        break;
      }
      if (device == 0) status.reason = reason;
    }
    return status;
  }
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

void cuda_warm_up(int device) {
  if (cudaSetDevice(device) == cudaSuccess) cudaFree(nullptr);
  (void)cudaGetLastError();
}
#else
CudaStatus cuda_status() { return {.reason = "this build has no CUDA code; see MNIST_CUDA in CMakeLists.txt"}; }
std::string cuda_device_reason(int) { return cuda_status().reason; }
void cuda_warm_up(int) {}
#endif

}  // namespace mnist
