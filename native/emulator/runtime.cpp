// The rest of the CUDA runtime that host code calls. One device; everything is done when a call returns, so streams and
// events only have to exist. A graph is the list of what was queued while it was recorded, on whatever stream.
#include <cstdlib>
#include <map>
#include <memory>

#include "machine.h"

namespace {
template <class Handle>
cudaError_t make(Handle* handle) {
  *handle = reinterpret_cast<Handle>(new char);
  return cudaSuccess;
}
template <class Handle>
cudaError_t destroy(Handle handle) {
  delete reinterpret_cast<char*>(handle);
  return cudaSuccess;
}

using Work = std::vector<std::function<void()>>;
std::unique_ptr<Work> recorded;  // while a graph is being recorded
}  // namespace

void emulator::later_or_now(const std::function<void()>& work) {
  if (recorded)
    recorded->push_back(work);
  else
    work();
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  if (recorded) return cudaErrorInvalidValue;
  recorded = std::make_unique<Work>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(recorded.release());
  return *graph ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = recorded ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = reinterpret_cast<cudaGraphExec_t>(new Work(*reinterpret_cast<Work*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  for (const auto& work : *reinterpret_cast<Work*>(exec)) work();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Work*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete reinterpret_cast<Work*>(exec);
  return cudaSuccess;
}

namespace {
std::map<const void*, emulator::ByAddress> by_address;
}  // namespace
void emulator::remember(const void* kernel, const ByAddress& launch) { by_address[kernel] = launch; }

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  const auto found = by_address.find(kernel);
  if (found == by_address.end()) return cudaErrorInvalidValue;
  for (unsigned k = 0; k < config->numAttrs; ++k)
    if (config->attrs[k].id == cudaLaunchAttributeClusterDimension) {
      emulator::add_fault("unsupported", "the emulator has no clusters of thread blocks",
                          std::uint64_t(__builtin_return_address(0)) - 1);
      return cudaErrorInvalidValue;
    }
  found->second(arguments, config->gridDim, config->blockDim, config->dynamicSmemBytes);
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {80, 80};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount            ? 108
           : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? emulator::kMostShared
           : attribute == cudaDevAttrComputeCapabilityMajor       ? 8
                                                                  : 0;
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** data, std::size_t bytes) {
  *data = std::malloc(bytes);
  return *data ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t(64) << 30;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return make(stream); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return make(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return destroy(stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return make(event); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return make(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return destroy(event); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 0;
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define NAMED(code) \
  case code:        \
    return #code;
    NAMED(cudaSuccess)
    NAMED(cudaErrorInvalidValue)
    NAMED(cudaErrorMemoryAllocation)
    NAMED(cudaErrorInvalidConfiguration)
    NAMED(cudaErrorIllegalAddress)
    NAMED(cudaErrorLaunchTimeout)
    NAMED(cudaErrorLaunchFailure)
  }
  return "an unknown error";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorIllegalAddress         ? "an illegal memory access, in the emulator"
         : error == cudaErrorLaunchTimeout        ? "a kernel that never ends, in the emulator"
         : error == cudaErrorInvalidConfiguration ? "invalid configuration argument"
         : error == cudaErrorInvalidValue         ? "invalid argument"
         : error == cudaErrorMemoryAllocation     ? "out of memory"
                                                  : "an error of the emulator";
}
