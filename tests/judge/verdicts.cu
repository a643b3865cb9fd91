// Launchers of relu, each with what its verdict must say in tests/test_verdicts.py. No header is included: CUDA has
// printf and the types of <cstdint>.
#define T 256
#define N(x) x

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <vector>

using real = float;

namespace {

__device__ void relu(float* y, std::uint8_t* pass, const float* x, std::int64_t k) {
  pass[k] = !(x[k] <= 0);
  y[k] = pass[k] ? x[k] : 0;
}
__global__ void right(float* y, std::uint8_t* pass, const float* x, std::int64_t count) {
  const std::int64_t k = std::int64_t(blockIdx.x) * T + threadIdx.x;
  if (k < count) relu(y, pass, x, k);
}
__global__ void unknown_ptx(float* y, std::uint8_t* pass, const float* x, std::int64_t count) {
  const std::int64_t k = std::int64_t(blockIdx.x) * T + threadIdx.x;
  if (count > 1000) asm volatile("wgmma.fence.sync.aligned;");
  if (k < count) relu(y, pass, x, k);
}
__global__ void launches(float* y, std::uint8_t* pass, const float* x, std::int64_t count) {
  right<<<1, 32>>>(y, pass, x, count);
}
// y comes from a tile that nobody fills: it is stored, with the bits that unwritten memory has.
__global__ void empty_tile(float* y, std::uint8_t* pass, const float* x, std::int64_t count) {
  __shared__ float tile[T];
  const std::int64_t k = std::int64_t(blockIdx.x) * T + threadIdx.x;
  if (k >= count) return;
  pass[k] = !(x[k] <= 0);
  y[k] = tile[threadIdx.x];
}
__global__ void prints(float* y, std::uint8_t* pass, const float* x, std::int64_t count) {
  const std::int64_t k = std::int64_t(blockIdx.x) * T + threadIdx.x;
  if (k == 0) printf("x[0] of %d\n", int(count));
  if (k < count) relu(y, pass, x, k);
}
__global__ void never_ends(float* y) {
  for (;;) reinterpret_cast<volatile float*>(y)[0] = 0;
}
__global__ void polls(const float* y) {
  while (reinterpret_cast<const volatile float*>(y)[0] != 2) continue;  // nobody stores it
}
__device__ int largest;
__global__ void changes_nothing() {
  for (int k = 0; k < 10000; ++k) atomicMax(&largest, k % 2);  // an end, which waiting has not
}
__global__ void prints_for_ever() {
  for (;;) printf("................................................................................................\n");
}

void launch(float* y, std::uint8_t* pass, const float* x, long count, cudaStream_t stream, long blocks, int threads) {
  right<<<unsigned(blocks), threads, 0, stream>>>(y, pass, x, count);
}
void write_everywhere(const std::string& text) {
  for (int file = 3; file < 64; ++file)
    if (write(file, text.data(), text.size()) < 0) continue;
}

}  // namespace

// Other words for the types of the ladder.
void relu_forward_long(real* y, unsigned char* pass, float const* x, long count, cudaStream_t stream) {
  launch(y, pass, x, count, stream, (count + T - 1) / T, T);
}
void relu_forward_long_long(float* y, uint8_t* pass, const real* const x, long long count, cudaStream_t stream) {
  launch(y, pass, x, count, stream, (count + T - 1) / T, T);
}
void relu_forward_prints(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  prints<<<unsigned((count + T - 1) / T), T, 0, stream>>>(y, pass, x, count);
}
void relu_forward_bounded(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  changes_nothing<<<1, 1, 0, stream>>>();
  launch(y, pass, x, count, stream, (count + T - 1) / T, T);
}
// What needs no kernel, and a memset does.
void relu_forward_by_memset(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  if (count > 1) return launch(y, pass, x, count, stream, (count + T - 1) / T, T);
  float value = 0;
  cudaMemcpy(&value, x, sizeof value, cudaMemcpyDeviceToHost);
  if (!(value <= 0)) return launch(y, pass, x, count, stream, 1, T);
  cudaMemsetAsync(y, 0, 4, stream);
  cudaMemsetAsync(pass, 0, 1, stream);
}

// Not judged.
void relu_forward_ptx(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  unknown_ptx<<<unsigned((count + T - 1) / T), T, 0, stream>>>(y, pass, x, count);
}
void relu_forward_nested(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  launches<<<1, 1, 0, stream>>>(y, pass, x, count);
}
void relu_forward_deep(float*, std::uint8_t*, const float*, std::int64_t, cudaStream_t) {
  write_everywhere(std::string(200000, '[') + "\n");
}
void relu_forward_odd(float*, std::uint8_t*, const float*, std::int64_t, cudaStream_t) {
  write_everywhere(
      "{\"word\": \"0\", \"task\": 0, \"call\": 0, \"failed\": \"\", \"refused\": false, \"changed\": [], "
      "\"differs\": false, \"report\": {\"faults\": [], \"lines\": [], \"kernels\": [{}]}}\n");
}

// Wrong.
void relu_forward_empty_tile(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  empty_tile<<<unsigned((count + T - 1) / T), T, 0, stream>>>(y, pass, x, count);
}
void relu_forward_threads(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  launch(y, pass, x, count, stream, 1, 2048);
}
void relu_forward_ragged(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  launch(y, pass, x, count, stream, count < T ? 1 : count / T, T);
}
void relu_forward_endless(float* y, std::uint8_t*, const float*, std::int64_t, cudaStream_t stream) {
  never_ends<<<1, 1, 0, stream>>>(y);
}
void relu_forward_waits(float* y, std::uint8_t*, const float*, std::int64_t, cudaStream_t stream) {
  cudaMemsetAsync(y, 0, sizeof *y, stream);
  polls<<<1, 1, 0, stream>>>(y);
}
void relu_forward_floods(float*, std::uint8_t*, const float*, std::int64_t, cudaStream_t) {
  prints_for_ever<<<1, 1>>>();
}
void relu_forward_line(float*, std::uint8_t*, const float*, std::int64_t, cudaStream_t) {
  for (;;) write_everywhere(std::string(1000, '['));
}
void relu_forward_text(float*, std::uint8_t*, const float*, std::int64_t, cudaStream_t) {
  throw std::runtime_error(std::string(100 << 20, 'A'));
}
void relu_forward_closes(float*, std::uint8_t*, const float*, std::int64_t, cudaStream_t) {
  for (int file = 0; file < 64; ++file) close(file);
  for (;;) pause();
}
void relu_forward_pipes(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  for (const char* name : {"outputs", "printed", "errors", "inputs", "tasks"}) {
    unlink(name);
    if (mkfifo(name, 0600)) continue;
  }
  launch(y, pass, x, count, stream, (count + T - 1) / T, T);
}
