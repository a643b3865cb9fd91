// 4. First kernels: each loop of 3_plain.c that has independent turns becomes a launch, one thread for each output.
//
//   nvcc -O3 4_naive.cu -o 4_naive && ./4_naive start.bin [gradients.bin]
//
// 9_engine.py --write makes start.bin. Kernels of a stream run one after the other, so nothing has to wait in between;
// the host queues them and waits only where it reads a result.
#include <cuda_runtime.h>

#include <algorithm>
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

// A call of CUDA returns an error code, and a launch leaves one behind; whoever does not look computes with garbage.
void check(cudaError_t error, const char* call, int line) {
  if (error != cudaSuccess) fprintf(stderr, "line %d: %s: %s\n", line, call, cudaGetErrorString(error)), exit(1);
}
#define CHECK(call) check(call, #call, __LINE__)

// Runs a kernel with one thread for each of `count` outputs, in blocks of 256. The last block may have more threads
// than there are outputs left, so every kernel begins by asking whether its thread has one.
#define LAUNCH(kernel, count, ...)                                   \
  do {                                                               \
    kernel<<<((count) + 255) / 256, 256>>>(__VA_ARGS__, int(count)); \
    CHECK(cudaGetLastError());                                       \
  } while (0)
#define OUTPUT_OF_THREAD(k)                            \
  const int k = blockIdx.x * blockDim.x + threadIdx.x; \
  if (k >= count) return

__global__ void normalize(float* x, const byte* images, int count) {
  OUTPUT_OF_THREAD(k);
  x[k] = (images[k] / 255.f - 0.1307f) / 0.3081f;
}

// Neighbouring threads have neighbouring columns q, so a warp reads 32 floats side by side, and all read the same
// weight.
__global__ void conv_forward(float* z, const float* x, const float* w, const float* bias, int in, int out, int side,
                             int count) {
  OUTPUT_OF_THREAD(k);
  const int area = side * side;
  const int q = k % side, p = k / side % side, o = k / area % out, b = k / area / out;
  float sum = bias[o];
  for (int i = 0; i < in; ++i)
    for (int u = 0; u < 3; ++u)
      for (int v = 0; v < 3; ++v) {
        const int r = p + u - 1, s = q + v - 1;
        if (r < 0 || r >= side || s < 0 || s >= side) continue;
        sum += w[(o * in + i) * 9 + 3 * u + v] * x[(b * in + i) * area + r * side + s];
      }
  z[k] = sum;
}

// 3_plain.c spread each dz over its neighbourhood. Threads that do this would add to the same dx at the same time; so
// here each dx gathers from the dz that it went into, and nobody else writes it.
__global__ void conv_backward_data(float* dx, const float* dz, const float* w, int in, int out, int side, int count) {
  OUTPUT_OF_THREAD(k);
  const int area = side * side;
  const int s = k % side, r = k / side % side, i = k / area % in, b = k / area / in;
  float sum = 0;
  for (int o = 0; o < out; ++o)
    for (int u = 0; u < 3; ++u)
      for (int v = 0; v < 3; ++v) {
        const int p = r - u + 1, q = s - v + 1;
        if (p < 0 || p >= side || q < 0 || q >= side) continue;
        sum += w[(o * in + i) * 9 + 3 * u + v] * dz[(b * out + o) * area + p * side + q];
      }
  dx[k] = sum;
}

// The sum of all 256 threads' values, in thread 0. In each round half of the threads add what the other half holds.
__device__ float block_sum(float value) {
  __shared__ float values[256];
  const int t = threadIdx.x;
  values[t] = value;
  for (int half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (t < half) values[t] += values[t + half];
  }
  __syncthreads();
  const float sum = values[0];
  __syncthreads();  // before anyone writes values again
  return sum;
}

// An output is a sum over the whole batch here, and there are few outputs: one block for each, whose threads share the
// sum.
__global__ void conv_backward_weight(float* dw, const float* dz, const float* x, int batch, int in, int out, int side) {
  const int tap = blockIdx.x % 9, i = blockIdx.x / 9 % in, o = blockIdx.x / 9 / in, area = side * side;
  float sum = 0;
  for (int k = threadIdx.x; k < batch * area; k += 256) {
    const int b = k / area, r = k % area / side + tap / 3 - 1, s = k % side + tap % 3 - 1;
    if (r >= 0 && r < side && s >= 0 && s < side)
      sum += dz[(b * out + o) * area + k % area] * x[(b * in + i) * area + r * side + s];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) dw[blockIdx.x] = sum;
}

