// The part of cuFFT 11 and 12 (of CUDA 12 and 13) that the project uses: own declarations, bound at run time, and a
// plan of many two-dimensional transforms. Only the ladder of conv2d asks for it.
//
// tests/native/test_declarations.cpp holds every declaration and number below against NVIDIA's header.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace mnist::cufft {

using RawPlan = int;

// The numbers of cuFFT's enumerations: ours, NVIDIA's, the value.
#define MNIST_CUFFT_CONSTANTS(X) \
  X(kSuccess, CUFFT_SUCCESS, 0)  \
  X(kForward, CUFFT_R2C, 0x2a)   \
  X(kInverse, CUFFT_C2R, 0x2c)

enum Constant : int {
#define MNIST_ROW(name, real, value) name = value,
  MNIST_CUFFT_CONSTANTS(MNIST_ROW)
#undef MNIST_ROW
};

// The functions: name without `cufft`, result, parameters as in cuFFT's reference (enumerations are ints).
#define MNIST_CUFFT_FUNCTIONS(X)                                                                                   \
  X(Create, int, (RawPlan*))                                                                                       \
  X(Destroy, int, (RawPlan))                                                                                       \
  X(SetStream, int, (RawPlan, cudaStream_t))                                                                       \
  X(MakePlanMany, int,                                                                                             \
    (RawPlan, int rank, int* sizes, int* in_sizes, int in_stride, int in_distance, int* out_sizes, int out_stride, \
     int out_distance, int type, int count, std::size_t* workspace_bytes))                                         \
  X(ExecR2C, int, (RawPlan, float* from, float2* to))                                                              \
  X(ExecC2R, int, (RawPlan, float2 * from, float* to))

struct Api {
#define MNIST_ROW(name, result, parameters) result(*name) parameters = nullptr;
  MNIST_CUFFT_FUNCTIONS(MNIST_ROW)
#undef MNIST_ROW
};

// Loads cuFFT on the first call. Throws UnavailableError if it is missing.
const Api& api();

// `count` transforms of side x side real numbers to side x (side/2 + 1) complex ones, the rest of a spectrum being its
// mirror image; or back, without the division by side^2. One after the other in memory; owns cuFFT's workspace.
class Plan {
 public:
  Plan(Constant direction, int side, int count);  // kForward or kInverse
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  void forward(float2* spectra, float* planes, cudaStream_t stream);
  void inverse(float* planes, float2* spectra, cudaStream_t stream);  // spectra do not survive

 private:
  void use(cudaStream_t stream);

  RawPlan plan_ = 0;
  cudaStream_t stream_ = nullptr;  // cuFFT's own beginning
};

}  // namespace mnist::cufft
