// 8. Tensor cores: 5_tiled.cu with one function changed. `multiply` rounds both operands to bf16, 8 bits of precision,
// and a warp multiplies 16 x 16 by 16 x 8 of them with one instruction, mma.sync; the sums stay in float32, and so do
// the weights.
//
//   nvcc -O3 -arch=sm_80 8_tensor_cores.cu -o 8_tensor_cores && ./8_tensor_cores start.bin [gradients.bin]
//
// 9_engine.py --write makes start.bin. It runs on every GPU from compute capability 8.0.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

enum { SIDE = 28, SIDE1 = 14, SIDE2 = 7, CHANNELS1 = 32, CHANNELS2 = 64, HIDDEN = 128, CLASSES = 10 };
enum { PIXELS = SIDE * SIDE, AREA1 = SIDE1 * SIDE1, AREA2 = SIDE2 * SIDE2, FEATURES = CHANNELS2 * AREA2 };

// Where each parameter begins in the array of all weights, and in that of all gradients.
enum {
  CONV1_W = 0,
  CONV1_B = CONV1_W + CHANNELS1 * 9,
  BN1_W = CONV1_B + CHANNELS1,
  BN1_B = BN1_W + CHANNELS1,
  CONV2_W = BN1_B + CHANNELS1,
  CONV2_B = CONV2_W + CHANNELS2 * CHANNELS1 * 9,
  BN2_W = CONV2_B + CHANNELS2,
  BN2_B = BN2_W + CHANNELS2,
  FC1_W = BN2_B + CHANNELS2,
  FC1_B = FC1_W + HIDDEN * FEATURES,
  FC2_W = FC1_B + HIDDEN,
  FC2_B = FC2_W + CLASSES * HIDDEN,
  PARAMETERS = FC2_B + CLASSES
};

typedef unsigned char byte;

struct Start {
  int steps, batch, tests;
  float rate;
  float* weights;
  byte *images, *labels, *test_images, *test_labels;
};

template <class T>
T* read_part(FILE* file, size_t count) {
  T* part = (T*)malloc(count * sizeof(T));
  if (!part || fread(part, sizeof(T), count, file) != count) fprintf(stderr, "start.bin is cut short\n"), exit(1);
  return part;
}

Start read_start(const char* path) {
  FILE* file = fopen(path, "rb");
  if (!file) perror(path), exit(1);
  Start s;
  if (fread(&s, 4, 4, file) != 4) fprintf(stderr, "%s is cut short\n", path), exit(1);  // the first four numbers
  s.weights = read_part<float>(file, PARAMETERS);
  s.images = read_part<byte>(file, (size_t)s.steps * s.batch * PIXELS);
  s.labels = read_part<byte>(file, (size_t)s.steps * s.batch);
  s.test_images = read_part<byte>(file, (size_t)s.tests * PIXELS);
  s.test_labels = read_part<byte>(file, s.tests);
  fclose(file);
  return s;
}

void check(cudaError_t error, const char* call, int line) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "line %d: %s: %s\n", line, call, cudaGetErrorString(error));
  exit(1);
}
#define CHECK(call) check(call, #call, __LINE__)

// Results of a block: TILE x TILE. Its eight warps share them as 4 x 2, so each has 16 x 32: four tiles of mma.sync.
constexpr int TILE = 64, DEPTH = 32, PITCH = DEPTH + 8;  // 8: the rows that a warp reads at once lie on different banks

