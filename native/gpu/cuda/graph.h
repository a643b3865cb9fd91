// CUDA graphs: what a function queues on a stream, recorded once and replayed with one launch.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/check.h"
#include "cuda/delays.h"
#include "cuda/handle.h"

namespace mnist::cuda {

using RecordedGraph = Handle<cudaGraphDestroy>;

// An executable graph; empty until it is made of a recorded one.
class Graph {
 public:
  Graph() = default;
  explicit Graph(const RecordedGraph& recorded) { MNIST_CHECK(cudaGraphInstantiate(exec_.put(), recorded.get(), 0)); }
  explicit operator bool() const { return bool(exec_); }
  void launch(cudaStream_t stream) const {
    random_delay();
    MNIST_CHECK(cudaGraphLaunch(exec_.get(), stream));
  }

 private:
  Handle<cudaGraphExecDestroy> exec_;
};

// Records what `queue()` puts on `stream` without running it. `queue` must neither synchronise nor allocate; other
// threads may go on using CUDA. If it throws, the recording is dropped and the stream is usable again.
template <class F>
RecordedGraph record(cudaStream_t stream, F&& queue) {
  MNIST_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  RecordedGraph graph;
  try {
    std::forward<F>(queue)();
  } catch (...) {
    (void)cudaStreamEndCapture(stream, graph.put());
    (void)cudaGetLastError();
    throw;
  }
  MNIST_CHECK(cudaStreamEndCapture(stream, graph.put()));
  return graph;
}

// The same, ready to be launched.
template <class F>
Graph capture(cudaStream_t stream, F&& queue) {
  return Graph(record(stream, std::forward<F>(queue)));
}

}  // namespace mnist::cuda
