// 3. Plain C: the training step of 2_numpy.py as loops, in memory that the program asks for itself.
//
//   gcc -O3 -march=native 3_plain.c -o 3_plain -lm && ./3_plain start.bin [gradients.bin]
//
// 9_engine.py --write makes start.bin. Every array is flat; x[b][i][r][s] is x[((b * I + i) * SIDE + r) * SIDE + s].
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

static void* allocate(size_t size) {
  void* memory = malloc(size);
  if (!memory) fprintf(stderr, "there is no memory for %zu bytes\n", size), exit(1);
  return memory;
}

static float* floats(size_t count) { return allocate(count * sizeof(float)); }

typedef struct {
  int steps, batch, tests;
  float rate;
  float* weights;
  byte *images, *labels, *test_images, *test_labels;
} Start;

static Start read_start(const char* path) {
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

// z[b][o] = bias[o] + sum over i and the nine taps of w[o][i][u][v] * x[b][i], shifted by (u - 1, v - 1). The innermost
// loop walks along a row of both arrays, so the compiler makes vector instructions of it.
static void conv_forward(float* z, const float* x, const float* w, const float* bias, int batch, int in, int out,
                         int side) {
  const int area = side * side;
  for (int b = 0; b < batch; ++b)
    for (int o = 0; o < out; ++o) {
      float* plane = z + (b * out + o) * area;
      for (int k = 0; k < area; ++k) plane[k] = bias[o];
      for (int i = 0; i < in; ++i)
        for (int u = 0; u < 3; ++u)
          for (int v = 0; v < 3; ++v) {
            const float weight = w[(o * in + i) * 9 + 3 * u + v];
            const float* from = x + (b * in + i) * area;
            for (int p = u == 0; p < side - (u == 2); ++p)    // rows and columns whose neighbour
              for (int q = v == 0; q < side - (v == 2); ++q)  // is within the image
                plane[p * side + q] += weight * from[(p + u - 1) * side + q + v - 1];
          }
    }
}

// What went from x to z by a weight comes back by it: dx[b][i], shifted, += w * dz[b][o].
static void conv_backward_data(float* dx, const float* dz, const float* w, int batch, int in, int out, int side) {
  const int area = side * side;
  memset(dx, 0, sizeof(float) * batch * in * area);
  for (int b = 0; b < batch; ++b)
    for (int i = 0; i < in; ++i)
      for (int o = 0; o < out; ++o)
        for (int u = 0; u < 3; ++u)
          for (int v = 0; v < 3; ++v) {
            const float weight = w[(o * in + i) * 9 + 3 * u + v];
            const float* from = dz + (b * out + o) * area;
            float* plane = dx + (b * in + i) * area;
            for (int p = u == 0; p < side - (u == 2); ++p)
              for (int q = v == 0; q < side - (v == 2); ++q)
                plane[(p + u - 1) * side + q + v - 1] += weight * from[p * side + q];
          }
}

// dw sums over the batch. A sum of 50,176 floats one after the other loses three digits, and most of these terms
// cancel; so the sum of a row is a float, and that of the rows a double. The bias before batch norm has gradient 0.
static void conv_backward_weight(float* dw, const float* dz, const float* x, int batch, int in, int out, int side) {
  const int area = side * side;
  for (int o = 0; o < out; ++o)
    for (int i = 0; i < in; ++i)
      for (int u = 0; u < 3; ++u)
        for (int v = 0; v < 3; ++v) {
          double sum = 0;
          for (int b = 0; b < batch; ++b) {
            const float *of = dz + (b * out + o) * area, *from = x + (b * in + i) * area;
            for (int p = u == 0; p < side - (u == 2); ++p) {
              float row = 0;
              for (int q = v == 0; q < side - (v == 2); ++q)
                row += of[p * side + q] * from[(p + u - 1) * side + q + v - 1];
              sum += row;
            }
          }
          dw[(o * in + i) * 9 + 3 * u + v] = sum;
        }
}

// y = gamma * zhat + beta with zhat = (z - mean) / sigma; zhat takes the place of z, which nobody needs any more.
static void bn_forward(float* y, float* z, float* sigma, const float* gamma, const float* beta, int batch, int channels,
                       int area) {
  for (int c = 0; c < channels; ++c) {
    double sum = 0, squares = 0;
    for (int b = 0; b < batch; ++b)
      for (int k = 0; k < area; ++k) sum += z[(b * channels + c) * area + k];
    const float mean = sum / (batch * area);
    for (int b = 0; b < batch; ++b)
      for (int k = 0; k < area; ++k) {
        const float d = z[(b * channels + c) * area + k] - mean;
        squares += d * d;
      }
    sigma[c] = sqrt(squares / (batch * area) + 1e-5);
    for (int b = 0; b < batch; ++b)
      for (int k = (b * channels + c) * area, end = k + area; k < end; ++k) {
        z[k] = (z[k] - mean) / sigma[c];
        y[k] = gamma[c] * z[k] + beta[c];
      }
  }
}

// dz takes the place of dy.
static void bn_backward(float* dy, float* dgamma, float* dbeta, const float* zhat, const float* sigma,
                        const float* gamma, int batch, int channels, int area) {
  for (int c = 0; c < channels; ++c) {
    double sum = 0, sum_zhat = 0;
    for (int b = 0; b < batch; ++b)
      for (int k = (b * channels + c) * area, end = k + area; k < end; ++k) {
        sum += dy[k];
        sum_zhat += dy[k] * zhat[k];
      }
    dbeta[c] = sum;
    dgamma[c] = sum_zhat;
    const float mean = sum / (batch * area), mean_zhat = sum_zhat / (batch * area);
    for (int b = 0; b < batch; ++b)
      for (int k = (b * channels + c) * area, end = k + area; k < end; ++k)
        dy[k] = gamma[c] / sigma[c] * (dy[k] - mean - zhat[k] * mean_zhat);
  }
}

// ReLU and the maximum of each 2x2 window; route keeps which of its four cells that was, 4 for none above 0.
static void pool_forward(float* a, byte* route, const float* y, int planes, int side) {
  for (int n = 0; n < planes; ++n)
    for (int p = 0; p < side; ++p)
      for (int q = 0; q < side; ++q) {
        const float* window = y + (4 * n * side + 4 * p) * side + 2 * q;  // a row of y has 2 * side values
        float best = 0;
        byte choice = 4;
        for (int cell = 0; cell < 4; ++cell) {
          const float value = window[cell / 2 * 2 * side + cell % 2];
          if (value > best) best = value, choice = cell;
        }
        a[(n * side + p) * side + q] = best;
        route[(n * side + p) * side + q] = choice;
      }
}

static void pool_backward(float* dy, const float* da, const byte* route, int planes, int side) {
  memset(dy, 0, sizeof(float) * planes * 4 * side * side);
  for (int n = 0; n < planes; ++n)
    for (int p = 0; p < side; ++p)
      for (int q = 0; q < side; ++q) {
        const int k = (n * side + p) * side + q, cell = route[k];
        if (cell < 4) dy[(4 * n * side + 4 * p + cell / 2 * 2) * side + 2 * q + cell % 2] = da[k];
      }
}

// y[b][o] = bias[o] + sum over i of w[o][i] * x[b][i]
static void linear_forward(float* y, const float* x, const float* w, const float* bias, int batch, int in, int out) {
  for (int b = 0; b < batch; ++b)
    for (int o = 0; o < out; ++o) {
      float sum = bias[o];
      for (int i = 0; i < in; ++i) sum += w[o * in + i] * x[b * in + i];
      y[b * out + o] = sum;
    }
}

static void linear_backward(float* dx, float* dw, float* dbias, const float* dy, const float* x, const float* w,
                            int batch, int in, int out) {
  memset(dx, 0, sizeof(float) * batch * in);
  memset(dw, 0, sizeof(float) * out * in);
  for (int o = 0; o < out; ++o) {
    float sum = 0;
    for (int b = 0; b < batch; ++b) {
      const float d = dy[b * out + o];
      sum += d;
      for (int i = 0; i < in; ++i) dw[o * in + i] += d * x[b * in + i];
      for (int i = 0; i < in; ++i) dx[b * in + i] += d * w[o * in + i];
    }
    dbias[o] = sum;
  }
}

// All arrays of a step; those of the backward pass are named for what they are the gradient of.
typedef struct {
  float *x, *z1, *y1, *a1, *z2, *y2, *a2, *h, *log_p;
  float *dy1, *da1, *dy2, *da2, *dh, *dlogits;
  float sigma1[CHANNELS1], sigma2[CHANNELS2];
  byte *route1, *route2;
} Arrays;

static Arrays make_arrays(int batch) {
  const size_t size1 = (size_t)batch * CHANNELS1 * AREA1, size2 = (size_t)batch * FEATURES;
  Arrays s = {.x = floats(batch * PIXELS), .z1 = floats(4 * size1), .y1 = floats(4 * size1), .dy1 = floats(4 * size1)};
  s.a1 = floats(size1), s.da1 = floats(size1), s.route1 = allocate(size1);
  s.z2 = floats(4 * size2), s.y2 = floats(4 * size2), s.dy2 = floats(4 * size2);
  s.a2 = floats(size2), s.da2 = floats(size2), s.route2 = allocate(size2);
  s.h = floats(batch * HIDDEN), s.dh = floats(batch * HIDDEN);
  s.log_p = floats(batch * CLASSES), s.dlogits = floats(batch * CLASSES);
  return s;
}

static void forward(Arrays* s, const float* w, const byte* images, int batch) {
  for (int k = 0; k < batch * PIXELS; ++k) s->x[k] = (images[k] / 255.f - 0.1307f) / 0.3081f;
  conv_forward(s->z1, s->x, w + CONV1_W, w + CONV1_B, batch, 1, CHANNELS1, SIDE);
  bn_forward(s->y1, s->z1, s->sigma1, w + BN1_W, w + BN1_B, batch, CHANNELS1, PIXELS);
  pool_forward(s->a1, s->route1, s->y1, batch * CHANNELS1, SIDE1);
  conv_forward(s->z2, s->a1, w + CONV2_W, w + CONV2_B, batch, CHANNELS1, CHANNELS2, SIDE1);
  bn_forward(s->y2, s->z2, s->sigma2, w + BN2_W, w + BN2_B, batch, CHANNELS2, AREA1);
  pool_forward(s->a2, s->route2, s->y2, batch * CHANNELS2, SIDE2);
  linear_forward(s->h, s->a2, w + FC1_W, w + FC1_B, batch, FEATURES, HIDDEN);
  for (int k = 0; k < batch * HIDDEN; ++k) s->h[k] = fmaxf(s->h[k], 0);
  linear_forward(s->log_p, s->h, w + FC2_W, w + FC2_B, batch, HIDDEN, CLASSES);
  for (int b = 0; b < batch; ++b) {  // log-softmax; without the maximum exp would overflow
    float *row = s->log_p + b * CLASSES, top = row[0], sum = 0;
    for (int k = 1; k < CLASSES; ++k) top = fmaxf(top, row[k]);
    for (int k = 0; k < CLASSES; ++k) sum += expf(row[k] - top);
    for (int k = 0; k < CLASSES; ++k) row[k] -= top + logf(sum);
  }
}

static void backward(Arrays* s, float* g, const float* w, const byte* labels, int batch) {
  for (int k = 0; k < batch * CLASSES; ++k)
    s->dlogits[k] = (expf(s->log_p[k]) - (k % CLASSES == labels[k / CLASSES])) / batch;  // the loss is a mean
  linear_backward(s->dh, g + FC2_W, g + FC2_B, s->dlogits, s->h, w + FC2_W, batch, HIDDEN, CLASSES);
  for (int k = 0; k < batch * HIDDEN; ++k)
    if (s->h[k] <= 0) s->dh[k] = 0;
  linear_backward(s->da2, g + FC1_W, g + FC1_B, s->dh, s->a2, w + FC1_W, batch, FEATURES, HIDDEN);
  pool_backward(s->dy2, s->da2, s->route2, batch * CHANNELS2, SIDE2);
  bn_backward(s->dy2, g + BN2_W, g + BN2_B, s->z2, s->sigma2, w + BN2_W, batch, CHANNELS2, AREA1);
  conv_backward_weight(g + CONV2_W, s->dy2, s->a1, batch, CHANNELS1, CHANNELS2, SIDE1);
  conv_backward_data(s->da1, s->dy2, w + CONV2_W, batch, CHANNELS1, CHANNELS2, SIDE1);
  pool_backward(s->dy1, s->da1, s->route1, batch * CHANNELS1, SIDE1);
  bn_backward(s->dy1, g + BN1_W, g + BN1_B, s->z1, s->sigma1, w + BN1_W, batch, CHANNELS1, PIXELS);
  conv_backward_weight(g + CONV1_W, s->dy1, s->x, batch, 1, CHANNELS1, SIDE);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

int main(int argc, char** argv) {
  if (argc < 2) return fprintf(stderr, "usage: %s start.bin [gradients.bin]\n", argv[0]), 2;
  Start start = read_start(argv[1]);
  const int batch = start.batch;
  Arrays arrays = make_arrays(batch);
  float* g = floats(PARAMETERS);
  memset(g, 0, PARAMETERS * sizeof(float));  // the convolutions' biases keep it
  double begin = 0;
  for (int step = 0; step < start.steps; ++step) {
    if (step == 10) begin = seconds();  // the first steps warm up
    const byte* labels = start.labels + step * batch;
    forward(&arrays, start.weights, start.images + (size_t)step * batch * PIXELS, batch);
    double loss = 0;
    for (int b = 0; b < batch; ++b) loss -= arrays.log_p[b * CLASSES + labels[b]] / batch;
    backward(&arrays, g, start.weights, labels, batch);
    for (int k = 0; k < PARAMETERS; ++k) start.weights[k] -= start.rate * g[k];
    if (step < 10 || step % 10 == 9) printf("step %3d  loss %.5f\n", step + 1, loss), fflush(stdout);
    if (step == 0 && argc > 2) {
      FILE* file = fopen(argv[2], "wb");
      if (!file || fwrite(g, sizeof(float), PARAMETERS, file) != PARAMETERS || fclose(file)) perror(argv[2]), exit(1);
    }
  }
  if (start.steps > 10)
    printf("%.1f us per step, mean of %d\n", 1e6 * (seconds() - begin) / (start.steps - 10), start.steps - 10);
  int right = 0, seen = 0;
  for (; seen + batch <= start.tests; seen += batch) {  // each batch by its own mean and variance
    forward(&arrays, start.weights, start.test_images + (size_t)seen * PIXELS, batch);
    for (int b = 0; b < batch; ++b) {
      const float* row = arrays.log_p + b * CLASSES;
      int best = 0;
      for (int k = 1; k < CLASSES; ++k)
        if (row[k] > row[best]) best = k;
      right += best == start.test_labels[seen + b];
    }
  }
  printf("%.2f %% of the test images are right\n", 100.0 * right / seen);
}