// D = A B + D for A 16 x 16, B 16 x 8. A lane holds two neighbours along k in each register: lane 4 g + t has A's rows
// g and g + 8 and B's column g at k = 2 t, 2 t + 1 and 8 further, and D's rows g and g + 8 at columns 2 t and 2 t + 1.
__device__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The sum over k of a(m, k) * b(k, n), for all m and n. A long sum with few results is cut into `slices`, each with
// blocks of its own; whoever reads the results adds them, always in the same order.
template <class Product>
__global__ void __launch_bounds__(256) multiply(Product product, int rows, int columns, int depth, int slices) {
  // Both along k, so that two neighbours are one register of mma.sync.
  __shared__ __align__(16) __nv_bfloat16 a[TILE][PITCH], b[TILE][PITCH];
  const int t = threadIdx.x, m0 = blockIdx.x * TILE, n0 = blockIdx.y * TILE, slice = blockIdx.z;
  const int each = (depth + slices * DEPTH - 1) / (slices * DEPTH) * DEPTH;
  const int begin = slice * each, end = min(begin + each, depth);
  const int group = t % 32 / 4, pair = 2 * (t % 4);                // g and 2 t of `mma`
  const int row = t / 32 % 4 * 16 + group, column = t / 128 * 32;  // of this lane's results in the tile
  float sums[4][4] = {};
  for (int k0 = begin; k0 < end; k0 += DEPTH) {
    for (int e = t; e < TILE * DEPTH; e += 256) {
      // Neighbouring threads load what are neighbours in memory: along k or across it, as the product says.
      const int ka = Product::A_ALONG_K ? e % DEPTH : e / TILE, m = Product::A_ALONG_K ? e / DEPTH : e % TILE;
      const int kb = Product::B_ALONG_K ? e % DEPTH : e / TILE, n = Product::B_ALONG_K ? e / DEPTH : e % TILE;
      a[m][ka] = __float2bfloat16(m0 + m < rows && k0 + ka < end ? product.a(m0 + m, k0 + ka) : 0);
      b[n][kb] = __float2bfloat16(n0 + n < columns && k0 + kb < end ? product.b(k0 + kb, n0 + n) : 0);
    }
    __syncthreads();
    for (int k = pair; k < DEPTH; k += 16) {
      const auto two = [](const __nv_bfloat16& first) { return *(const unsigned*)&first; };
      const unsigned left[] = {two(a[row][k]), two(a[row + 8][k]), two(a[row][k + 8]), two(a[row + 8][k + 8])};
      for (int c = 0; c < 4; ++c) {
        const unsigned right[] = {two(b[column + 8 * c + group][k]), two(b[column + 8 * c + group][k + 8])};
        mma(sums[c], left, right);
      }
    }
    __syncthreads();  // everyone is done with the tiles
  }
  for (int c = 0; c < 4; ++c)
    for (int e = 0; e < 4; ++e) {
      const int m = m0 + row + e / 2 * 8, n = n0 + column + 8 * c + pair + e % 2;
      if (m < rows && n < columns) product.store(m, n, slice, sums[c][e]);
    }
}

template <class Product>
void run(const Product& product, int rows, int columns, int depth, int slices = 1) {
  const dim3 grid((rows + TILE - 1) / TILE, (columns + TILE - 1) / TILE, slices);
  multiply<<<grid, 256>>>(product, rows, columns, depth, slices);
  CHECK(cudaGetLastError());
}

// The value at position p of a plane of 14 x 14, moved by a tap of a filter; 0 outside.
__device__ float neighbour(const float* plane, int p, int tap) {
  const int r = p / SIDE1 + tap / 3 - 1, s = p % SIDE1 + tap % 3 - 1;
  return r >= 0 && r < SIDE1 && s >= 0 && s < SIDE1 ? plane[r * SIDE1 + s] : 0;
}

// z2: for each position of the batch (rows) and output channel (columns) a sum over input channels and taps.
struct Conv2Forward {
  static constexpr bool A_ALONG_K = false, B_ALONG_K = true;
  float* z;
  const float *x, *w, *bias;
  __device__ float a(int m, int k) const {
    return neighbour(x + (m / AREA1 * CHANNELS1 + k / 9) * AREA1, m % AREA1, k % 9);
  }
  __device__ float b(int k, int n) const { return w[n * CHANNELS1 * 9 + k]; }
  __device__ void store(int m, int n, int, float sum) const {
    z[(m / AREA1 * CHANNELS2 + n) * AREA1 + m % AREA1] = sum + bias[n];
  }
};

