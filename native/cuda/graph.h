// CUDA graphs: what a function queues on a stream, recorded once and replayed with one launch.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/check.h"
#include "cuda/delays.h"
#include "cuda/handle.h"

namespace mnist::cuda {

// An executable graph; empty until it comes from capture().
class Graph {
 public:
  Graph() = default;
  explicit operator bool() const { return bool(exec_); }
  void launch(cudaStream_t stream) const {
    random_delay();
    MNIST_CHECK(cudaGraphLaunch(exec_.get(), stream));
  }

 private:
  template <class F>
  friend Graph capture(cudaStream_t stream, F&& queue);
  Handle<cudaGraphExecDestroy> exec_;
};

// Records what `queue()` puts on `stream` without running it. `queue` must not synchronise nor allocate; other
// threads may go on using CUDA. If it throws, the recording is dropped and the stream is usable again.
template <class F>
Graph capture(cudaStream_t stream, F&& queue) {
  MNIST_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  Handle<cudaGraphDestroy> graph;
  try {
    std::forward<F>(queue)();
  } catch (...) {
    (void)cudaStreamEndCapture(stream, graph.put());
    (void)cudaGetLastError();
    throw;
  }
  MNIST_CHECK(cudaStreamEndCapture(stream, graph.put()));
  Graph result;
  MNIST_CHECK(cudaGraphInstantiate(result.exec_.put(), graph.get(), 0));
  return result;
}

}  // namespace mnist::cuda
