// sgd_update against the reference, with guard words behind the buffer.
#include <cuda_runtime.h>

#include "cpu/reference_ops.h"
#include "cuda/check.h"
#include "kernels/sgd.h"
#include "testing.h"

int main() {
  testing::require_gpu();
  for (const std::size_t count : {1, 255, 256, 257, 421834}) {
    const auto w = testing::random_normal<float>(count + 1, 1), dw = testing::random_normal<float>(count + 1, 2);
    std::vector<double> want(w.begin(), w.end());
    const std::vector<double> gradient(dw.begin(), dw.end());
    mnist::reference::sgd_update(want.data(), gradient.data(), 0.05, count);

    float *device_w, *device_dw;
    const std::size_t bytes = (count + 1) * sizeof(float);
    MNIST_CHECK(cudaMalloc(&device_w, bytes));
    MNIST_CHECK(cudaMalloc(&device_dw, bytes));
    MNIST_CHECK(cudaMemcpy(device_w, w.data(), bytes, cudaMemcpyHostToDevice));
    MNIST_CHECK(cudaMemcpy(device_dw, dw.data(), bytes, cudaMemcpyHostToDevice));
    mnist::kernels::sgd_update(device_w, device_dw, 0.05f, count, nullptr);
    std::vector<float> got(count + 1);
    MNIST_CHECK(cudaMemcpy(got.data(), device_w, bytes, cudaMemcpyDeviceToHost));
    MNIST_CHECK(cudaFree(device_w));
    MNIST_CHECK(cudaFree(device_dw));
    CHECK_CLOSE(got, want, 1e-7, "sgd of " + std::to_string(count));
    CHECK(got[count] == w[count]);
  }
  return testing::finish();
}