// da1: the same with dz2 for the input and each filter turned by 180 degrees, tap 8 - k for tap k.
struct Conv2BackwardData {
  static constexpr bool A_ALONG_K = false, B_ALONG_K = true;
  float* dx;
  const float *dz, *w;
  __device__ float a(int m, int k) const {
    return neighbour(dz + (m / AREA1 * CHANNELS2 + k / 9) * AREA1, m % AREA1, k % 9);
  }
  __device__ float b(int k, int n) const { return w[(k / 9 * CHANNELS1 + n) * 9 + 8 - k % 9]; }
  __device__ void store(int m, int n, int, float sum) const {
    dx[(m / AREA1 * CHANNELS1 + n) * AREA1 + m % AREA1] = sum;
  }
};

// The gradient of conv2's filters: 64 x 288 results, each a sum over all positions of the batch.
struct Conv2BackwardWeight {
  static constexpr bool A_ALONG_K = true, B_ALONG_K = true;
  float* slices;
  const float *dz, *x;
  __device__ float a(int m, int k) const { return dz[(k / AREA1 * CHANNELS2 + m) * AREA1 + k % AREA1]; }
  __device__ float b(int k, int n) const {
    return neighbour(x + (k / AREA1 * CHANNELS1 + n / 9) * AREA1, k % AREA1, n % 9);
  }
  __device__ void store(int m, int n, int slice, float sum) const {
    slices[(slice * CHANNELS2 + m) * CHANNELS1 * 9 + n] = sum;
  }
};

struct Fc1Forward {
  static constexpr bool A_ALONG_K = true, B_ALONG_K = true;
  float* slices;
  const float *x, *w;
  int batch;
  __device__ float a(int m, int k) const { return x[m * FEATURES + k]; }
  __device__ float b(int k, int n) const { return w[n * FEATURES + k]; }
  __device__ void store(int m, int n, int slice, float sum) const { slices[(slice * batch + m) * HIDDEN + n] = sum; }
};

struct Fc1BackwardData {
  static constexpr bool A_ALONG_K = true, B_ALONG_K = false;
  float* dx;
  const float *dy, *w;
  __device__ float a(int m, int k) const { return dy[m * HIDDEN + k]; }
  __device__ float b(int k, int n) const { return w[k * FEATURES + n]; }
  __device__ void store(int m, int n, int, float sum) const { dx[m * FEATURES + n] = sum; }
};

struct Fc1BackwardWeight {
  static constexpr bool A_ALONG_K = false, B_ALONG_K = false;
  float* dw;
  const float *dy, *x;
  __device__ float a(int m, int k) const { return dy[k * HIDDEN + m]; }
  __device__ float b(int k, int n) const { return x[k * FEATURES + n]; }
  __device__ void store(int m, int n, int, float sum) const { dw[m * FEATURES + n] = sum; }
};

__device__ float pixel(const byte* image, int r, int s) {  // normalised; 0 outside
  return r >= 0 && r < SIDE && s >= 0 && s < SIDE ? (image[r * SIDE + s] / 255.f - 0.1307f) / 0.3081f : 0;
}

// A thread for each position: its nine pixels stay in registers for all 32 channels, and nobody stores normalised
// images.
__global__ void conv1_forward(float* z, const byte* images, const float* w, const float* bias, int batch) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x, b = k / PIXELS, p = k % PIXELS;
  if (b >= batch) return;
  float near[9];
  for (int tap = 0; tap < 9; ++tap)
    near[tap] = pixel(images + b * PIXELS, p / SIDE + tap / 3 - 1, p % SIDE + tap % 3 - 1);
  for (int o = 0; o < CHANNELS1; ++o) {
    float sum = bias[o];
    for (int tap = 0; tap < 9; ++tap) sum += w[o * 9 + tap] * near[tap];
    z[(b * CHANNELS1 + o) * PIXELS + p] = sum;
  }
}

