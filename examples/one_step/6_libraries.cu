// 6. Libraries: NVIDIA's kernels. cuDNN convolves, normalises, pools and makes log-softmax; cuBLAS multiplies matrices.
// What remains is to say what lies where: a library call is one line of arithmetic and many of layout.
//
//   nvcc -O3 6_libraries.cu -o 6_libraries -lcudnn -lcublas && ./6_libraries start.bin [gradients.bin]
//
// 9_engine.py --write makes start.bin. Headers and libraries come with `pip install nvidia-cudnn-cu13 nvidia-cublas`
// (or -cu12): their folders go behind -I and -L.
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cudnn.h>

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

// Three libraries, three types of error; of cuBLAS and cuDNN, too, 0 is success.
const char* describe(cudaError_t error) { return cudaGetErrorString(error); }
const char* describe(cudnnStatus_t error) { return cudnnGetErrorString(error); }
const char* describe(cublasStatus_t error) { return cublasGetStatusString(error); }
template <class Error>
void check(Error error, const char* call, int line) {
  if (int(error) == 0) return;
  fprintf(stderr, "line %d: %s: %s\n", line, call, describe(error));
  exit(1);
}
#define CHECK(call) check(call, #call, __LINE__)

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

// Most calls end with y = alpha * result + beta * y; beta = 0 means that y is written and not read.
const float ONE = 1, ZERO = 0;

// What cuDNN knows of an array: not where it is, but its type, its sizes, and that the last one runs fastest (NCHW).
cudnnTensorDescriptor_t tensor(int n, int c, int h, int w) {
  cudnnTensorDescriptor_t descriptor;
  CHECK(cudnnCreateTensorDescriptor(&descriptor));
  CHECK(cudnnSetTensor4dDescriptor(descriptor, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, c, h, w));
  return descriptor;
}

// One convolution with batch norm, ReLU and pooling behind it.
struct Layer {
  cudnnHandle_t cudnn;
  int in, out, side, batch;
  cudnnTensorDescriptor_t x_like, z_like, a_like, channel_like;
  cudnnFilterDescriptor_t filter;
  cudnnConvolutionDescriptor_t convolution;
  cudnnActivationDescriptor_t relu;
  cudnnPoolingDescriptor_t window;
  float *z, *y, *r, *a, *dy, *dz, *mean, *inverse_sigma;
  void* workspace = nullptr;
  size_t workspace_size = 0;
  // An algorithm is a kernel; which are there depends on sizes, type and GPU. These sum the products as a matrix
  // product does; Winograd's and the Fourier transform's need fewer products, but round differently at each position.
  static constexpr auto FORWARD = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
  static constexpr auto BACKWARD_DATA = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;  // algorithm 0 adds by atomics: other bits
  static constexpr auto BACKWARD_WEIGHT = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;  // in each run