// A block for each channel: its mean, then its variance around that mean, then y, and zhat in the place of z.
__global__ void bn_forward(float* y, float* z, float* sigma, const float* gamma, const float* beta, int batch,
                           int area) {
  const int c = blockIdx.x, channels = gridDim.x, count = batch * area;
  const auto at = [&](int k) { return (k / area * channels + c) * area + k % area; };
  float sum = 0, squares = 0;
  for (int k = threadIdx.x; k < count; k += 256) sum += z[at(k)];
  const float mean = block_sum(sum) / count;
  for (int k = threadIdx.x; k < count; k += 256) squares += (z[at(k)] - mean) * (z[at(k)] - mean);
  const float deviation = sqrtf(block_sum(squares) / count + 1e-5f);
  if (threadIdx.x == 0) sigma[c] = deviation;
  for (int k = threadIdx.x; k < count; k += 256) {
    z[at(k)] = (z[at(k)] - mean) / deviation;
    y[at(k)] = gamma[c] * z[at(k)] + beta[c];
  }
}

__global__ void bn_backward(float* dy, float* dgamma, float* dbeta, const float* zhat, const float* sigma,
                            const float* gamma, int batch, int area) {
  const int c = blockIdx.x, channels = gridDim.x, count = batch * area;
  const auto at = [&](int k) { return (k / area * channels + c) * area + k % area; };
  float sum = 0, sum_zhat = 0;
  for (int k = threadIdx.x; k < count; k += 256) {
    sum += dy[at(k)];
    sum_zhat += dy[at(k)] * zhat[at(k)];
  }
  sum = block_sum(sum);
  sum_zhat = block_sum(sum_zhat);
  if (threadIdx.x == 0) dbeta[c] = sum, dgamma[c] = sum_zhat;
  for (int k = threadIdx.x; k < count; k += 256)
    dy[at(k)] = gamma[c] / sigma[c] * (dy[at(k)] - sum / count - zhat[at(k)] * sum_zhat / count);
}

__global__ void pool_forward(float* a, byte* route, const float* y, int side, int count) {
  OUTPUT_OF_THREAD(k);
  const float* window = y + 4 * (k / side) * side + 2 * (k % side);  // k / side counts rows over all planes
  float best = 0;
  byte choice = 4;
  for (int cell = 0; cell < 4; ++cell) {
    const float value = window[cell / 2 * 2 * side + cell % 2];
    if (value > best) best = value, choice = cell;
  }
  a[k] = best;
  route[k] = choice;
}

__global__ void pool_backward(float* dy, const float* da, const byte* route, int side, int count) {
  OUTPUT_OF_THREAD(k);
  float* window = dy + 4 * (k / side) * side + 2 * (k % side);
  for (int cell = 0; cell < 4; ++cell) window[cell / 2 * 2 * side + cell % 2] = cell == route[k] ? da[k] : 0;
}

__global__ void linear_forward(float* y, const float* x, const float* w, const float* bias, int in, int out,
                               int count) {
  OUTPUT_OF_THREAD(k);
  const int o = k % out, b = k / out;
  float sum = bias[o];
  for (int i = 0; i < in; ++i) sum += w[o * in + i] * x[b * in + i];
  y[k] = sum;
}

__global__ void linear_backward_data(float* dx, const float* dy, const float* w, int in, int out, int count) {
  OUTPUT_OF_THREAD(k);
  float sum = 0;
  for (int o = 0; o < out; ++o) sum += dy[k / in * out + o] * w[o * in + k % in];
  dx[k] = sum;
}

__global__ void linear_backward_weight(float* dw, const float* dy, const float* x, int batch, int in, int out,
                                       int count) {
  OUTPUT_OF_THREAD(k);
  float sum = 0;
  for (int b = 0; b < batch; ++b) sum += dy[b * out + k / in] * x[b * in + k % in];
  dw[k] = sum;
}

__global__ void linear_backward_bias(float* dbias, const float* dy, int batch, int out) {
  float sum = 0;
  for (int b = 0; b < batch; ++b) sum += dy[b * out + threadIdx.x];
  dbias[threadIdx.x] = sum;
}

__global__ void relu_forward(float* h, int count) {
  OUTPUT_OF_THREAD(k);
  h[k] = fmaxf(h[k], 0);
}

__global__ void relu_backward(float* dh, const float* h, int count) {
  OUTPUT_OF_THREAD(k);
  if (h[k] <= 0) dh[k] = 0;
}

// One thread for each image: ten numbers are too few to share.
__global__ void log_softmax(float* logits, int count) {
  OUTPUT_OF_THREAD(b);
  float *row = logits + b * CLASSES, top = row[0], sum = 0;
  for (int k = 1; k < CLASSES; ++k) top = fmaxf(top, row[k]);
  for (int k = 0; k < CLASSES; ++k) sum += expf(row[k] - top);
  for (int k = 0; k < CLASSES; ++k) row[k] -= top + logf(sum);
}

