// linear, int8: both factors rounded to 8 bits, with one scale per row; four products per instruction.
#include "cuda/check.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/slices.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kTile = kLinearRegisterTile.rows;  // outputs of a block, either way
constexpr int kWords = 8;                        // of four numbers of the summed index, at a time
constexpr int kSide = 16;                        // threads of a block, either way
constexpr int kEach = 4;                         // outputs of a thread, either way
constexpr int kPitch = kTile + 4;                // of a tile's row, as register_tiled's
constexpr int kBlock = 256;                      // threads of the other kernels
constexpr int kMost = 127;                       // the largest rounded value
static_assert(kLinearSliceUnit % (4 * kWords) == 0);

// The larger one; NaN if either is.
__device__ float larger(float a, float b) { return a != a || a >= b ? a : b; }

// One block per row, first x's and then w's: q = row / scale, four to a word, and scale = max |row| / 127.
__global__ void quantise_kernel(int* __restrict__ q, float* __restrict__ scale, const float* __restrict__ x,
                                const float* __restrict__ w, std::int64_t batch, int in, int words) {
  __shared__ float of_warp[kBlock / 32];
  const std::int64_t n = blockIdx.x;
  const int t = int(threadIdx.x);
  const float* row = n < batch ? x + n * in : w + (n - batch) * in;
  float top = 0;
  for (int k = t; k < in; k += kBlock) top = larger(top, fabsf(row[k]));
  for (int step = 16; step > 0; step /= 2) top = larger(top, __shfl_xor_sync(0xffffffff, top, step));
  if (t % 32 == 0) of_warp[t / 32] = top;
  __syncthreads();  // the largest of all warps are there
  for (const float other : of_warp) top = larger(top, other);
  const float unit = top / kMost;
  if (t == 0) scale[n] = unit;
  for (int word = t; word < words; word += kBlock) {
    unsigned four = 0;
    for (int e = 0; e < 4; ++e) {
      const int k = 4 * word + e;
      const float value = k < in && unit > 0 ? rintf(row[k] / unit) : 0;  // a row with a NaN has the unit NaN
      four |= (unsigned(int(fminf(fmaxf(value, -kMost), kMost))) & 255) << 8 * e;
    }
    q[n * words + word] = int(four);
  }
}

// sum + the four products of two words.
__device__ int add_products(int a, int b, int sum) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 610
  for (int e = 0; e < 32; e += 8) sum += int(static_cast<signed char>(a >> e)) * int(static_cast<signed char>(b >> e));
  return sum;
#else
  return __dp4a(a, b, sum);
#endif
}

// rows [first, first + 64) x [word, word + 8) of a row-major matrix, transposed: tile[word][row]; 0 outside.
__device__ void load_tile(int (*tile)[kPitch], const int* __restrict__ matrix, std::int64_t first, std::int64_t rows,
                          int word, int words) {
  const int t = int(threadIdx.y) * kSide + int(threadIdx.x);
  for (int n = t; n < kTile * kWords; n += kSide * kSide) {
    const int k = n % kWords, row = n / kWords;
    const bool inside = first + row < rows && word + k < words;
    tile[k][row] = inside ? matrix[(first + row) * words + word + k] : 0;
  }
}