  Layer(cudnnHandle_t handle, int in, int out, int side, int batch)
      : cudnn(handle), in(in), out(out), side(side), batch(batch) {
    const size_t size = size_t(batch) * out * side * side;
    x_like = tensor(batch, in, side, side), z_like = tensor(batch, out, side, side);
    a_like = tensor(batch, out, side / 2, side / 2), channel_like = tensor(1, out, 1, 1);
    CHECK(cudnnCreateFilterDescriptor(&filter));
    CHECK(cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, out, in, 3, 3));
    CHECK(cudnnCreateConvolutionDescriptor(&convolution));
    CHECK(cudnnSetConvolution2dDescriptor(convolution, 1, 1,        // zeros around the image, above and beside
                                          1, 1,                     // from one output to the next, this many inputs
                                          1, 1,                     // from one tap to the next, this many inputs
                                          CUDNN_CROSS_CORRELATION,  // the filter as it is; a CONVOLUTION would turn it
                                          CUDNN_DATA_FLOAT));       // type of the sums
    // By default float32 may be rounded to tf32 for the tensor cores; this forbids it.
    CHECK(cudnnSetConvolutionMathType(convolution, CUDNN_FMA_MATH));
    CHECK(cudnnCreateActivationDescriptor(&relu));
    CHECK(cudnnSetActivationDescriptor(relu, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, 0));
    CHECK(cudnnCreatePoolingDescriptor(&window));
    CHECK(cudnnSetPooling2dDescriptor(window, CUDNN_POOLING_MAX_DETERMINISTIC, CUDNN_NOT_PROPAGATE_NAN, 2, 2, 0, 0, 2,
                                      2));
    for (float** array : {&z, &y, &r, &dy, &dz}) *array = allocate<float>(size);
    a = allocate<float>(size / 4);
    mean = allocate<float>(out), inverse_sigma = allocate<float>(out);
    size_t needs[3];  // scratch memory, which cuDNN leaves to its caller so that a step allocates nothing
    CHECK(cudnnGetConvolutionForwardWorkspaceSize(cudnn, x_like, filter, convolution, z_like, FORWARD, &needs[0]));
    CHECK(cudnnGetConvolutionBackwardDataWorkspaceSize(cudnn, filter, z_like, convolution, x_like, BACKWARD_DATA,
                                                       &needs[1]));
    CHECK(cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnn, x_like, z_like, convolution, filter, BACKWARD_WEIGHT,
                                                         &needs[2]));
    for (size_t need : needs) workspace_size = need > workspace_size ? need : workspace_size;
    if (workspace_size) CHECK(cudaMalloc(&workspace, workspace_size));
  }

  void forward(const float* x, const float* w, const float* bias, const float* gamma, const float* beta) {
    CHECK(cudnnConvolutionForward(cudnn,        // its state on this GPU: kernels, stream
                                  &ONE,         // alpha
                                  x_like, x,    // input: what it is, where it is
                                  filter, w,    // filters, (out, in, 3, 3)
                                  convolution,  // padding, stride, dilation, arithmetic
                                  FORWARD,      // which kernel
                                  workspace, workspace_size,
                                  &ZERO,                                      // beta: z is only written
                                  z_like, z));                                // output
    CHECK(cudnnAddTensor(cudnn, &ONE, channel_like, bias, &ONE, z_like, z));  // one number for each channel, repeated
    // It keeps mean and 1 / sigma for the backward pass. Running statistics, which nullptr leaves out, are for
    // inference.
    CHECK(cudnnBatchNormalizationForwardTraining(cudnn, CUDNN_BATCHNORM_SPATIAL, &ONE, &ZERO, z_like, z, z_like, y,
                                                 channel_like, gamma, beta, 0, nullptr, nullptr, 1e-5, mean,
                                                 inverse_sigma));
    CHECK(cudnnActivationForward(cudnn, relu, &ONE, z_like, y, &ZERO, z_like, r));
    CHECK(cudnnPoolingForward(cudnn, window, &ONE, z_like, r, &ZERO, a_like, a));
  }

  // dx: nullptr where nobody needs it.
  void backward(float* dx, float* dw, float* dgamma, float* dbeta, const float* da, const float* x, const float* w,
                const float* gamma) {
    CHECK(cudnnPoolingBackward(cudnn, window, &ONE, a_like, a, a_like, da, z_like, r, &ZERO, z_like, dy));
    CHECK(cudnnActivationBackward(cudnn, relu, &ONE, z_like, r, z_like, dy, z_like, y, &ZERO, z_like, dy));
    CHECK(cudnnBatchNormalizationBackward(cudnn, CUDNN_BATCHNORM_SPATIAL, &ONE, &ZERO, &ONE, &ZERO, z_like, z, z_like,
                                          dy, z_like, dz, channel_like, gamma, dgamma, dbeta, 1e-5, mean,
                                          inverse_sigma));
    CHECK(cudnnConvolutionBackwardFilter(cudnn, &ONE, x_like, x, z_like, dz, convolution, BACKWARD_WEIGHT, workspace,
                                         workspace_size, &ZERO, filter, dw));
    if (dx)
      CHECK(cudnnConvolutionBackwardData(cudnn, &ONE, filter, w, z_like, dz, convolution, BACKWARD_DATA, workspace,
                                         workspace_size, &ZERO, x_like, dx));
  }
};

// C (rows x columns) = A B for matrices stored row by row. cuBLAS takes them column by column, and what is stored row
// by row is, read that way, the transposed matrix. So it is given B and A in exchange: C^T = B^T A^T. A leading
// dimension is the distance from one stored row to the next; `a_turned` says that A is stored as its transpose.
void multiply(cublasHandle_t cublas, float* c, const float* a, bool a_turned, const float* b, bool b_turned, int rows,
              int columns, int depth) {
  CHECK(cublasSgemm(cublas, b_turned ? CUBLAS_OP_T : CUBLAS_OP_N, a_turned ? CUBLAS_OP_T : CUBLAS_OP_N, columns, rows,
                    depth, &ONE, b, b_turned ? depth : columns, a, a_turned ? rows : depth, &ZERO, c, columns));
}

__global__ void normalize(float* x, const byte* images, int count) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k < count) x[k] = (images[k] / 255.f - 0.1307f) / 0.3081f;
}

__global__ void add_bias(float* y, const float* bias, int out, bool relu, int count) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k < count) y[k] = relu ? fmaxf(y[k] + bias[k % out], 0) : y[k] + bias[k % out];
}

__global__ void relu_backward(float* dh, const float* h, int count) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k < count && h[k] <= 0) dh[k] = 0;
}

__global__ void loss_backward(float* dlogits, float* losses, const float* log_p, const byte* labels, int batch) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x, b = k / CLASSES;
  if (b >= batch) return;
  const bool right = k % CLASSES == labels[b];
  dlogits[k] = (expf(log_p[k]) - right) / batch;
  if (right) losses[b] = -log_p[k];
}

