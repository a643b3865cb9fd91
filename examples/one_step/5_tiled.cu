// 5. Tiles: loads that threads share, sums in registers, and fewer launches: 17 where 4_naive.cu has 29.
//
//   nvcc -O3 5_tiled.cu -o 5_tiled && ./5_tiled start.bin [gradients.bin]
//
// 9_engine.py --write makes start.bin. conv2, fc1 and their gradients are all products of two matrices, so there is one
// kernel for them, `multiply`, and for each product a type that says where its operands are and where its results go.
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

Start read_start(const char* path) {
  FILE* file = fopen(path, "rb");
  if (!file) perror(path), exit(1);
  fseek(file, 0, SEEK_END);
  const size_t size = ftell(file);
  rewind(file);
  char* all = (char*)malloc(size);
  Start s;
  if (!all || size < 16 || fread(all, 1, size, file) != size) fprintf(stderr, "%s: cannot be read\n", path), exit(1);
  memcpy(&s, all, 16);  // its first four members
  s.weights = (float*)(all + 16);
  s.images = (byte*)(s.weights + PARAMETERS);
  s.labels = s.images + (size_t)s.steps * s.batch * PIXELS;
  s.test_images = s.labels + s.steps * s.batch;
  s.test_labels = s.test_images + (size_t)s.tests * PIXELS;
  if ((char*)s.test_labels + s.tests != all + size) fprintf(stderr, "%s: has another size\n", path), exit(1);
  return s;
}

void check(cudaError_t error, const char* call, int line) {
  if (error != cudaSuccess) fprintf(stderr, "line %d: %s: %s\n", line, call, cudaGetErrorString(error)), exit(1);
}
#define CHECK(call) check(call, #call, __LINE__)

// Results of a block: TILE x TILE, 4 x 4 in the registers of each of its 256 threads. For DEPTH steps of the sum at a
// time the block brings both operands into shared memory, where 16 threads read each value: so a value crosses from
// memory once for 64 products, and from shared memory once for 4.
constexpr int TILE = 64, DEPTH = 16, PITCH = TILE + 4;  // 4 keeps rows on different banks, and float4 aligned

// The sum over k of a(m, k) * b(k, n), for all m and n. A long sum with few results is cut into `slices`, each with
// blocks of its own; whoever reads the results adds them, always in the same order.
template <class Product>
__global__ void __launch_bounds__(256) multiply(Product product, int rows, int columns, int depth, int slices) {
  __shared__ __align__(16) float a[DEPTH][PITCH], b[DEPTH][PITCH];
  const int t = threadIdx.x, m0 = blockIdx.x * TILE, n0 = blockIdx.y * TILE, slice = blockIdx.z;
  const int each = (depth + slices * DEPTH - 1) / (slices * DEPTH) * DEPTH;
  const int begin = slice * each, end = min(begin + each, depth);
  float sums[4][4] = {};
  for (int k0 = begin; k0 < end; k0 += DEPTH) {
    for (int e = t; e < TILE * DEPTH; e += 256) {
      // Neighbouring threads load what are neighbours in memory: along k or across it, as the product says.
      const int ka = Product::A_ALONG_K ? e % DEPTH : e / TILE, m = Product::A_ALONG_K ? e / DEPTH : e % TILE;
      const int kb = Product::B_ALONG_K ? e % DEPTH : e / TILE, n = Product::B_ALONG_K ? e / DEPTH : e % TILE;
      a[ka][m] = m0 + m < rows && k0 + ka < end ? product.a(m0 + m, k0 + ka) : 0;
      b[kb][n] = n0 + n < columns && k0 + kb < end ? product.b(k0 + kb, n0 + n) : 0;
    }
    __syncthreads();
    for (int k = 0; k < DEPTH; ++k) {
      const float4 x = *(const float4*)&a[k][t / 16 * 4], y = *(const float4*)&b[k][t % 16 * 4];
      const float left[] = {x.x, x.y, x.z, x.w}, right[] = {y.x, y.y, y.z, y.w};
      for (int r = 0; r < 4; ++r)
        for (int c = 0; c < 4; ++c) sums[r][c] += left[r] * right[c];
    }
    __syncthreads();  // everyone is done with the tiles
  }
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < 4; ++c) {
      const int m = m0 + t / 16 * 4 + r, n = n0 + t % 16 * 4 + c;
      if (m < rows && n < columns) product.store(m, n, slice, sums[r][c]);
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

// z2: for each position of the batch (rows) and output channel (columns) a sum over input channels and taps. da1 is the
// same with dz2 for the input, and each filter turned by 180 degrees: tap 8 - k for tap k.
template <int IN, int OUT, bool BACKWARD>
struct Conv2 {
  static constexpr bool A_ALONG_K = false, B_ALONG_K = true;
  float* z;
  const float *x, *w, *bias;
  __device__ float a(int m, int k) const { return neighbour(x + (m / AREA1 * IN + k / 9) * AREA1, m % AREA1, k % 9); }
  __device__ float b(int k, int n) const { return BACKWARD ? w[(k / 9 * OUT + n) * 9 + 8 - k % 9] : w[n * IN * 9 + k]; }
  __device__ void store(int m, int n, int, float sum) const {
    z[(m / AREA1 * OUT + n) * AREA1 + m % AREA1] = BACKWARD ? sum : sum + bias[n];
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

// Two matrices, each with the distance in memory from one m, n or k to the next.
template <bool ALONG_K_A, bool ALONG_K_B>
struct Matrices {
  static constexpr bool A_ALONG_K = ALONG_K_A, B_ALONG_K = ALONG_K_B;
  float* c;
  const float *left, *right;
  int left_m, left_k, right_k, right_n, columns, size;
  __device__ float a(int m, int k) const { return left[m * left_m + k * left_k]; }
  __device__ float b(int k, int n) const { return right[k * right_k + n * right_n]; }
  __device__ void store(int m, int n, int slice, float sum) const { c[slice * size + m * columns + n] = sum; }
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

// A convolution's output z, and the batch norm, ReLU and pooling behind it. side: of a, half of z's.
struct Layer {
  int channels, side;
  float *z, *a, *da, *mean, *sigma;
  byte* route;
  const float *gamma, *beta;
  float *dgamma, *dbeta;

  // Of element k of a: its channel, and where cell c of its window is in z.
  __device__ int channel(int k) const { return k / (side * side) % channels; }
  __device__ int cell(int k, int c) const { return 4 * (k / side) * side + 2 * (k % side) + c / 2 * 2 * side + c % 2; }
  __device__ float zhat(float value, int c) const { return (value - mean[c]) / sigma[c]; }
  __device__ float dz(float value, float dy, int c, int n) const {  // n: how many values a channel has
    return gamma[c] / sigma[c] * (dy - dbeta[c] / n - zhat(value, c) * dgamma[c] / n);
  }
};

// A block for each channel.
__global__ void bn_statistics(Layer l, int batch) {
  const int c = blockIdx.x, area = 4 * l.side * l.side, count = batch * area;
  const auto at = [&](int k) { return l.z[(k / area * l.channels + c) * area + k % area]; };
  float sum = 0, squares = 0;
  for (int k = threadIdx.x; k < count; k += blockDim.x) sum += at(k);
  const float centre = block_sum(sum) / count;
  for (int k = threadIdx.x; k < count; k += blockDim.x) squares += (at(k) - centre) * (at(k) - centre);
  squares = block_sum(squares);
  if (threadIdx.x == 0) l.mean[c] = centre, l.sigma[c] = sqrtf(squares / count + 1e-5f);
}

// Batch norm, ReLU and pooling in one, a thread for each window: y is never stored.
__global__ void bn_pool_forward(Layer l, int count) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k >= count) return;
  const int c = l.channel(k);
  float best = 0;
  byte choice = 4;
  for (int cell = 0; cell < 4; ++cell) {
    const float y = l.gamma[c] * l.zhat(l.z[l.cell(k, cell)], c) + l.beta[c];
    if (y > best) best = y, choice = cell;
  }
  l.a[k] = best;
  l.route[k] = choice;
}

// The sums of batch norm's gradient: only the cell that a window chose has one, so a quarter of z is read.
__global__ void bn_pool_sums(Layer l, int batch) {
  const int c = blockIdx.x, area = l.side * l.side;
  float sum = 0, sum_zhat = 0;
  for (int n = threadIdx.x; n < batch * area; n += blockDim.x) {
    const int k = (n / area * l.channels + c) * area + n % area;
    if (l.route[k] == 4) continue;
    sum += l.da[k];
    sum_zhat += l.da[k] * l.zhat(l.z[l.cell(k, l.route[k])], c);
  }
  sum = block_sum(sum);
  sum_zhat = block_sum(sum_zhat);
  if (threadIdx.x == 0) l.dbeta[c] = sum, l.dgamma[c] = sum_zhat;
}

__global__ void bn_pool_backward(float* dz, Layer l, int count) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k >= count) return;
  for (int cell = 0; cell < 4; ++cell) {
    const int at = l.cell(k, cell);
    dz[at] = l.dz(l.z[at], cell == l.route[k] ? l.da[k] : 0, l.channel(k), 4 * count / l.channels);
  }
}