// As register_tiled's, in words: blockIdx.x = which 64 rows, blockIdx.y = which 64 outputs, blockIdx.z = which slice.
__global__ void linear_forward_int8_kernel(int* __restrict__ partial, const int* __restrict__ x,
                                           const int* __restrict__ w, std::int64_t batch, int words, int out,
                                           int slice) {
  __shared__ __align__(16) int x_tile[kWords][kPitch];
  __shared__ __align__(16) int w_tile[kWords][kPitch];
  const std::int64_t first_row = std::int64_t(blockIdx.x) * kTile;
  const int first_out = int(blockIdx.y) * kTile;
  int sums[kEach][kEach] = {};
  const int begin = int(blockIdx.z) * slice, end = min(begin + slice, words);
  for (int word = begin; word < end; word += kWords) {
    load_tile(x_tile, x, first_row, batch, word, words);
    load_tile(w_tile, w, first_out, out, word, words);
    __syncthreads();  // both tiles are complete
    for (int k = 0; k < kWords; ++k) {
      const int4 a4 = *reinterpret_cast<const int4*>(&x_tile[k][threadIdx.y * kEach]);
      const int4 b4 = *reinterpret_cast<const int4*>(&w_tile[k][threadIdx.x * kEach]);
      const int a[kEach] = {a4.x, a4.y, a4.z, a4.w}, b[kEach] = {b4.x, b4.y, b4.z, b4.w};
      for (int r = 0; r < kEach; ++r)
        for (int c = 0; c < kEach; ++c) sums[r][c] = add_products(a[r], b[c], sums[r][c]);
    }
    __syncthreads();  // everyone is done with them
  }
  for (int r = 0; r < kEach; ++r)
    for (int c = 0; c < kEach; ++c) {
      const std::int64_t row = first_row + threadIdx.y * kEach + r;
      const int o = first_out + int(threadIdx.x) * kEach + c;
      if (row < batch && o < out) partial[(blockIdx.z * batch + row) * out + o] = sums[r][c];
    }
}

// One thread per output.
__global__ void add_scaled_kernel(float* __restrict__ y, const int* __restrict__ partial,
                                  const float* __restrict__ scale, const float* __restrict__ bias, std::int64_t batch,
                                  int out, int slices) {
  const std::int64_t n = std::int64_t(blockIdx.x) * kBlock + threadIdx.x, count = batch * out;
  if (n >= count) return;
  int sum = 0;
  for (int slice = 0; slice < slices; ++slice) sum += partial[slice * count + n];
  const int o = int(n % out);
  y[n] = scale[n / out] * scale[batch + o] * float(sum) + bias[o];
}

// Scratch, in order: words of x's rows and then of w's, their scales, the slices.
struct Scratch {
  std::int64_t rows, words, slices;  // numbers of 4 bytes, as all that follow
  Scratch(std::int64_t batch, int in, int out)
      : rows(batch + out), words(ceil_div(in, 4)), slices(linear_slices(kLinearRegisterTile, batch, out, in).count) {}
  std::int64_t size(std::int64_t batch, int out) const { return rows * (words + 1) + slices * batch * out; }
};

}  // namespace

std::int64_t linear_int8_partial_size(std::int64_t batch, int in, int out) {
  return Scratch(batch, in, out).size(batch, out);
}

void linear_forward_int8(float* y, float* partial, const float* x, const float* w, const float* bias,
                         std::int64_t batch, int in, int out, cudaStream_t stream) {
  MNIST_REQUIRE(in <= INT32_MAX / (kMost * kMost), "linear_forward_int8: " << in << " features, expected at most "
                                                                           << INT32_MAX / (kMost * kMost)
                                                                           << ", or a sum may exceed 32 bits");
  const Scratch scratch(batch, in, out);
  const int words = int(scratch.words);
  int* const q = reinterpret_cast<int*>(partial);
  float* const scale = partial + scratch.rows * words;
  int* const sums = reinterpret_cast<int*>(scale + scratch.rows);
  quantise_kernel<<<unsigned(scratch.rows), kBlock, 0, stream>>>(q, scale, x, w, batch, in, words);
  MNIST_CHECK_LAUNCH();
  const auto slices = linear_slices(kLinearRegisterTile, batch, out, in);
  const dim3 grid(unsigned(ceil_div(batch, kTile)), unsigned(ceil_div(out, kTile)), unsigned(slices.count)),
      block(kSide, kSide);
  linear_forward_int8_kernel<<<grid, block, 0, stream>>>(sums, q, q + batch * words, batch, words, out,
                                                         slices.depth / 4);
  MNIST_CHECK_LAUNCH();
  add_scaled_kernel<<<unsigned(ceil_div(batch * out, kBlock)), kBlock, 0, stream>>>(y, sums, scale, bias, batch, out,
                                                                                    slices.count);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels
