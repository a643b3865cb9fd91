// Data outside of a step: pixel moments of each image, the inputs of a graph of steps, and which of the kernels' code
// this GPU runs.

#include "cuda/check.h"
#include "kernels/fused/state.h"

namespace mnist::fused {
namespace {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ const int has_wgmma = 1;
#else
__device__ const int has_wgmma = 0;
#endif

constexpr int kRowWords = kImageSide / 4;
constexpr std::uint32_t kOnes = 0x01010101;

// Pixel moments of each image, once for a data set: bn1's statistics and conv1's gradient need nothing else of it. One
// block an image, one thread a moment: sum over positions of v'_j, then of v'_j v'_k for j <= k, where v' is
// pixel - c inside the image and 0 outside, c = 255 * kPixelMean, and j, k are taps of a 3x3 filter.
//
// The sums are of integers u, four pixels an instruction: over the N positions where both taps are inside,
//   sum v'_j v'_k = sum u_j u_k - c (sum u_j + sum u_k) + c^2 N.
__global__ void __launch_bounds__(64)
    image_moments_kernel(double* __restrict__ moments, const std::uint8_t* __restrict__ images) {
  // Byte x of row y in taps[jx] is the pixel (y - 1, x + jx - 1), 0 outside the image.
  __shared__ __align__(16) std::uint32_t taps[3][kImageSide + 2][kRowWords + 1];
  const auto* words = reinterpret_cast<const std::uint32_t*>(images + std::size_t(blockIdx.x) * kImagePixels);
  for (int i = threadIdx.x; i < (kImageSide + 2) * (kRowWords + 1); i += blockDim.x) {
    const int y = i / (kRowWords + 1), w = i % (kRowWords + 1);
    const auto word = [&](int at) {
      return y >= 1 && y <= kImageSide && at >= 0 && at < kRowWords ? words[(y - 1) * kRowWords + at] : 0;
    };
    taps[0][y][w] = __funnelshift_l(word(w - 1), word(w), 8);
    taps[1][y][w] = word(w);
    taps[2][y][w] = __funnelshift_r(word(w), word(w + 1), 8);
  }
  __syncthreads();
  if (threadIdx.x >= kMoments) return;
  const bool single = threadIdx.x < kTaps;
  int j = threadIdx.x, k = kTaps / 2;  // of a single tap: with the middle one, which is always inside
  if (!single) {
    int rest = threadIdx.x - kTaps;
    for (j = 0; rest >= kTaps - j; ++j) rest -= kTaps - j;
    k = j + rest;
  }
  const int jy = j / 3, jx = j % 3, ky = k / 3, kx = k % 3;
  // Where a tap is inside: 1 for each byte of the first and of the last word of a row, and whether the row is.
  const auto first = [](int tx) { return tx == 0 ? kOnes << 8 : kOnes; };
  const auto last = [](int tx) { return tx == 2 ? kOnes >> 8 : kOnes; };
  const auto inside = [](int row) { return row >= 1 && row <= kImageSide ? ~0u : 0u; };
  std::uint32_t products = 0, sum_j = 0, sum_k = 0;
#pragma unroll 2
  for (int y = 0; y < kImageSide; ++y) {
    alignas(16) std::uint32_t a[kRowWords + 1], b[kRowWords + 1];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      reinterpret_cast<uint4*>(a)[half] = reinterpret_cast<const uint4*>(taps[jx][y + jy])[half];
      reinterpret_cast<uint4*>(b)[half] = reinterpret_cast<const uint4*>(taps[kx][y + ky])[half];
    }
    const std::uint32_t in_j = inside(y + jy), in_k = inside(y + ky);
#pragma unroll
    for (int w = 0; w < kRowWords; ++w) {
      const auto of_word = [&](int tx) { return w == 0 ? first(tx) : w == kRowWords - 1 ? last(tx) : kOnes; };
      products = __dp4a(a[w], b[w], products);
      sum_j = __dp4a(a[w], of_word(kx) & in_k, sum_j);
      sum_k = __dp4a(b[w], of_word(jx) & in_j, sum_k);
    }
  }
  const auto places = [](int a, int b) { return kImageSide - (a == 0 || b == 0) - (a == 2 || b == 2); };
  const double c = 255 * kPixelMean, n = places(jy, ky) * places(jx, kx);
  const double total = single ? sum_j - c * n : products - c * (double(sum_j) + sum_k) + c * c * n;
  // On a grid of 2^-11, so that sums over any batch are exact: the order in which they are added does not matter, and
  // a step gives the same bits whether its moments were summed ahead or at the start of a call.
  moments[std::size_t(blockIdx.x) * kMoments + threadIdx.x] = rint(total * 2048) / 2048;
}

constexpr int kStepsBlock = 256;

// Copies the inputs of a graph of steps to where the graph looks for them. A row of blocks a model.
__global__ void set_steps_kernel(StepInputs in) {
  const std::int64_t model = blockIdx.y, first = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const auto there = [&](auto* array) {
    return reinterpret_cast<decltype(array)>(reinterpret_cast<char*>(array) + model * in.to_stride);
  };
  const std::int32_t* __restrict__ order = in.order + model * in.order_stride;
  std::int32_t* __restrict__ to_order = there(in.to_order);
  for (std::int64_t i = first; i < in.samples; i += std::int64_t(gridDim.x) * blockDim.x) to_order[i] = order[i];
  if (first < in.steps) there(in.to_rates)[first] = in.rates[model * in.rates_stride + first];
}

}  // namespace

// The GPU runs the code of the newest architecture compiled for it, so the answer is a constant of that code.
bool runs_wgmma() {
  int value = 0;
  MNIST_CHECK(cudaMemcpyFromSymbol(&value, has_wgmma, sizeof value));
  return value != 0;
}

void image_moments(double* moments, const std::uint8_t* images, std::int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  image_moments_kernel<<<unsigned(count), 64, 0, stream>>>(moments, images);
  MNIST_CHECK_LAUNCH();
}

void set_steps(const StepInputs& in, cudaStream_t stream) {
  MNIST_REQUIRE(in.steps <= kStepsBlock, "set_steps: " << in.steps << " steps, expected at most " << kStepsBlock);
  const auto blocks = std::clamp<std::int64_t>((in.samples + kStepsBlock - 1) / kStepsBlock, 1, 512);
  set_steps_kernel<<<dim3(unsigned(blocks), unsigned(in.models)), kStepsBlock, 0, stream>>>(in);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::fused
