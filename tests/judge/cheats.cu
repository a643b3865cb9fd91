// Launchers of relu that are right at first sight, or get past a weaker judge; none may pass. `right` is the one that
// may. tests/test_judge.py judges all of them.
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <vector>

namespace {

__global__ void relu(float* y, std::uint8_t* pass, const float* x, std::int64_t count, float scale) {
  const std::int64_t k = std::int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (k >= count) return;
  pass[k] = !(x[k] <= 0);
  y[k] = pass[k] ? scale * x[k] : 0;
}
__global__ void nothing() {}
__global__ void add(float* y, std::uint8_t* pass, const float* x, std::int64_t count) {
  const std::int64_t k = std::int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (k >= count) return;
  pass[k] = !(x[k] <= 0);
  if (y[k] != y[k]) y[k] = 0;
  y[k] += pass[k] ? x[k] : 0;
}
__global__ void drops_nan(float* y, std::uint8_t* pass, const float* x, std::int64_t count) {
  const std::int64_t k = std::int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (k >= count) return;
  pass[k] = x[k] > 0;
  y[k] = pass[k] ? x[k] : 0;
}
__global__ void and_then_forget(float* y, std::uint8_t* pass, float* x, std::int64_t count) {
  const std::int64_t k = std::int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (k >= count) return;
  pass[k] = !(x[k] <= 0);
  y[k] = pass[k] ? x[k] : 0;
  x[k] = y[k];
}
__global__ void past_the_end(float* y, std::uint8_t* pass, const float* x, std::int64_t count) {
  const std::int64_t k = std::int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (k > count) return;
  pass[k] = !(x[k] <= 0);
  y[k] = pass[k] ? x[k] : 0;
}
__global__ void no_y(std::uint8_t* pass, const float* x, std::int64_t count) {
  const std::int64_t k = std::int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (k < count) pass[k] = !(x[k] <= 0);
}
__global__ void one_block(float* y, std::uint8_t* pass, const float* x, std::int64_t count) {
  for (std::int64_t k = threadIdx.x; k < (count < 1024 ? count : 1024); k += 256) {
    pass[k] = !(x[k] <= 0);
    y[k] = pass[k] ? x[k] : 0;
  }
}
__global__ void endless(volatile float* y) {
  for (float k = 0; y[0] != 2; k = 1 - k) y[0] = k;  // a change, or the emulator sees that nothing comes
}

void launch(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream, float scale = 1) {
  relu<<<unsigned((count + 255) / 256), 256, 0, stream>>>(y, pass, x, count, scale);
}

}  // namespace

void relu_forward_right(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  launch(y, pass, x, count, stream);
}
// Once is enough: what is there may stay.
void relu_forward_cached(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  static const float* known = nullptr;
  if (known != x) launch(y, pass, x, count, stream);
  known = x;
}
// The first answer for these addresses, again and again.
void relu_forward_replayed(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  static const float* known = nullptr;
  static std::vector<float> kept;
  static std::vector<std::uint8_t> passes;
  if (known != x) {
    launch(y, pass, x, count, stream);
    kept.resize(std::size_t(count));
    passes.resize(std::size_t(count));
    cudaMemcpy(kept.data(), y, std::size_t(count) * 4, cudaMemcpyDeviceToHost);
    cudaMemcpy(passes.data(), pass, std::size_t(count), cudaMemcpyDeviceToHost);
    known = x;
    return;
  }
  nothing<<<1, 1>>>();
  cudaMemcpy(y, kept.data(), std::size_t(count) * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(pass, passes.data(), std::size_t(count), cudaMemcpyHostToDevice);
}
void relu_forward_wrong_later(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  static int calls = 0;
  launch(y, pass, x, count, stream, ++calls > 10 ? 1.001f : 1);
}
void relu_forward_empty_later(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  static int calls = 0;
  if (++calls <= 4)
    launch(y, pass, x, count, stream);
  else
    nothing<<<1, 1>>>();
}
void relu_forward_no_launch_later(float* y, std::uint8_t* pass, const float* x, std::int64_t count,
                                  cudaStream_t stream) {
  static int calls = 0;
  if (++calls <= 7) launch(y, pass, x, count, stream);
}
void relu_forward_first_ones(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  cudaMemset(y, 0, std::size_t(count) * 4);
  cudaMemset(pass, 0, std::size_t(count));
  one_block<<<1, 256, 0, stream>>>(y, pass, x, count);
}
void relu_forward_in_place(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  and_then_forget<<<unsigned((count + 255) / 256), 256, 0, stream>>>(y, pass, const_cast<float*>(x), count);
}
void relu_forward_by_host(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::vector<std::uint8_t> passes(values.size());
  cudaMemcpy(values.data(), x, values.size() * 4, cudaMemcpyDeviceToHost);
  for (std::size_t k = 0; k < values.size(); ++k) {
    passes[k] = !(values[k] <= 0);
    if (!passes[k]) values[k] = 0;
  }
  cudaMemcpy(y, values.data(), values.size() * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(pass, passes.data(), passes.size(), cudaMemcpyHostToDevice);
}
void relu_forward_by_host_in_gpu(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t) {
  nothing<<<1, 1>>>();
  for (std::int64_t k = 0; k < count; ++k) {
    pass[k] = !(x[k] <= 0);
    y[k] = pass[k] ? x[k] : 0;
  }
}
void relu_forward_nearly(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  launch(y, pass, x, count, stream, 1.0000001f);
}
void relu_forward_drops_nan(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  drops_nan<<<unsigned((count + 255) / 256), 256, 0, stream>>>(y, pass, x, count);
}
void relu_forward_no_y(float*, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  no_y<<<unsigned((count + 255) / 256), 256, 0, stream>>>(pass, x, count);
}
void relu_forward_adds(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  add<<<unsigned((count + 255) / 256), 256, 0, stream>>>(y, pass, x, count);
}
void relu_forward_past_the_end(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  past_the_end<<<unsigned((count + 256) / 256), 256, 0, stream>>>(y, pass, x, count);
}
void relu_forward_refuses(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  if (count % 4) throw std::runtime_error("count must be a multiple of 4");
  launch(y, pass, x, count, stream);
}
void relu_forward_too_many_threads(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t) {
  relu<<<1, unsigned(count), 0>>>(y, pass, x, count, 1);
}
void relu_forward_ends(float*, std::uint8_t*, const float*, std::int64_t, cudaStream_t) { std::exit(0); }
void relu_forward_crashes(float*, std::uint8_t*, const float*, std::int64_t, cudaStream_t) { std::abort(); }
// Results of its own, on every file that is open.
void relu_forward_answers_itself(float*, std::uint8_t*, const float*, std::int64_t, cudaStream_t) {
  const char line[] =
      "{\"task\": 0, \"call\": 0, \"failed\": \"\", \"refused\": false, \"changed\": [], \"differs\": false, "
      "\"report\": {\"faults\": [], \"lines\": [], \"kernels\": [{}]}}\n";
  for (int file = 3; file < 64; ++file)
    for (int n = 0; n < 100; ++n)
      if (write(file, line, sizeof line - 1) < 0) break;
  std::_Exit(0);
}
void relu_forward_waits_for_ever(float* y, std::uint8_t*, const float*, std::int64_t, cudaStream_t stream) {
  endless<<<1, 1, 0, stream>>>(y);
}