struct Network {
  cudnnHandle_t cudnn;
  cublasHandle_t cublas;
  Layer layer1, layer2;
  int batch;
  cudnnTensorDescriptor_t logits_like;
  float *x, *h, *logits, *log_p, *dlogits, *dh, *da2, *da1, *ones;

  static cudnnHandle_t make_cudnn() {
    cudnnHandle_t handle;
    CHECK(cudnnCreate(&handle));
    return handle;
  }

  explicit Network(int batch)
      : cudnn(make_cudnn()),
        layer1(cudnn, 1, CHANNELS1, SIDE, batch),
        layer2(cudnn, CHANNELS1, CHANNELS2, SIDE1, batch),
        batch(batch),
        logits_like(tensor(batch, CLASSES, 1, 1)) {
    CHECK(cublasCreate(&cublas));
    x = allocate<float>(batch * PIXELS);
    h = allocate<float>(batch * HIDDEN), dh = allocate<float>(batch * HIDDEN);
    for (float** array : {&logits, &log_p, &dlogits}) *array = allocate<float>(batch * CLASSES);
    da2 = allocate<float>(batch * FEATURES), da1 = allocate<float>(batch * CHANNELS1 * AREA1);
    ones = uploaded(std::vector<float>(batch, 1).data(), batch);
  }

  static unsigned blocks(int count) { return (count + 255) / 256; }

  void forward(const float* w, const byte* images) {
    normalize<<<blocks(batch * PIXELS), 256>>>(x, images, batch * PIXELS);
    layer1.forward(x, w + CONV1_W, w + CONV1_B, w + BN1_W, w + BN1_B);
    layer2.forward(layer1.a, w + CONV2_W, w + CONV2_B, w + BN2_W, w + BN2_B);
    multiply(cublas, h, layer2.a, false, w + FC1_W, true, batch, HIDDEN, FEATURES);
    add_bias<<<blocks(batch * HIDDEN), 256>>>(h, w + FC1_B, HIDDEN, true, batch * HIDDEN);
    multiply(cublas, logits, h, false, w + FC2_W, true, batch, CLASSES, HIDDEN);
    add_bias<<<blocks(batch * CLASSES), 256>>>(logits, w + FC2_B, CLASSES, false, batch * CLASSES);
    CHECK(cudnnSoftmaxForward(cudnn, CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_INSTANCE, &ONE, logits_like, logits, &ZERO,
                              logits_like, log_p));
  }

  void backward(float* losses, float* g, const float* w, const byte* labels) {
    loss_backward<<<blocks(batch * CLASSES), 256>>>(dlogits, losses, log_p, labels, batch);
    multiply(cublas, g + FC2_W, dlogits, true, h, false, CLASSES, HIDDEN, batch);
    multiply(cublas, g + FC2_B, ones, false, dlogits, false, 1, CLASSES, batch);  // a sum is a product with ones
    multiply(cublas, dh, dlogits, false, w + FC2_W, false, batch, HIDDEN, CLASSES);
    relu_backward<<<blocks(batch * HIDDEN), 256>>>(dh, h, batch * HIDDEN);
    multiply(cublas, g + FC1_W, dh, true, layer2.a, false, HIDDEN, FEATURES, batch);
    multiply(cublas, g + FC1_B, ones, false, dh, false, 1, HIDDEN, batch);
    multiply(cublas, da2, dh, false, w + FC1_W, false, batch, FEATURES, HIDDEN);
    layer2.backward(da1, g + CONV2_W, g + BN2_W, g + BN2_B, da2, layer1.a, w + CONV2_W, w + BN2_W);
    layer1.backward(nullptr, g + CONV1_W, g + BN1_W, g + BN1_B, da1, x, w + CONV1_W, w + BN1_W);
    CHECK(cudaGetLastError());
  }
};

int main(int argc, char** argv) {
  if (argc < 2) return fprintf(stderr, "usage: %s start.bin [gradients.bin]\n", argv[0]), 2;
  const Start start = read_start(argv[1]);
  const int batch = start.batch, steps = start.steps;
  Network network(batch);
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
    network.forward(w, images + size_t(step) * batch * PIXELS);
    network.backward(losses + step * batch, g, w, labels + step * batch);
    const float down = -start.rate;
    CHECK(cublasSaxpy(network.cublas, PARAMETERS, &down, g, 1, w, 1));  // w += -rate * g
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
  std::vector<float> log_p(batch * CLASSES);
  for (; seen + batch <= start.tests; seen += batch) {  // each batch by its own mean and variance
    network.forward(w, test_images + size_t(seen) * PIXELS);
    CHECK(cudaMemcpy(log_p.data(), network.log_p, log_p.size() * sizeof(float), cudaMemcpyDeviceToHost));
    for (int b = 0; b < batch; ++b) {
      const float* row = &log_p[b * CLASSES];
      right += std::max_element(row, row + CLASSES) - row == start.test_labels[seen + b];
    }
  }
  printf("%.2f %% of the test images are right\n", 100.0 * right / seen);
}