// conv1 has no gradient to pass on, so dz1 is made where it is used. A block for each channel and slice of the batch.
__global__ void conv1_backward_weight(float* slices, const byte* images, Layer l, int batch) {
  const int o = blockIdx.x, each = (batch + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * each;
  const int count = (min(begin + each, batch) - begin) * PIXELS;
  float sums[9] = {};
  for (int k = threadIdx.x; k < count; k += blockDim.x) {
    const int b = begin + k / PIXELS, r = k % PIXELS / SIDE, s = k % SIDE, plane = b * CHANNELS1 + o;
    const int pooled = plane * AREA1 + r / 2 * SIDE1 + s / 2, cell = r % 2 * 2 + s % 2;
    const float dy = cell == l.route[pooled] ? l.da[pooled] : 0;
    const float dz = l.dz(l.z[plane * PIXELS + k % PIXELS], dy, o, batch * PIXELS);
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

struct Network {
  Layer layer1, layer2;
  float *w, *g, *fc1, *h, *dlogits, *du, *dz2, *conv1_slices, *conv2_slices;
  byte* answers;
  int batch;

  Layer make_layer(int channels, int side, int bn_w, int bn_b) const {
    const size_t size = size_t(batch) * channels * side * side;
    Layer l{channels, side, allocate<float>(4 * size), allocate<float>(size), allocate<float>(size)};
    l.mean = allocate<float>(channels), l.sigma = allocate<float>(channels), l.route = allocate<byte>(size);
    l.gamma = w + bn_w, l.beta = w + bn_b, l.dgamma = g + bn_w, l.dbeta = g + bn_b;
    return l;
  }

  Network(const float* weights, int batch) : batch(batch) {
    w = uploaded(weights, PARAMETERS), g = allocate<float>(PARAMETERS);
    CHECK(cudaMemset(g, 0, PARAMETERS * sizeof(float)));  // the convolutions' biases keep it
    layer1 = make_layer(CHANNELS1, SIDE1, BN1_W, BN1_B), layer2 = make_layer(CHANNELS2, SIDE2, BN2_W, BN2_B);
    fc1 = allocate<float>(FC1_SLICES * batch * HIDDEN), dz2 = allocate<float>(4 * batch * FEATURES);
    h = allocate<float>(batch * HIDDEN), du = allocate<float>(batch * HIDDEN);
    dlogits = allocate<float>(batch * CLASSES), answers = allocate<byte>(batch);
    conv1_slices = allocate<float>(SLICES1 * CHANNELS1 * 9);
    conv2_slices = allocate<float>(SLICES2 * CHANNELS2 * CHANNELS1 * 9);
  }

  static unsigned blocks(int count) { return (count + 255) / 256; }

  void forward(float* losses, const byte* images, const byte* labels) const {
    const int windows1 = batch * CHANNELS1 * AREA1, windows2 = batch * FEATURES;
    conv1_forward<<<blocks(batch * PIXELS), 256>>>(layer1.z, images, w + CONV1_W, w + CONV1_B, batch);
    bn_statistics<<<CHANNELS1, 1024>>>(layer1, batch);
    bn_pool_forward<<<blocks(windows1), 256>>>(layer1, windows1);
    const Conv2<CHANNELS1, CHANNELS2, false> conv2{layer2.z, layer1.a, w + CONV2_W, w + CONV2_B};
    run(conv2, batch * AREA1, CHANNELS2, CHANNELS1 * 9);
    bn_statistics<<<CHANNELS2, 1024>>>(layer2, batch);
    bn_pool_forward<<<blocks(windows2), 256>>>(layer2, windows2);
    const Matrices<true, true> product{fc1, layer2.a, w + FC1_W, FEATURES, 1, 1, FEATURES, HIDDEN, batch * HIDDEN};
    run(product, batch, HIDDEN, FEATURES, FC1_SLICES);
    head<<<batch, HIDDEN>>>(h, dlogits, du, losses, answers, fc1, FC1_SLICES, w, labels, batch);
    CHECK(cudaGetLastError());
  }

  void backward(const byte* images, float rate) const {
    const int windows2 = batch * FEATURES;
    const Matrices<false, false> fc1_weight{g + FC1_W, du, layer2.a, 1, HIDDEN, FEATURES, 1, FEATURES};
    run(fc1_weight, HIDDEN, FEATURES, batch);
    const Matrices<true, false> fc1_data{layer2.da, du, w + FC1_W, HIDDEN, 1, FEATURES, 1, FEATURES};
    run(fc1_data, batch, FEATURES, HIDDEN);
    bn_pool_sums<<<CHANNELS2, 1024>>>(layer2, batch);
    bn_pool_backward<<<blocks(windows2), 256>>>(dz2, layer2, windows2);
    run(Conv2BackwardWeight{conv2_slices, dz2, layer1.a}, CHANNELS2, CHANNELS1 * 9, batch * AREA1, SLICES2);
    const Conv2<CHANNELS2, CHANNELS1, true> conv2_data{layer1.da, dz2, w + CONV2_W};
    run(conv2_data, batch * AREA1, CHANNELS1, CHANNELS2 * 9);
    bn_pool_sums<<<CHANNELS1, 1024>>>(layer1, batch);
    conv1_backward_weight<<<dim3(CHANNELS1, SLICES1), 256>>>(conv1_slices, images, layer1, batch);
    update<<<blocks(PARAMETERS), 256>>>(w, g, rate, conv1_slices, SLICES1, conv2_slices, SLICES2, dlogits, h, du,
                                        batch);
    CHECK(cudaGetLastError());
  }
};

int main(int argc, char** argv) {
  if (argc < 2) return fprintf(stderr, "usage: %s start.bin [gradients.bin]\n", argv[0]), 2;
  const Start start = read_start(argv[1]);
  const int batch = start.batch, steps = start.steps;
  const Network network(start.weights, batch);
  float* losses = allocate<float>(steps * batch);
  const byte* images = uploaded(start.images, size_t(steps) * batch * PIXELS);
  const byte* labels = uploaded(start.labels, size_t(steps) * batch);
  const byte* test_images = uploaded(start.test_images, size_t(start.tests) * PIXELS);

  cudaEvent_t begin, end;  // moments in the stream: between them the host's clock would time the queueing of kernels
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int step = 0; step < steps; ++step) {
    if (step == 10) CHECK(cudaEventRecord(begin));  // the first steps warm up
    const byte* now = images + size_t(step) * batch * PIXELS;
    network.forward(losses + step * batch, now, labels + step * batch);
    network.backward(now, start.rate);
    if (step == 0 && argc > 2) {
      std::vector<float> values(PARAMETERS);
      CHECK(cudaMemcpy(values.data(), network.g, PARAMETERS * sizeof(float), cudaMemcpyDeviceToHost));
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
  for (; seen + batch <= start.tests; seen += batch) {                     // each batch by its own mean and variance
    network.forward(losses, test_images + size_t(seen) * PIXELS, labels);  // whatever the labels
    CHECK(cudaMemcpy(answers.data(), network.answers, batch, cudaMemcpyDeviceToHost));
    for (int b = 0; b < batch; ++b) right += answers[b] == start.test_labels[seen + b];
  }
  printf("%.2f %% of the test images are right\n", 100.0 * right / seen);
}
