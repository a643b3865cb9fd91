// sgd_update against the reference, with guard words behind the buffer.
#include "cpu/reference_ops.h"
#include "gpu_testing.h"
#include "kernels/sgd.h"

int main() {
  testing::require_gpu();
  const float learning_rate = 0.05f;
  mnist::cuda::DeviceBuffer<float> device_rate(1);
  mnist::cuda::upload(device_rate.data(), {&learning_rate, 1}, nullptr);
  for (const std::int64_t count : {1, 255, 256, 257, 421834}) {
    const auto w = testing::random_normal<float>(count + 1, 1), dw = testing::random_normal<float>(count + 1, 2);
    std::vector<double> want(w.begin(), w.end());
    const std::vector<double> gradient(dw.begin(), dw.end());
    mnist::reference::sgd_update(want.data(), gradient.data(), learning_rate, count);

    mnist::cuda::DeviceBuffer<float> device_w(count + 1), device_dw(count + 1);
    mnist::cuda::upload(device_w.data(), w, nullptr);
    mnist::cuda::upload(device_dw.data(), dw, nullptr);
    mnist::kernels::sgd_update(device_w.data(), device_dw.data(), device_rate.data(), count, nullptr);
    std::vector<float> got(count + 1);
    mnist::cuda::download(got, device_w.data(), nullptr);
    CHECK_CLOSE(got, want, 1e-7, "sgd of " + std::to_string(count));
    CHECK(got[count] == w[count]);
  }
  return testing::finish_on_gpu();
}
