// The judge's machine where there is a GPU.
#include "judge/machine.h"

#include "cuda/buffer.h"
#include "cuda/check.h"
#include "cuda/graph.h"
#include "judge/kernels.h"

namespace judge {
namespace {

using mnist::cuda::DeviceBuffer;

constexpr int kDelay = 4;  // times the memory below is written before a call

// More than the L2 cache holds.
const DeviceBuffer<std::uint8_t>& flush() {
  static const DeviceBuffer<std::uint8_t> buffer = [] {
    int device = 0, cache = 0;
    MNIST_CHECK(cudaGetDevice(&device));
    MNIST_CHECK(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device));
    return DeviceBuffer<std::uint8_t>(4 * std::int64_t(cache) + 1);
  }();
  return buffer;
}

void write_flush(cudaStream_t stream) { mnist::cuda::fill_bytes(flush().data(), 0, flush().size(), stream); }

using mnist::cuda::RecordedGraph;

// Records what `run` puts on the stream; empty where it does what cannot be recorded. Relaxed: whatever else it does.
RecordedGraph recorded(const std::function<void(cudaStream_t)>& run, cudaStream_t stream, cudaStreamCaptureMode mode) {
  cudaGraph_t graph = nullptr;
  MNIST_CHECK(cudaStreamBeginCapture(stream, mode));
  run(stream);
  if (cudaStreamEndCapture(stream, &graph) != cudaSuccess) graph = nullptr;
  (void)cudaGetLastError();
  return RecordedGraph(graph);
}

}  // namespace

const std::int64_t kGuard = 4096;

// The arrays are filled behind this, so work that the launcher puts on another stream comes too early: it finds old
// inputs, and its outputs are filled over.
void before_call(int, cudaStream_t stream) {
  // Nothing persists before compute capability 8.0, which these calls then say.
  (void)cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 0);
  (void)cudaCtxResetPersistingL2Cache();
  (void)cudaGetLastError();
  for (int k = 0; k < kDelay; ++k) write_flush(stream);
}

void poison(void* data, std::int64_t bytes, cudaStream_t stream) {
  mnist::cuda::fill_bytes(static_cast<char*>(data), 0xff, bytes, stream);
}

std::optional<std::vector<char>> stored(const void*, std::int64_t) { return {}; }

void empty_caches(cudaStream_t stream) { write_flush(stream); }

std::string report(const std::function<void(cudaStream_t)>& again, cudaStream_t stream) {
  std::string kernels = "[{}]";  // not known
  if (again) {
    if (const auto graph = recorded(again, stream, cudaStreamCaptureModeRelaxed))
      kernels = kernels_of(graph.get()).json;
  }
  return "{\"faults\": [], \"lines\": [], \"kernels\": " + kernels + "}";
}

bool record(const std::function<void(cudaStream_t)>& run, int repeats, cudaStream_t stream, cudaGraphExec_t* graph,
            std::string* why) {
  // A launcher that allocates is none: the graph would go on with memory that it has freed.
  *why = "it does what a CUDA graph cannot record";
  const auto one = recorded(run, stream, cudaStreamCaptureModeThreadLocal);
  if (!one) return false;
  const auto repeated = [&](cudaStream_t on) {
    for (int k = 0; k < repeats; ++k) run(on);
  };
  const auto all = recorded(repeated, stream, cudaStreamCaptureModeThreadLocal);
  if (!all) return false;
  *why = "calls one after the other do not launch the same kernels";
  if (kernels_of(all.get()).count != std::size_t(repeats) * kernels_of(one.get()).count) return false;
  *why = "its CUDA graph cannot be made ready";
  const bool made = cudaGraphInstantiate(graph, all.get(), 0) == cudaSuccess;
  (void)cudaGetLastError();
  return made;
}

}  // namespace judge