// The sum over a warp passes from register to register; only the warps' sums go through shared memory.
__device__ float block_sum(float value) {
  __shared__ float sums[32];
  const int t = threadIdx.x;
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(~0u, value, lanes);
  __syncthreads();  // sums of the call before are read
  if (t % 32 == 0) sums[t / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += sums[warp];
  return sum;
}

// A block for each channel.
__global__ void bn_statistics(float* mean, float* sigma, const float* z, int batch, int area) {
  const int c = blockIdx.x, channels = gridDim.x, count = batch * area;
  const auto at = [&](int k) { return z[(k / area * channels + c) * area + k % area]; };
  float sum = 0, squares = 0;
  for (int k = threadIdx.x; k < count; k += blockDim.x) sum += at(k);
  const float centre = block_sum(sum) / count;
  for (int k = threadIdx.x; k < count; k += blockDim.x) squares += (at(k) - centre) * (at(k) - centre);
  squares = block_sum(squares);
  if (threadIdx.x == 0) mean[c] = centre, sigma[c] = sqrtf(squares / count + 1e-5f);
}

// Batch norm, ReLU and pool in one: y is never stored. A thread for each window.
__global__ void bn_pool_forward(float* a, byte* route, const float* z, const float* mean, const float* sigma,
                                const float* gamma, const float* beta, int channels, int side, int count) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k >= count) return;
  const int c = k / (side * side) % channels;
  const float* window = z + 4 * (k / side) * side + 2 * (k % side);
  float best = 0;
  byte choice = 4;
  for (int cell = 0; cell < 4; ++cell) {
    const float y = (window[cell / 2 * 2 * side + cell % 2] - mean[c]) / sigma[c] * gamma[c] + beta[c];
    if (y > best) best = y, choice = cell;
  }
  a[k] = best;
  route[k] = choice;
}

// The sums of batch norm's gradient: only the cell that a window chose has one, so a quarter of z is read.
__global__ void bn_pool_sums(float* dgamma, float* dbeta, const float* da, const byte* route, const float* z,
                             const float* mean, const float* sigma, int batch, int side) {
  const int c = blockIdx.x, channels = gridDim.x, area = side * side;
  float sum = 0, sum_zhat = 0;
  for (int n = threadIdx.x; n < batch * area; n += blockDim.x) {
    const int k = (n / area * channels + c) * area + n % area, cell = route[k];
    if (cell == 4) continue;
    sum += da[k];
    sum_zhat +=
        da[k] * (z[4 * (k / side) * side + 2 * (k % side) + cell / 2 * 2 * side + cell % 2] - mean[c]) / sigma[c];
  }
  sum = block_sum(sum);
  sum_zhat = block_sum(sum_zhat);
  if (threadIdx.x == 0) dbeta[c] = sum, dgamma[c] = sum_zhat;
}

// dz at one cell of a window. n: how many values a channel has.
__device__ float dz_of(int cell, float z, float da, byte route, float mean, float sigma, float gamma, float dgamma,
                       float dbeta, int n) {
  return gamma / sigma * ((cell == route ? da : 0) - dbeta / n - (z - mean) / sigma * dgamma / n);
}

__global__ void bn_pool_backward(float* dz, const float* da, const byte* route, const float* z, const float* mean,
                                 const float* sigma, const float* gamma, const float* dgamma, const float* dbeta,
                                 int channels, int side, int count) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k >= count) return;
  const int c = k / (side * side) % channels, window = 4 * (k / side) * side + 2 * (k % side);
  for (int cell = 0; cell < 4; ++cell) {
    const int at = window + cell / 2 * 2 * side + cell % 2;
    dz[at] =
        dz_of(cell, z[at], da[k], route[k], mean[c], sigma[c], gamma[c], dgamma[c], dbeta[c], 4 * count / channels);
  }
}

// conv1 has no gradient to pass on, so dz1 is made where it is used. A block for each channel and slice of the batch.
__global__ void conv1_backward_weight(float* slices, const byte* images, const float* da, const byte* route,
                                      const float* z, const float* mean, const float* sigma, const float* gamma,
                                      const float* dgamma, const float* dbeta, int batch) {
  const int o = blockIdx.x, each = (batch + gridDim.y - 1) / gridDim.y, n = batch * PIXELS;
  const int begin = blockIdx.y * each, count = (min(begin + each, batch) - begin) * PIXELS;
  float sums[9] = {};
  for (int k = threadIdx.x; k < count; k += blockDim.x) {
    const int b = begin + k / PIXELS, r = k % PIXELS / SIDE, s = k % SIDE, plane = b * CHANNELS1 + o;
    const int pooled = plane * AREA1 + r / 2 * SIDE1 + s / 2;
    const float dz = dz_of(r % 2 * 2 + s % 2, z[plane * PIXELS + k % PIXELS], da[pooled], route[pooled], mean[o],
                           sigma[o], gamma[o], dgamma[o], dbeta[o], n);
    for (int tap = 0; tap < 9; ++tap) sums[tap] += dz * pixel(images + b * PIXELS, r + tap / 3 - 1, s + tap % 3 - 1);
  }
  for (int tap = 0; tap < 9; ++tap) {
    const float sum = block_sum(sums[tap]);
    if (threadIdx.x == 0) slices[(blockIdx.y * CHANNELS1 + o) * 9 + tap] = sum;
  }
}

