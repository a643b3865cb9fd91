// Streams and events, and the guard that selects a GPU for a scope.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/check.h"
#include "cuda/handle.h"

namespace mnist::cuda {

// A moment in a stream. Without timing by default: such an event is cheaper to record and to wait for.
class Event {
 public:
  explicit Event(unsigned flags = cudaEventDisableTiming) {
    MNIST_CHECK(cudaEventCreateWithFlags(handle_.put(), flags));
  }
  cudaEvent_t get() const { return handle_.get(); }
  void record(cudaStream_t stream) { MNIST_CHECK(cudaEventRecord(get(), stream)); }
  void synchronize() const { MNIST_CHECK(cudaEventSynchronize(get())); }  // at once if never recorded

 private:
  Handle<cudaEventDestroy> handle_;
};

// A stream that by default does not synchronise with the default stream.
class Stream {
 public:
  explicit Stream(unsigned flags = cudaStreamNonBlocking) {
    MNIST_CHECK(cudaStreamCreateWithFlags(handle_.put(), flags));
  }
  cudaStream_t get() const { return handle_.get(); }
  void synchronize() const { MNIST_CHECK(cudaStreamSynchronize(get())); }
  // Later work of this stream starts after the event's last record; at once if it was never recorded.
  void wait(const Event& event) { MNIST_CHECK(cudaStreamWaitEvent(get(), event.get(), 0)); }

 private:
  Handle<cudaStreamDestroy> handle_;
};

// Milliseconds between two recorded events that were made with timing (flags 0); waits for the second.
inline float elapsed_ms(const Event& start, const Event& stop) {
  float ms = 0;
  stop.synchronize();
  MNIST_CHECK(cudaEventElapsedTime(&ms, start.get(), stop.get()));
  return ms;
}

// CUDA's current device is per thread. Code called from any thread selects its device with this guard, which restores
// the caller's.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    MNIST_CHECK(cudaGetDevice(&previous_));
    if (previous_ != device) MNIST_CHECK(cudaSetDevice(device));
    changed_ = previous_ != device;
  }
  ~DeviceGuard() {
    if (changed_) (void)cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace mnist::cuda
