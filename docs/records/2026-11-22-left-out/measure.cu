// What unified memory, dynamic parallelism and cuBLASXt cost at this network's sizes, beside what the project does.
//   nvcc -O3 -std=c++17 -arch=sm_90 -rdc=true -o measure measure.cu -lcublas -lcudadevrt && ./measure
#include <cublasXt.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define CHECK(call)                                                  \
  do {                                                               \
    if (const int status = int(call)) {                              \
      std::printf("%s:%d: status %d\n", __FILE__, __LINE__, status); \
      std::exit(1);                                                  \
    }                                                                \
  } while (false)

// Microseconds of `work`, which waits for itself; `before` is not timed. Median of nine.
double microseconds(const std::function<void()>& work, const std::function<void()>& before = [] {}) {
  std::vector<double> times;
  for (int k = 0; k < 10; ++k) {
    before();
    CHECK(cudaDeviceSynchronize());
    const auto start = std::chrono::steady_clock::now();
    work();
    CHECK(cudaDeviceSynchronize());
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(times.begin() + 1, times.begin() + 5, times.end());  // the first one warms up
  return times[5];
}

__global__ void sum_kernel(unsigned long long* total, const uint4* words, long long count) {
  unsigned sum = 0;
  for (long long k = blockIdx.x * blockDim.x + threadIdx.x; k < count; k += gridDim.x * blockDim.x) {
    const uint4 word = words[k];
    sum += word.x ^ word.y ^ word.z ^ word.w;
  }
  atomicAdd(total, sum);
}

__global__ void empty_kernel() {}

// Launches itself `left` times more, each after the one before it.
__global__ void chain_kernel(int left) {
  if (left > 0) chain_kernel<<<1, 1, 0, cudaStreamTailLaunch>>>(left - 1);
}

int main() {
  cudaDeviceProp gpu;
  CHECK(cudaGetDeviceProperties(&gpu, 0));
  std::printf("%s, microseconds, medians of nine\n", gpu.name);

  // The training images: 60000 of 784 bytes, written by the host, read once by a kernel.
  const std::size_t bytes = 60000 * 784;
  unsigned long long* total;
  unsigned char *pinned, *device, *managed;
  CHECK(cudaMalloc(&total, 8));
  CHECK(cudaMallocHost(&pinned, bytes));
  CHECK(cudaMalloc(&device, bytes));
  CHECK(cudaMallocManaged(&managed, bytes));
  std::memset(pinned, 1, bytes);
  const auto read = [&](const unsigned char* from) {
    sum_kernel<<<1056, 256>>>(total, reinterpret_cast<const uint4*>(from), bytes / 16);
  };
  const auto write = [&] { std::memset(managed, 1, bytes); };
  std::printf("images copied from pinned memory, then read   %9.1f\n", microseconds([&] {
                CHECK(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice));
                read(device);
              }));
  std::printf("images in unified memory, first read          %9.1f\n", microseconds([&] { read(managed); }, write));
  std::printf("images in unified memory, read again          %9.1f\n", microseconds([&] { read(managed); }));
  std::printf("images on the device, read                    %9.1f\n", microseconds([&] { read(device); }));

  // 100 dependent launches of an empty kernel.
  constexpr int kLaunches = 100;
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const auto launches = [&] {
    for (int k = 0; k < kLaunches; ++k) empty_kernel<<<1, 1, 0, stream>>>();
  };
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  launches();
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  std::printf("a launch, of 100 by the host                  %9.2f\n", microseconds(launches) / kLaunches);
  std::printf("a launch, of 100 in a CUDA graph              %9.2f\n",
              microseconds([&] { CHECK(cudaGraphLaunch(exec, stream)); }) / kLaunches);
  std::printf("a launch, of 100 by dynamic parallelism       %9.2f\n",
              microseconds([&] { chain_kernel<<<1, 1, 0, stream>>>(kLaunches - 1); }) / kLaunches);
  CHECK(cudaGetLastError());

  // fc1 at batch 256: (256,3136) by (3136,128), in fp32.
  const int m = 128, n = 256, k = 3136;
  float *a, *b, *c, *host_a, *host_b, *host_c;
  CHECK(cudaMalloc(&a, 4 * m * k));
  CHECK(cudaMalloc(&b, 4 * n * k));
  CHECK(cudaMalloc(&c, 4 * m * n));
  CHECK(cudaMallocHost(&host_a, 4 * m * k));
  CHECK(cudaMallocHost(&host_b, 4 * n * k));
  CHECK(cudaMallocHost(&host_c, 4 * m * n));
  std::fill(host_a, host_a + m * k, 1.0f);
  std::fill(host_b, host_b + n * k, 1.0f);
  CHECK(cudaMemcpy(a, host_a, 4 * m * k, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(b, host_b, 4 * n * k, cudaMemcpyHostToDevice));
  const float one = 1, zero = 0;
  cublasHandle_t blas;
  CHECK(cublasCreate(&blas));
  std::printf("fc1's product by cuBLAS, on the device        %9.1f\n", microseconds([&] {
                CHECK(cublasSgemm(blas, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &one, a, k, b, k, &zero, c, m));
              }));
  cublasXtHandle_t xt;
  int first_gpu = 0;
  CHECK(cublasXtCreate(&xt));
  CHECK(cublasXtDeviceSelect(xt, 1, &first_gpu));
  std::printf(
      "fc1's product by cuBLASXt, from pinned memory %9.1f\n", microseconds([&] {
        CHECK(cublasXtSgemm(xt, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &one, host_a, k, host_b, k, &zero, host_c, m));
      }));
  std::printf("%s\n", host_c[m * n - 1] == float(k) ? "right" : "WRONG");
}
