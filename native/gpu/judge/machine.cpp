// The judge's machine where there is a GPU.
#include "judge/machine.h"

#include "cuda/buffer.h"
#include "cuda/check.h"
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

// Records what `run` puts on the stream, whatever else it does; null where it does what cannot be recorded.
cudaGraph_t recorded(const std::function<void(cudaStream_t)>& run, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  MNIST_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  run(stream);
  if (cudaStreamEndCapture(stream, &graph) != cudaSuccess) graph = nullptr;
  (void)cudaGetLastError();
  return graph;
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

void empty_caches(cudaStream_t stream) { write_flush(stream); }

std::string report(const std::function<void(cudaStream_t)>& again, cudaStream_t stream) {
  std::string kernels = "[{}]";  // not known
  if (again) {
    if (cudaGraph_t graph = recorded(again, stream)) {
      kernels = kernels_of(graph).json;
      MNIST_CHECK(cudaGraphDestroy(graph));
    }
  }
  return "{\"faults\": [], \"lines\": [], \"kernels\": " + kernels + "}";
}

bool record(const std::function<void(cudaStream_t)>& run, int repeats, cudaStream_t stream, cudaGraphExec_t* graph,
            std::string* why) {
  *why = "it does what a CUDA graph cannot record";
  cudaGraph_t one = recorded(run, stream);
  if (!one) return false;
  cudaGraph_t all = recorded(
      [&](cudaStream_t on) {
        for (int k = 0; k < repeats; ++k) run(on);
      },
      stream);
  if (!all) return false;
  if (kernels_of(all).count != std::size_t(repeats) * kernels_of(one).count) {
    *why = "calls one after the other do not launch the same kernels";
    return false;
  }
  const bool made = cudaGraphInstantiate(graph, all, 0) == cudaSuccess;
  (void)cudaGetLastError();
  MNIST_CHECK(cudaGraphDestroy(one));
  MNIST_CHECK(cudaGraphDestroy(all));
  return made;
}

}  // namespace judge
