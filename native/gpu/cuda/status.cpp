// cuda_status(): whether this machine can run CUDA code, and if not the one sentence that says why.
#include <cuda_runtime_api.h>

#include "cuda/architectures.h"
#include "cuda/capability.h"
#include "mnist/engine.h"

namespace mnist {
namespace {
constexpr const char* kArchitectures = MNIST_CUDA_ARCHITECTURES;
constexpr const char* kNvccArchitectures = MNIST_NVCC_ARCHITECTURES;

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

int capability_of(int device) {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return 10 * major + minor;
}

std::string named(int device) { return "GPU " + std::to_string(device); }

void require_device(int device, const CudaStatus& status) {
  MNIST_REQUIRE(device >= 0 && device < status.device_count,
                "device is " << device << ", expected 0 to " << status.device_count - 1);
}

// Empty if this build's machine code or PTX runs on the GPU.
std::string unsupported(int device, const CudaStatus& status) {
  const int gpu = capability_of(device);
  const auto code = cuda::code_for(kArchitectures, gpu);
  const std::string remedy = cuda::remedy_for(gpu, kNvccArchitectures);
  if (code.capability == 0)
    return named(device) + " has compute capability " + cuda::capability_text(gpu) + " and this build is for " +
           kArchitectures + "; " + remedy;
  if (code.from_ptx && status.driver_version < status.runtime_version)
    return named(device) + " needs machine code of its own in this build: the driver compiles PTX of CUDA " +
           version_text(status.driver_version) + " and this is CUDA " + version_text(status.runtime_version) +
           "'s; update the driver" + (remedy.ends_with("-real") ? " or " + remedy : "");
  return "";
}
}  // namespace

std::string cuda::gpu_lacks(int capability, int device) {
  const CudaStatus status = cuda_status();
  if (status.device_count == 0) return "";
  require_device(device, status);
  const int gpu = capability_of(device);
  if (gpu >= capability) return "";
  return "it needs compute capability " + capability_text(capability) + " and " + named(device) + " has " +
         capability_text(gpu);
}

std::string cuda::code_lacks(int capability, int device) {
  const std::string needs = "it needs compute capability " + capability_text(capability);
  if (cuda_status().device_count == 0)
    return newest_code(kArchitectures) < capability ? needs + " and this build is for " + kArchitectures : "";
  std::string reason = gpu_lacks(capability, device);
  if (reason.empty()) reason = cuda_device_reason(device);
  const int gpu = capability_of(device), code = code_for(kArchitectures, gpu).capability;
  if (reason.empty() && code < capability)
    reason = needs + " and this build's code for " + named(device) + ", which has " + capability_text(gpu) +
             ", is for compute capability " + capability_text(code) + "; " + remedy_for(gpu, kNvccArchitectures);
  return reason;
}

std::string cuda_device_reason(int device) {
  const CudaStatus status = cuda_status();
  if (status.device_count == 0) return status.reason;
  require_device(device, status);
  return unsupported(device, status);
}

CudaStatus cuda_status() {
  CudaStatus status{.compiled = true, .architectures = kArchitectures};
  cudaRuntimeGetVersion(&status.runtime_version);
  cudaDriverGetVersion(&status.driver_version);
  const cudaError_t error = cudaGetDeviceCount(&status.device_count);
  if (error == cudaSuccess && status.device_count > 0) {
    for (int device = 0; device < status.device_count; ++device) {
      const std::string reason = unsupported(device, status);
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

std::vector<Gpu> gpus() {
  std::vector<Gpu> found;
  const int count = cuda_status().device_count;
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) break;
    found.push_back({.name = properties.name,
                     .compute_capability = cuda::capability_text(capability_of(device)),
                     .memory_bytes = std::int64_t(properties.totalGlobalMem),
                     .multiprocessors = properties.multiProcessorCount});
  }
  (void)cudaGetLastError();
  return found;
}

void cuda_warm_up(int device) {
  if (cudaSetDevice(device) == cudaSuccess) cudaFree(nullptr);
  (void)cudaGetLastError();
}

}  // namespace mnist
