// Sums of rows, a block of four warps per row. Every number is right, and the kernel is wrong: docs/judge.md says why.
#include <cuda_runtime.h>

__device__ float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
  return value;
}

__global__ void row_sums_kernel(float* y, const float* x, const int* length, int columns) {
  __shared__ float of_warp[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float* row = x + std::int64_t(blockIdx.x) * columns;
  float sum = 0;
  for (int c = threadIdx.x; c < length[blockIdx.x]; c += 128) sum += row[c];
  sum = warp_sum(sum);
  if (warp == 0) of_warp[lane] = 0;  // four warps leave 28 places of the 32 empty
  if (lane == 0) of_warp[warp] = sum;
  __syncthreads();
  sum = warp_sum(of_warp[lane]);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

void row_sums_race(float* y, const float* x, const int* length, const int*, std::int64_t rows, int columns,
                   cudaStream_t stream) {
  row_sums_kernel<<<unsigned(rows), 128, 0, stream>>>(y, x, length, columns);
}
