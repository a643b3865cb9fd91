// A program to be debugged: chapter 4's kernel on arrays of its own, which docs/debugging.md looks into.
//
//   nvcc -std=c++20 -g -G -arch=native -I native/include -I native/gpu -I native/host docs/debugging/main.cu -o tiled
//   ./tiled IMAGES INPUTS OUTPUTS [ROWS]
//
// ROWS: how many images y has room for, IMAGES if it is left out; with fewer the kernel writes behind its end.
// -DKERNEL='"/path/tile.cu"' takes another file with the same function.
#ifndef KERNEL
#define KERNEL "../guide/tile.cu"
#endif
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include KERNEL

namespace {

// Never freed: the program ends.
float* on_gpu(const std::vector<float>& values) {
  float* array = nullptr;
  MNIST_CHECK(cudaMalloc(&array, values.size() * sizeof(float)));
  MNIST_CHECK(cudaMemcpy(array, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
  return array;
}

}  // namespace

int main(int count, char** words) {
  if (count < 4) return std::fprintf(stderr, "usage: %s IMAGES INPUTS OUTPUTS [ROWS]\n", words[0]), 2;
  const int batch = std::atoi(words[1]), in = std::atoi(words[2]), out = std::atoi(words[3]);
  const int rows = count > 4 ? std::atoi(words[4]) : batch;
  std::vector<float> x(batch * in), w(out * in), bias(out), y(rows * out, NAN);
  for (std::size_t k = 0; k < x.size(); ++k) x[k] = float(k % 7);
  for (std::size_t k = 0; k < w.size(); ++k) w[k] = float(k % 5);
  float* const result = on_gpu(y);
  mnist::kernels::linear_forward_tile(result, on_gpu(x), on_gpu(w), on_gpu(bias), batch, in, out, nullptr);
  MNIST_CHECK(cudaMemcpy(y.data(), result, y.size() * sizeof(float), cudaMemcpyDeviceToHost));
  double wanted = 0;
  for (int i = 0; i < in; ++i) wanted += x[i] * w[i];
  std::printf("y[0,0] is %g, expected %g\n", y[0], wanted);
  return y[0] == wanted ? 0 : 1;
}