// All from fc1's output to its gradient, a block of 128 threads for each image: h, logits, log-softmax, loss, and back.
__global__ void head(float* h, float* dlogits, float* du, float* losses, byte* answers, const float* fc1, int slices,
                     const float* w, const byte* labels, int batch) {
  __shared__ float logits[CLASSES], d[CLASSES];
  const int b = blockIdx.x, j = threadIdx.x;
  float u = w[FC1_B + j];
  for (int slice = 0; slice < slices; ++slice) u += fc1[(slice * batch + b) * HIDDEN + j];
  const float active = fmaxf(u, 0);
  h[b * HIDDEN + j] = active;
  for (int k = 0; k < CLASSES; ++k) {
    const float sum = block_sum(w[FC2_W + k * HIDDEN + j] * active);
    if (j == 0) logits[k] = sum + w[FC2_B + k];
  }
  __syncthreads();
  float top = logits[0], sum = 0;  // every thread for itself: they would wait for each other otherwise
  int best = 0;
  for (int k = 1; k < CLASSES; ++k)
    if (logits[k] > top) top = logits[k], best = k;
  for (int k = 0; k < CLASSES; ++k) sum += expf(logits[k] - top);
  if (j < CLASSES) {
    const float log_p = logits[j] - top - logf(sum);
    d[j] = (expf(log_p) - (j == labels[b])) / batch;
    dlogits[b * CLASSES + j] = d[j];
    if (j == labels[b]) losses[b] = -log_p;
  }
  if (j == 0) answers[b] = best;
  __syncthreads();
  float dh = 0;
  for (int k = 0; k < CLASSES; ++k) dh += d[k] * w[FC2_W + k * HIDDEN + j];
  du[b * HIDDEN + j] = u > 0 ? dh : 0;
}

// The last sums over the batch, and w -= rate * g, a thread for each parameter.
__global__ void update(float* w, float* g, float rate, const float* conv1, int slices1, const float* conv2, int slices2,
                       const float* dlogits, const float* h, const float* du, int batch) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k >= PARAMETERS) return;
  float sum = 0;
  if (k < CONV1_B) {
    for (int slice = 0; slice < slices1; ++slice) sum += conv1[slice * CHANNELS1 * 9 + k];
  } else if (k >= CONV2_W && k < CONV2_B) {
    for (int slice = 0; slice < slices2; ++slice) sum += conv2[slice * CHANNELS2 * CHANNELS1 * 9 + k - CONV2_W];
  } else if (k >= FC2_B) {
    for (int b = 0; b < batch; ++b) sum += dlogits[b * CLASSES + k - FC2_B];
  } else if (k >= FC2_W) {
    const int o = (k - FC2_W) / HIDDEN, i = (k - FC2_W) % HIDDEN;
    for (int b = 0; b < batch; ++b) sum += dlogits[b * CLASSES + o] * h[b * HIDDEN + i];
  } else if (k >= FC1_B) {
    for (int b = 0; b < batch; ++b) sum += du[b * HIDDEN + k - FC1_B];
  } else {
    sum = g[k];  // complete, or 0: the convolutions' biases
  }
  g[k] = sum;
  w[k] -= rate * sum;
}

// Arrays in the GPU's memory, which a host pointer cannot reach; allocated once, since cudaMalloc waits for the GPU.
template <class T>
T* allocate(size_t count) {
  T* memory;
  CHECK(cudaMalloc(&memory, count * sizeof(T)));
  return memory;
}

