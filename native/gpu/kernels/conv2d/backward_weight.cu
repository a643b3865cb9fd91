// conv2d by weight: strips of dy and x in shared memory, nine taps of one or of 8 output channels a thread.
#include <algorithm>

#include "cuda/check.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/conv2d/naive_ops.h"
#include "mnist/ceil_div.h"
#include "mnist/model.h"

namespace mnist::kernels {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kRows = 7;  // of dy in shared memory at a time, with the two of x around them
constexpr int kMaxInputs = 32;
constexpr std::size_t kSharedBytes = 48 << 10;  // more has to be asked for
constexpr int kOutputs = 8;                     // of a thread of the register-tiled kernel
constexpr int kAddBlock = 32, kAddParts = 8;    // of the pass that adds the chunks: outputs, and parts of the chunks

constexpr int output_pitch(int each) { return kWarps * each + 4; }  // of a position of dy in shared memory

// partial[chunk,tap,o,i] = sum over the chunk's images and over p,q of dy[b,o,p,q] * x[b,i,p+u-1,q+v-1].
//
// blockIdx.x = chunk, blockIdx.y = which 4 * kEach output channels, blockIdx.z = which `inputs` input channels, a
// power of two. A warp has kEach output channels. Its lanes have an input channel each, and where there are fewer of
// them than lanes, every so many columns of the image.
template <int kEach>
__global__ void __launch_bounds__(kThreads)
    backward_weight_kernel(float* __restrict__ partial, const float* __restrict__ dy, const float* __restrict__ x,
                           std::int64_t batch, int in, int out, int side, int inputs) {
  constexpr int kPitch = output_pitch(kEach);
  extern __shared__ float4 shared[];
  float* dy_tile = reinterpret_cast<float*>(shared);  // [kRows * side][kPitch], output channels side by side
  float* x_tile = dy_tile + kRows * side * kPitch;    // [inputs][kRows + 2][side + 2], planes an odd distance apart
  const int t = int(threadIdx.x), warp = t / 32, lane = t % 32, area = side * side;
  const int pitch = side + 2, plane = (kRows + 2) * pitch, plane_pitch = plane | 1, positions = kRows * side;
  const int o0 = int(blockIdx.y) * kWarps * kEach, i0 = int(blockIdx.z) * inputs;
  const int parts = 32 / inputs, part = lane / inputs, i = lane % inputs;
  const int together = min(inputs, kWarps), span = kThreads / together;  // planes loaded at a time, threads for each
  const std::int64_t begin = blockIdx.x * batch / gridDim.x, end = (blockIdx.x + 1) * batch / gridDim.x;
  float sums[kTaps][kEach] = {};

  for (std::int64_t b = begin; b < end; ++b)
    for (int first_row = 0; first_row < side; first_row += kRows) {
      for (int n = t % span; n < plane; n += span) {
        const int r = first_row + n / pitch - 1, s = n % pitch - 1;
        const bool inside = r >= 0 && r < side && s >= 0 && s < side;
        const float* from = x + (b * in + i0) * area + r * side + s;
#pragma unroll 8
        for (int k = t / span; k < inputs; k += together)
          x_tile[k * plane_pitch + n] = inside && i0 + k < in ? from[k * area] : 0;
      }
#pragma unroll 4
      for (int n = t; n < positions * kEach; n += kThreads) {
        const int position = n % positions, o = o0 + n / positions * 4, at = first_row * side + position;
        const float* from = dy + (b * out + o) * area + at;
        const auto value = [&](int k) { return at < area && o + k < out ? from[k * area] : 0; };
        *reinterpret_cast<float4*>(&dy_tile[position * kPitch + o - o0]) =
            make_float4(value(0), value(1), value(2), value(3));
      }
      __syncthreads();  // both tiles are complete
      for (int q = part; q < side; q += parts) {
        const float* column = x_tile + i * plane_pitch + q;
        const float* gradients = dy_tile + q * kPitch + warp * kEach;
        float window[3][3];
#pragma unroll
        for (int r = 0; r < 2; ++r)
          for (int v = 0; v < 3; ++v) window[r][v] = column[r * pitch + v];
#pragma unroll
        for (int p = 0; p < kRows; ++p) {
          float d[kEach];
          if constexpr (kEach % 4 == 0) {
#pragma unroll
            for (int k = 0; k < kEach; k += 4) {
              const float4 four = *reinterpret_cast<const float4*>(&gradients[p * side * kPitch + k]);
              d[k] = four.x, d[k + 1] = four.y, d[k + 2] = four.z, d[k + 3] = four.w;
            }
          } else {
            for (int k = 0; k < kEach; ++k) d[k] = gradients[p * side * kPitch + k];
          }
#pragma unroll
          for (int v = 0; v < 3; ++v) window[(p + 2) % 3][v] = column[(p + 2) * pitch + v];
#pragma unroll
          for (int tap = 0; tap < kTaps; ++tap)
#pragma unroll
            for (int k = 0; k < kEach; ++k) sums[tap][k] += d[k] * window[(p + tap / 3) % 3][tap % 3];
        }
      }
      __syncthreads();  // everyone is done with them
    }

  for (int step = inputs; step < 32; step *= 2)
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap)
#pragma unroll
      for (int k = 0; k < kEach; ++k) sums[tap][k] += __shfl_xor_sync(0xffffffff, sums[tap][k], step);
  if (part > 0 || i0 + i >= in) return;
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap)
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int o = o0 + warp * kEach + k;
      if (o < out) partial[((std::int64_t(blockIdx.x) * kTaps + tap) * out + o) * in + i0 + i] = sums[tap][k];
    }
}

