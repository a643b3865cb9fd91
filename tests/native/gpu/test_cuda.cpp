// native/cuda: buffers, copies, events across streams, graphs, and what running out of memory says.
#include "cuda/buffer.h"
#include "cuda/graph.h"
#include "cuda/stream.h"
#include "kernels/relu/relu.h"
#include "profile/kernel_use.h"
#include "profile/nvtx.h"
#include "testing.h"

using namespace mnist::cuda;

namespace {

void test_buffers() {
  Stream stream;
  DeviceBuffer<float> a(3), b;
  CHECK(!a.reserve(3) && a.size() == 3);
  const float* before = a.data();
  b = std::move(a);
  CHECK(b.data() == before && a.data() == nullptr && a.size() == 0);
  CHECK(b.reserve(1000) && b.size() == 1000 && b.bytes() == 4000);
  DeviceBuffer<float> empty(0);
  CHECK(empty.data() == nullptr && empty.size() == 0);

  const auto values = testing::random_normal<float>(1000, 1);
  std::vector<float> got(1000);
  DeviceBuffer<float> c(1000);
  upload(b.data(), values, stream.get());
  copy(c.data(), b.data(), 1000, stream.get());
  download(got, c.data(), stream.get());
  CHECK(got == values);
  fill_bytes(c.data(), 0xff, 999, stream.get());
  download(got, c.data(), stream.get());
  CHECK(std::isnan(got[0]) && std::isnan(got[998]) && got[999] == values[999]);
}

// A pinned buffer goes up on one stream, and the other waits for it by an event.
void test_streams() {
  Stream first, second;
  Event uploaded;
  constexpr int kCount = 1 << 22;
  PinnedBuffer<int> pinned(kCount);
  for (int i = 0; i < kCount; ++i) pinned.data()[i] = i;
  DeviceBuffer<int> a(kCount), b(kCount);
  uploaded.synchronize();
  upload(a.data(), {pinned.data(), kCount}, first.get());
  uploaded.record(first.get());
  second.wait(uploaded);
  copy(b.data(), a.data(), kCount, second.get());
  std::vector<int> got(kCount);
  download(got, b.data(), second.get());
  CHECK(got.front() == 0 && got[kCount / 2] == kCount / 2 && got.back() == kCount - 1);

  Event start(0), stop(0);
  start.record(second.get());
  copy(b.data(), a.data(), kCount, second.get());
  stop.record(second.get());
  CHECK(elapsed_ms(start, stop) > 0);
}

void test_graphs() {
  MNIST_RANGE("graph test");
  Stream stream;
  DeviceBuffer<int> a(4);
  int got[4] = {};
  fill_bytes(a.data(), 0, 4, stream.get());
  const Graph graph = capture(stream.get(), [&] { fill_bytes(a.data(), 1, 2, stream.get()); });
  download(got, a.data(), stream.get());
  CHECK(got[0] == 0);  // recorded, not run
  graph.launch(stream.get());
  download(got, a.data(), stream.get());
  CHECK(got[0] == 0x01010101 && got[1] == 0x01010101 && got[2] == 0);
  CHECK(!Graph());

  // A failure inside leaves the stream usable.
  bool thrown = false;
  try {
    (void)capture(stream.get(), [&] { throw mnist::ArgumentError("inside"); });
  } catch (const mnist::ArgumentError&) {
    thrown = true;
  }
  CHECK(thrown);
  fill_bytes(a.data(), 2, 4, stream.get());
  download(got, a.data(), stream.get());
  CHECK(got[3] == 0x02020202);
}

// What a graph launches, cut where it records events; the driver's numbers against the runtime's.
void test_kernels() {
  Stream stream;
  const DeviceBuffer<float> x(1024), y(1024);
  const DeviceBuffer<std::uint8_t> pass(1024);
  const Event event(0);
  const auto graph = record(stream.get(), [&] {
    for (const int launches : {0, 2, 1}) {
      for (int k = 0; k < launches; ++k)
        mnist::kernels::relu_forward_float4(y.data(), pass.data(), x.data(), launches == 2 ? 1024 : 1000 + k,
                                            stream.get());
      MNIST_CHECK(cudaEventRecordWithFlags(event.get(), stream.get(), cudaEventRecordExternal));
    }
    fill_bytes(y.data(), 0, 4, stream.get());
  });
  const auto found = kernels_between_events(graph.get());
  CHECK(found.size() == 4 && found[0].empty() && found[1].size() == 1 && found[2].size() == 1 && found[3].empty());
  const mnist::KernelUse& use = found.at(1).at(0);
  CHECK(use.name == "relu_forward_float4_kernel" && use.symbol.find("relu_forward_float4_kernel") != std::string::npos);
  const int threads = int(use.block[0]);
  CHECK(threads % 32 == 0 && int(use.grid[0]) * threads * 4 >= 1024 && use.grid[1] == 1 && use.block[2] == 1);
  CHECK(use.registers > 0 && use.registers <= 255 && use.shared_bytes == 0);
  cudaDeviceProp gpu{};
  MNIST_CHECK(cudaGetDeviceProperties(&gpu, 0));
  CHECK(use.blocks_per_multiprocessor * threads <= gpu.maxThreadsPerMultiProcessor &&
        use.blocks_per_multiprocessor * threads * use.registers <= gpu.regsPerMultiprocessor);
  CHECK(use.occupancy == double(use.blocks_per_multiprocessor) * threads / gpu.maxThreadsPerMultiProcessor);

  const std::string of_a_template = "_ZN5mnist7kernels5naive12_GLOBAL__N_119relu_forward_kernelIfEEvPT_PhPKS4_l";
  CHECK(readable_kernel_name(of_a_template) == "naive::relu_forward_kernel<float>");
  CHECK(readable_kernel_name("sm90_gemm") == "sm90_gemm");
}

void test_errors() {
  std::string sentence;
  try {
    DeviceBuffer<double> too_large(std::int64_t(1) << 40);
  } catch (const mnist::OutOfMemoryError& error) {
    sentence = error.what();
  }
  CHECK(sentence.find("8388608 MiB needed") != std::string::npos && sentence.find("free of") != std::string::npos);
  CHECK(cudaGetLastError() == cudaSuccess);
  sentence.clear();
  try {
    MNIST_CHECK(cudaSetDevice(1000));
  } catch (const std::runtime_error& error) {
    sentence = error.what();
  }
  CHECK(sentence.find("cudaErrorInvalidDevice") != std::string::npos &&
        sentence.find("cudaSetDevice(1000)") != std::string::npos &&
        sentence.find("test_cuda.cpp") != std::string::npos);
  CHECK(cudaGetLastError() == cudaSuccess);
  DeviceGuard guard(0);
}

}  // namespace

int main() {
  testing::require_gpu();
  test_buffers();
  test_streams();
  test_graphs();
  test_kernels();
  test_errors();
  return testing::finish();
}
