// EventClock: times what a stream does between stamps, also within a CUDA graph.
#pragma once

#include <vector>

#include "cuda/stream.h"
#include "mnist/engine.h"

namespace mnist::cuda {

// Stamps are events. While the stream is captured a stamp becomes a node of the graph, so that each launch of it sets
// the times anew and the host's gaps between launches do not show. The events are made at the first pass: queue what is
// to be timed once as it is, restart() and capture it then.
class EventClock {
 public:
  explicit EventClock(cudaStream_t stream) : stream_(stream) {}

  void stamp() {
    if (next_ == events_.size()) events_.emplace_back(unsigned(cudaEventDefault));
    cudaStreamCaptureStatus status{};
    MNIST_CHECK(cudaStreamIsCapturing(stream_, &status));
    const bool captured = status == cudaStreamCaptureStatusActive;
    MNIST_CHECK(cudaEventRecordWithFlags(events_[next_++].get(), stream_,
                                         captured ? cudaEventRecordExternal : cudaEventRecordDefault));
  }
  // The first event is where the time begins; it is not for a stream that is being captured.
  void restart() {
    next_ = 0;
    stamp();
  }
  // What lies between the stamps; waits for the last one. A launch of the graph later, all times are new.
  std::vector<Span> take() const {
    std::vector<Span> spans;
    if (next_ < 2) return spans;
    double start = 1e-3 * elapsed_ms(events_[0], events_[1]);
    for (std::size_t i = 2; i < next_; ++i) {  // each difference by itself: a long time has no room for its digits
      const double seconds = 1e-3 * elapsed_ms(events_[i - 1], events_[i]);
      spans.push_back({start, seconds});
      start += seconds;
    }
    return spans;
  }

 private:
  cudaStream_t stream_;
  std::vector<Event> events_;
  std::size_t next_ = 0;
};

}  // namespace mnist::cuda