// dw[o,i,tap] = partial[0,tap,o,i] + partial[1,tap,o,i] + ..., by 8 threads an output. threadIdx.x = output,
// threadIdx.y = which eighth of the chunks.
__global__ void add_chunks_kernel(float* __restrict__ dw, const float* __restrict__ partial, int count, int filters,
                                  int chunks) {
  __shared__ float sums[kAddParts][kAddBlock];
  const int n = int(blockIdx.x) * kAddBlock + int(threadIdx.x), part = int(threadIdx.y);
  float sum = 0;
  if (n < count) {
#pragma unroll 16
    for (int chunk = part * chunks / kAddParts; chunk < (part + 1) * chunks / kAddParts; ++chunk)
      sum += partial[std::int64_t(chunk) * count + n];
  }
  sums[part][threadIdx.x] = sum;
  __syncthreads();  // all parts are there
  if (part > 0 || n >= count) return;
  for (int k = 1; k < kAddParts; ++k) sum += sums[k][threadIdx.x];
  dw[n % filters * kTaps + n / filters] = sum;
}

// How a layer is cut up; by its sizes alone, so that the same input gives the same bits.
struct Cut {
  int inputs;
  unsigned chunks, output_tiles, input_tiles;
  std::size_t bytes;  // of shared memory
};

Cut cut(int each, std::int64_t batch, int in, int out, int side) {
  const auto bytes = [&](int inputs) {
    return sizeof(float) *
           (std::size_t(kRows) * side * output_pitch(each) + std::size_t(inputs) * (((kRows + 2) * (side + 2)) | 1));
  };
  int inputs = 1;
  while (inputs < std::min(in, kMaxInputs) && bytes(2 * inputs) <= kSharedBytes) inputs *= 2;
  MNIST_REQUIRE(bytes(inputs) <= kSharedBytes,
                "conv2d_backward_weight in tiles: side is " << side << ", expected what fits in shared memory");
  const int output_tiles = ceil_div(out, kWarps * each), input_tiles = ceil_div(in, inputs);
  // Both kernels sum the same chunks: those that make enough blocks of the one with 8 outputs a thread.
  const std::int64_t most = std::min({batch, kBackwardWeightBlocks / (ceil_div(out, kWarps * kOutputs) * input_tiles),
                                      kBackwardWeightPartial / (std::int64_t(in) * out * kTaps)});
  return {inputs, unsigned(std::max(most, std::int64_t(1))), unsigned(output_tiles), unsigned(input_tiles),
          bytes(inputs)};
}

template <int kEach>
void launch(float* dw, float* partial, const float* dy, const float* x, std::int64_t batch, int in, int out, int side,
            cudaStream_t stream) {
  const Cut by = cut(kEach, batch, in, out, side);
  const dim3 grid(by.chunks, by.output_tiles, by.input_tiles);
  backward_weight_kernel<kEach><<<grid, kThreads, by.bytes, stream>>>(partial, dy, x, batch, in, out, side, by.inputs);
  MNIST_CHECK_LAUNCH();
  conv2d_add_chunks(dw, partial, in, out, int(by.chunks), stream);
}

}  // namespace

void conv2d_add_chunks(float* dw, const float* partial, int in, int out, int chunks, cudaStream_t stream) {
  const dim3 block(kAddBlock, kAddParts);
  const int filters = in * out, count = filters * kTaps;
  add_chunks_kernel<<<unsigned(ceil_div(count, kAddBlock)), block, 0, stream>>>(dw, partial, count, filters, chunks);
  MNIST_CHECK_LAUNCH();
}

std::int64_t conv2d_backward_weight_chunks(std::int64_t batch, int in, int out, int side) {
  return cut(kOutputs, batch, in, out, side).chunks;
}

void conv2d_backward_weight_tiled(float* dw, float* partial, const float* dy, const float* x, std::int64_t batch,
                                  int in, int out, int side, cudaStream_t stream) {
  launch<1>(dw, partial, dy, x, batch, in, out, side, stream);
}

void conv2d_backward_weight_register_tiled(float* dw, float* partial, const float* dy, const float* x,
                                           std::int64_t batch, int in, int out, int side, cudaStream_t stream) {
  launch<kOutputs>(dw, partial, dy, x, batch, in, out, side, stream);
}

}  // namespace mnist::kernels
