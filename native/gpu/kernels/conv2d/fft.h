// conv2d forward through cuFFT: a row of the ladder (conv2d.h) that needs memory and plans of its own.
//
// A convolution is a product in the frequency domain. x goes into the middle of planes of (S+2)^2, which are its border
// of zeros; with w in the corner of such a plane no sum of S^2 wraps around. With X and W their spectra,
//   Y[b,o,f] = sum over i of X[b,i,f] * conj(W[o,i,f]),
// and y is the corner of the transform back, divided by (S+2)^2, and the bias.
//   launch   pad x and w, one transform of both, the products (a thread 4 images by 4 outputs of a frequency), one
//            transform back, crop: five
//   cost     about 16 (S+2)^2 (I + O) bytes an image, of planes and spectra, in addition to x and y
//   numerics float32 transforms: the error is relative to the largest values of a plane, not to each; a NaN or an
//            infinity reaches its whole plane, not the nine positions around it
//   why      of the 18 operations an input, output and pixel 6 are left, but planes and spectra go through memory
//            between all five launches; that pays for large filters, not for 3x3
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/buffer.h"
#include "libraries/cufft.h"

namespace mnist::kernels {

// For one set of sizes. Throws UnavailableError without cuFFT.
class Conv2dFft {
 public:
  Conv2dFft(std::int64_t batch, int in, int out, int side);
  // As Conv2dForward (conv2d.h), for the sizes above.
  void forward(float* y, const float* x, const float* w, const float* bias, cudaStream_t stream);

 private:
  std::int64_t batch_;
  int in_, out_, side_;
  cuda::DeviceBuffer<float> planes_;
  cuda::DeviceBuffer<float2> spectra_, products_;
  cufft::Plan forward_, inverse_;
};

}  // namespace mnist::kernels
