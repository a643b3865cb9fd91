// conv2d: one thread an output, the loops of the definition inside it.
#include "cuda/check.h"
#include "kernels/chunks.h"
#include "kernels/conv2d/naive_ops.h"
#include "kernels/device/block_sum.cuh"
#include "mnist/ceil_div.h"
#include "mnist/model.h"

namespace mnist::kernels::naive {
namespace {

constexpr int kBlock = 256;        // positions of a plane
constexpr int kWeightBlock = 128;  // threads that share an (o,i) pair

// blockIdx.x = b * out + o, blockIdx.y = which 256 positions. A warp reads 32 neighbours of x at a time and one
// weight, which is the same for all of them.
template <class T>
__global__ void conv2d_forward_kernel(T* __restrict__ y, const T* __restrict__ x, const T* __restrict__ w,
                                      const T* __restrict__ bias, int in, int out, int side) {
  const int area = side * side, position = int(blockIdx.y * kBlock + threadIdx.x);
  if (position >= area) return;
  const int b = int(blockIdx.x) / out, o = int(blockIdx.x) % out;
  const int p = position / side, q = position % side;
  T sum = bias[o];
  for (int i = 0; i < in; ++i) {
    const T* plane = x + (std::int64_t(b) * in + i) * area;
    const T* filter = w + (o * in + i) * kTaps;
    for (int u = 0; u < 3; ++u)
      for (int v = 0; v < 3; ++v) {
        const int r = p + u - 1, s = q + v - 1;
        if (r >= 0 && r < side && s >= 0 && s < side) sum += filter[3 * u + v] * plane[r * side + s];
      }
  }
  y[std::int64_t(blockIdx.x) * area + position] = sum;
}

// blockIdx.x = b * in + i, blockIdx.y = which 256 positions.
template <class T>
__global__ void conv2d_backward_data_kernel(T* __restrict__ dx, const T* __restrict__ dy, const T* __restrict__ w,
                                            int in, int out, int side) {
  const int area = side * side, position = int(blockIdx.y * kBlock + threadIdx.x);
  if (position >= area) return;
  const int b = int(blockIdx.x) / in, i = int(blockIdx.x) % in;
  const int r = position / side, s = position % side;
  T sum = 0;
  for (int o = 0; o < out; ++o) {
    const T* plane = dy + (std::int64_t(b) * out + o) * area;
    const T* filter = w + (o * in + i) * kTaps;
    for (int u = 0; u < 3; ++u)
      for (int v = 0; v < 3; ++v) {
        const int p = r - u + 1, q = s - v + 1;
        if (p >= 0 && p < side && q >= 0 && q < side) sum += filter[3 * u + v] * plane[p * side + q];
      }
  }
  dx[std::int64_t(blockIdx.x) * area + position] = sum;
}

// blockIdx.x = o * in + i, blockIdx.y = chunk; partial (chunks,O,I,3,3).
template <class T>
__global__ void conv2d_backward_weight_kernel(T* __restrict__ partial, const T* __restrict__ dy,
                                              const T* __restrict__ x, std::int64_t batch, int in, int out, int side) {
  __shared__ T shared[kWeightBlock];
  const int area = side * side, o = int(blockIdx.x) / in, i = int(blockIdx.x) % in;
  const std::int64_t begin = chunk_begin(blockIdx.y, gridDim.y, batch);
  const std::int64_t end = chunk_begin(blockIdx.y + 1, gridDim.y, batch);
  T sums[kTaps] = {};
  for (std::int64_t b = begin; b < end; ++b) {
    const T* dy_plane = dy + (b * out + o) * area;
    const T* x_plane = x + (b * in + i) * area;
    for (int position = int(threadIdx.x); position < area; position += kWeightBlock) {
      const T d = dy_plane[position];
      const int p = position / side, q = position % side;
      for (int u = 0; u < 3; ++u)
        for (int v = 0; v < 3; ++v) {
          const int r = p + u - 1, s = q + v - 1;
          if (r >= 0 && r < side && s >= 0 && s < side) sums[3 * u + v] += d * x_plane[r * side + s];
        }
    }
  }
  T* to = partial + (std::int64_t(blockIdx.y) * gridDim.x + blockIdx.x) * kTaps;
  for (int tap = 0; tap < kTaps; ++tap) {
    const T sum = device::block_sum<kWeightBlock>(sums[tap], shared);
    if (threadIdx.x == 0) to[tap] = sum;
  }
}

template <class T>
__global__ void add_chunks_kernel(T* __restrict__ dw, const T* __restrict__ partial, int count, int chunks) {
  const int k = int(blockIdx.x * kBlock + threadIdx.x);
  if (k >= count) return;
  T sum = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) sum += partial[std::int64_t(chunk) * count + k];
  dw[k] = sum;
}

void require_sizes(const char* what, std::int64_t batch, int in, int out, int side) {
  MNIST_REQUIRE(batch > 0 && in > 0 && out > 0 && side > 0, what << ": batch " << batch << ", " << in << " to " << out
                                                                 << " channels, side " << side
                                                                 << ", expected all at least 1");
}

dim3 plane_grid(std::int64_t planes, int side) { return {unsigned(planes), unsigned(ceil_div(side * side, kBlock))}; }

}  // namespace

template <class T>
void conv2d_forward(T* y, const T* x, const T* w, const T* bias, std::int64_t batch, int in, int out, int side,
                    cudaStream_t stream) {
  require_sizes("conv2d_forward", batch, in, out, side);
  conv2d_forward_kernel<<<plane_grid(batch * out, side), kBlock, 0, stream>>>(y, x, w, bias, in, out, side);
  MNIST_CHECK_LAUNCH();
}

template <class T>
void conv2d_backward_data(T* dx, const T* dy, const T* w, std::int64_t batch, int in, int out, int side,
                          cudaStream_t stream) {
  require_sizes("conv2d_backward_data", batch, in, out, side);
  conv2d_backward_data_kernel<<<plane_grid(batch * in, side), kBlock, 0, stream>>>(dx, dy, w, in, out, side);
  MNIST_CHECK_LAUNCH();
}

template <class T>
void conv2d_backward_weight(T* dw, T* partial, const T* dy, const T* x, std::int64_t batch, int in, int out, int side,
                            cudaStream_t stream) {
  require_sizes("conv2d_backward_weight", batch, in, out, side);
  const int chunks = int(chunk_count(batch)), count = in * out * kTaps;
  const dim3 grid(unsigned(in * out), unsigned(chunks));
  conv2d_backward_weight_kernel<<<grid, kWeightBlock, 0, stream>>>(partial, dy, x, batch, in, out, side);
  MNIST_CHECK_LAUNCH();
  add_chunks_kernel<<<unsigned(ceil_div(count, kBlock)), kBlock, 0, stream>>>(dw, partial, count, chunks);
  MNIST_CHECK_LAUNCH();
}

#define MNIST_INSTANTIATE(T)                                                                                 \
  template void conv2d_forward(T*, const T*, const T*, const T*, std::int64_t, int, int, int, cudaStream_t); \
  template void conv2d_backward_data(T*, const T*, const T*, std::int64_t, int, int, int, cudaStream_t);     \
  template void conv2d_backward_weight(T*, T*, const T*, const T*, std::int64_t, int, int, int, cudaStream_t)
MNIST_INSTANTIATE(float);
MNIST_INSTANTIATE(double);

}  // namespace mnist::kernels::naive