template <class T>
T* uploaded(const T* values, size_t count) {
  T* memory = allocate<T>(count);
  CHECK(cudaMemcpy(memory, values, count * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

constexpr int SLICES1 = 16, SLICES2 = 32, FC1_SLICES = 28;

struct Arrays {
  float *z1, *a1, *z2, *a2, *fc1, *h, *dlogits, *du, *da2, *dz2, *da1, *conv1_slices, *conv2_slices;
  float *mean1, *sigma1, *mean2, *sigma2;
  byte *route1, *route2, *answers;

  explicit Arrays(int batch) {
    const size_t size1 = size_t(batch) * CHANNELS1 * AREA1, size2 = size_t(batch) * FEATURES;
    z1 = allocate<float>(4 * size1), a1 = allocate<float>(size1), da1 = allocate<float>(size1);
    z2 = allocate<float>(4 * size2), a2 = allocate<float>(size2), da2 = allocate<float>(size2);
    dz2 = allocate<float>(4 * size2), fc1 = allocate<float>(FC1_SLICES * batch * HIDDEN);
    h = allocate<float>(batch * HIDDEN), du = allocate<float>(batch * HIDDEN),
    dlogits = allocate<float>(batch * CLASSES);
    conv1_slices = allocate<float>(SLICES1 * CHANNELS1 * 9);
    conv2_slices = allocate<float>(SLICES2 * CHANNELS2 * CHANNELS1 * 9);
    for (float** array : {&mean1, &sigma1, &mean2, &sigma2}) *array = allocate<float>(CHANNELS2);
    route1 = allocate<byte>(size1), route2 = allocate<byte>(size2), answers = allocate<byte>(batch);
  }
};

unsigned blocks(int count) { return (count + 255) / 256; }

void forward(const Arrays& s, float* losses, const float* w, const byte* images, const byte* labels, int batch) {
  const int windows1 = batch * CHANNELS1 * AREA1, windows2 = batch * FEATURES;
  conv1_forward<<<blocks(batch * PIXELS), 256>>>(s.z1, images, w + CONV1_W, w + CONV1_B, batch);
  bn_statistics<<<CHANNELS1, 1024>>>(s.mean1, s.sigma1, s.z1, batch, PIXELS);
  bn_pool_forward<<<blocks(windows1), 256>>>(s.a1, s.route1, s.z1, s.mean1, s.sigma1, w + BN1_W, w + BN1_B, CHANNELS1,
                                             SIDE1, windows1);
  run(Conv2Forward{s.z2, s.a1, w + CONV2_W, w + CONV2_B}, batch * AREA1, CHANNELS2, CHANNELS1 * 9);
  bn_statistics<<<CHANNELS2, 1024>>>(s.mean2, s.sigma2, s.z2, batch, AREA1);
  bn_pool_forward<<<blocks(windows2), 256>>>(s.a2, s.route2, s.z2, s.mean2, s.sigma2, w + BN2_W, w + BN2_B, CHANNELS2,
                                             SIDE2, windows2);
  run(Fc1Forward{s.fc1, s.a2, w + FC1_W, batch}, batch, HIDDEN, FEATURES, FC1_SLICES);
  head<<<batch, HIDDEN>>>(s.h, s.dlogits, s.du, losses, s.answers, s.fc1, FC1_SLICES, w, labels, batch);
  CHECK(cudaGetLastError());
}

void backward(const Arrays& s, float* w, float* g, float rate, const byte* images, int batch) {
  const int windows2 = batch * FEATURES;
  run(Fc1BackwardWeight{g + FC1_W, s.du, s.a2}, HIDDEN, FEATURES, batch);
  run(Fc1BackwardData{s.da2, s.du, w + FC1_W}, batch, FEATURES, HIDDEN);
  bn_pool_sums<<<CHANNELS2, 1024>>>(g + BN2_W, g + BN2_B, s.da2, s.route2, s.z2, s.mean2, s.sigma2, batch, SIDE2);
  bn_pool_backward<<<blocks(windows2), 256>>>(s.dz2, s.da2, s.route2, s.z2, s.mean2, s.sigma2, w + BN2_W, g + BN2_W,
                                              g + BN2_B, CHANNELS2, SIDE2, windows2);
  run(Conv2BackwardWeight{s.conv2_slices, s.dz2, s.a1}, CHANNELS2, CHANNELS1 * 9, batch * AREA1, SLICES2);
  run(Conv2BackwardData{s.da1, s.dz2, w + CONV2_W}, batch * AREA1, CHANNELS1, CHANNELS2 * 9);
  bn_pool_sums<<<CHANNELS1, 1024>>>(g + BN1_W, g + BN1_B, s.da1, s.route1, s.z1, s.mean1, s.sigma1, batch, SIDE1);
  conv1_backward_weight<<<dim3(CHANNELS1, SLICES1), 256>>>(s.conv1_slices, images, s.da1, s.route1, s.z1, s.mean1,
                                                           s.sigma1, w + BN1_W, g + BN1_W, g + BN1_B, batch);
  update<<<blocks(PARAMETERS), 256>>>(w, g, rate, s.conv1_slices, SLICES1, s.conv2_slices, SLICES2, s.dlogits, s.h,
                                      s.du, batch);
  CHECK(cudaGetLastError());
}

int main(int argc, char** argv) {
  if (argc < 2) return fprintf(stderr, "usage: %s start.bin [gradients.bin]\n", argv[0]), 2;
  const Start start = read_start(argv[1]);
  const int batch = start.batch, steps = start.steps;
  const Arrays arrays(batch);
  float *w = uploaded(start.weights, PARAMETERS), *g = allocate<float>(PARAMETERS),
        *losses = allocate<float>(steps * batch);
  const byte* images = uploaded(start.images, size_t(steps) * batch * PIXELS);
  const byte* labels = uploaded(start.labels, size_t(steps) * batch);
  const byte* test_images = uploaded(start.test_images, size_t(start.tests) * PIXELS);
  CHECK(cudaMemset(g, 0, PARAMETERS * sizeof(float)));  // the convolutions' biases keep it

  cudaEvent_t begin, end;  // moments in the stream: between them the host's clock would time the queueing of kernels
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int step = 0; step < steps; ++step) {
    if (step == 10) CHECK(cudaEventRecord(begin));  // the first steps warm up
    const byte* now = images + size_t(step) * batch * PIXELS;
    forward(arrays, losses + step * batch, w, now, labels + step * batch, batch);
    backward(arrays, w, g, start.rate, now, batch);
    if (step == 0 && argc > 2) {
      std::vector<float> values(PARAMETERS);
      CHECK(cudaMemcpy(values.data(), g, PARAMETERS * sizeof(float), cudaMemcpyDeviceToHost));
      FILE* file = fopen(argv[2], "wb");
      if (!file || fwrite(values.data(), 4, PARAMETERS, file) != PARAMETERS || fclose(file)) perror(argv[2]), exit(1);
    }
  }
  CHECK(cudaEventRecord(end));
  std::vector<float> loss(steps * batch);                                                       // of each image
  CHECK(cudaMemcpy(loss.data(), losses, loss.size() * sizeof(float), cudaMemcpyDeviceToHost));  // waits for all of it
  for (int step = 0; step < steps; ++step) {
    double mean = 0;
    for (int b = 0; b < batch; ++b) mean += loss[step * batch + b] / batch;
    if (step < 10 || step % 10 == 9) printf("step %3d  loss %.5f\n", step + 1, mean);
  }
  if (steps > 10) {
    float milliseconds;
    CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    printf("%.1f us per step, mean of %d\n", 1e3 * milliseconds / (steps - 10), steps - 10);
  }
  int right = 0, seen = 0;
  std::vector<byte> answers(batch);
  for (; seen + batch <= start.tests; seen += batch) {  // each batch by its own mean and variance
    forward(arrays, losses, w, test_images + size_t(seen) * PIXELS, labels, batch);
    CHECK(cudaMemcpy(answers.data(), arrays.answers, batch, cudaMemcpyDeviceToHost));
    for (int b = 0; b < batch; ++b) right += answers[b] == start.test_labels[seen + b];
  }
  printf("%.2f %% of the test images are right\n", 100.0 * right / seen);
}