__global__ void loss_forward(float* loss, const float* log_p, const byte* labels, int batch) {
  float sum = 0;
  for (int b = threadIdx.x; b < batch; b += 256) sum -= log_p[b * CLASSES + labels[b]];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *loss = sum / batch;
}

__global__ void loss_backward(float* dlogits, const float* log_p, const byte* labels, int batch, int count) {
  OUTPUT_OF_THREAD(k);
  dlogits[k] = (expf(log_p[k]) - (k % CLASSES == labels[k / CLASSES])) / batch;
}

__global__ void update(float* w, const float* g, float rate, int count) {
  OUTPUT_OF_THREAD(k);
  w[k] -= rate * g[k];
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

struct Arrays {
  float *x, *z1, *y1, *a1, *z2, *y2, *a2, *h, *log_p, *sigma1, *sigma2;
  float *dy1, *da1, *dy2, *da2, *dh, *dlogits;
  byte *route1, *route2;

  explicit Arrays(int batch) {
    const size_t size1 = size_t(batch) * CHANNELS1 * AREA1, size2 = size_t(batch) * FEATURES;
    x = allocate<float>(batch * PIXELS);
    for (float** array : {&z1, &y1, &dy1}) *array = allocate<float>(4 * size1);
    for (float** array : {&z2, &y2, &dy2}) *array = allocate<float>(4 * size2);
    a1 = allocate<float>(size1), da1 = allocate<float>(size1), route1 = allocate<byte>(size1);
    a2 = allocate<float>(size2), da2 = allocate<float>(size2), route2 = allocate<byte>(size2);
    h = allocate<float>(batch * HIDDEN), dh = allocate<float>(batch * HIDDEN);
    log_p = allocate<float>(batch * CLASSES), dlogits = allocate<float>(batch * CLASSES);
    sigma1 = allocate<float>(CHANNELS1), sigma2 = allocate<float>(CHANNELS2);
  }
};

void forward(const Arrays& s, const float* w, const byte* images, int batch) {
  LAUNCH(normalize, batch * PIXELS, s.x, images);
  LAUNCH(conv_forward, batch * CHANNELS1 * PIXELS, s.z1, s.x, w + CONV1_W, w + CONV1_B, 1, CHANNELS1, SIDE);
  bn_forward<<<CHANNELS1, 256>>>(s.y1, s.z1, s.sigma1, w + BN1_W, w + BN1_B, batch, PIXELS);
  LAUNCH(pool_forward, batch * CHANNELS1 * AREA1, s.a1, s.route1, s.y1, SIDE1);
  LAUNCH(conv_forward, batch * CHANNELS2 * AREA1, s.z2, s.a1, w + CONV2_W, w + CONV2_B, CHANNELS1, CHANNELS2, SIDE1);
  bn_forward<<<CHANNELS2, 256>>>(s.y2, s.z2, s.sigma2, w + BN2_W, w + BN2_B, batch, AREA1);
  LAUNCH(pool_forward, batch * FEATURES, s.a2, s.route2, s.y2, SIDE2);
  LAUNCH(linear_forward, batch * HIDDEN, s.h, s.a2, w + FC1_W, w + FC1_B, FEATURES, HIDDEN);
  LAUNCH(relu_forward, batch * HIDDEN, s.h);
  LAUNCH(linear_forward, batch * CLASSES, s.log_p, s.h, w + FC2_W, w + FC2_B, HIDDEN, CLASSES);
  LAUNCH(log_softmax, batch, s.log_p);
}

void backward(const Arrays& s, float* g, const float* w, const byte* labels, int batch) {
  LAUNCH(loss_backward, batch * CLASSES, s.dlogits, s.log_p, labels, batch);
  LAUNCH(linear_backward_weight, CLASSES * HIDDEN, g + FC2_W, s.dlogits, s.h, batch, HIDDEN, CLASSES);
  linear_backward_bias<<<1, CLASSES>>>(g + FC2_B, s.dlogits, batch, CLASSES);
  LAUNCH(linear_backward_data, batch * HIDDEN, s.dh, s.dlogits, w + FC2_W, HIDDEN, CLASSES);
  LAUNCH(relu_backward, batch * HIDDEN, s.dh, s.h);
  LAUNCH(linear_backward_weight, HIDDEN * FEATURES, g + FC1_W, s.dh, s.a2, batch, FEATURES, HIDDEN);
  linear_backward_bias<<<1, HIDDEN>>>(g + FC1_B, s.dh, batch, HIDDEN);
  LAUNCH(linear_backward_data, batch * FEATURES, s.da2, s.dh, w + FC1_W, FEATURES, HIDDEN);
  LAUNCH(pool_backward, batch * FEATURES, s.dy2, s.da2, s.route2, SIDE2);
  bn_backward<<<CHANNELS2, 256>>>(s.dy2, g + BN2_W, g + BN2_B, s.z2, s.sigma2, w + BN2_W, batch, AREA1);
  conv_backward_weight<<<CHANNELS2 * CHANNELS1 * 9, 256>>>(g + CONV2_W, s.dy2, s.a1, batch, CHANNELS1, CHANNELS2,
                                                           SIDE1);
  LAUNCH(conv_backward_data, batch * CHANNELS1 * AREA1, s.da1, s.dy2, w + CONV2_W, CHANNELS1, CHANNELS2, SIDE1);
  LAUNCH(pool_backward, batch * CHANNELS1 * AREA1, s.dy1, s.da1, s.route1, SIDE1);
  bn_backward<<<CHANNELS1, 256>>>(s.dy1, g + BN1_W, g + BN1_B, s.z1, s.sigma1, w + BN1_W, batch, PIXELS);
  conv_backward_weight<<<CHANNELS1 * 9, 256>>>(g + CONV1_W, s.dy1, s.x, batch, 1, CHANNELS1, SIDE);
  CHECK(cudaGetLastError());  // of the launches without LAUNCH
}

int main(int argc, char** argv) {
  if (argc < 2) return fprintf(stderr, "usage: %s start.bin [gradients.bin]\n", argv[0]), 2;
  const Start start = read_start(argv[1]);
  const int batch = start.batch, steps = start.steps;
  const Arrays arrays(batch);
  float *w = uploaded(start.weights, PARAMETERS), *g = allocate<float>(PARAMETERS), *losses = allocate<float>(steps);
  const byte* images = uploaded(start.images, size_t(steps) * batch * PIXELS);
  const byte* labels = uploaded(start.labels, size_t(steps) * batch);
  const byte* test_images = uploaded(start.test_images, size_t(start.tests) * PIXELS);
  CHECK(cudaMemset(g, 0, PARAMETERS * sizeof(float)));  // the convolutions' biases keep it
  cudaEvent_t begin, end;  // moments in the stream; the host's clock would time the queueing of kernels
  for (cudaEvent_t* event : {&begin, &end}) CHECK(cudaEventCreate(event));
  for (int step = 0; step < steps; ++step) {
    if (step == 10) CHECK(cudaEventRecord(begin));  // the first steps warm up
    forward(arrays, w, images + size_t(step) * batch * PIXELS, batch);
    loss_forward<<<1, 256>>>(losses + step, arrays.log_p, labels + step * batch, batch);
    backward(arrays, g, w, labels + step * batch, batch);
    if (step == 0 && argc > 2) {
      std::vector<float> values(PARAMETERS);
      CHECK(cudaMemcpy(values.data(), g, PARAMETERS * sizeof(float), cudaMemcpyDeviceToHost));
      FILE* file = fopen(argv[2], "wb");
      if (!file || fwrite(values.data(), 4, PARAMETERS, file) != PARAMETERS || fclose(file)) perror(argv[2]), exit(1);
    }
    LAUNCH(update, PARAMETERS, w, g, start.rate);
  }
  CHECK(cudaEventRecord(end));
  std::vector<float> loss(steps);
  CHECK(cudaMemcpy(loss.data(), losses, steps * sizeof(float), cudaMemcpyDeviceToHost));  // waits for all of it
  for (int step = 0; step < steps; ++step)
    if (step < 10 || step % 10 == 9) printf("step %3d  loss %.5f\n", step + 1, loss[step]);
  if (steps > 10) {
    float milliseconds;
    CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    printf("%.1f us per step, mean of %d\n", 1e3 * milliseconds / (steps - 10), steps - 10);
  }
  int right = 0, seen = 0;
  std::vector<float> log_p(batch * CLASSES);
  for (; seen + batch <= start.tests; seen += batch) {  // each batch by its own mean and variance
    forward(arrays, w, test_images + size_t(seen) * PIXELS, batch);
    CHECK(cudaMemcpy(log_p.data(), arrays.log_p, log_p.size() * sizeof(float), cudaMemcpyDeviceToHost));
    for (int b = 0; b < batch; ++b) {
      const float* row = &log_p[b * CLASSES];
      right += std::max_element(row, row + CLASSES) - row == start.test_labels[seen + b];
    }
  }
  printf("%.2f %% of the test images are right\n", 100.0 * right / seen);
}
