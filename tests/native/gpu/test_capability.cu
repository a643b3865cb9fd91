// What this build's code for the GPU was compiled for, as the driver sees it and as the list of architectures says.
#include "cuda/architectures.h"
#include "cuda/capability.h"
#include "cuda/check.h"
#include "testing.h"

using namespace mnist;

namespace {

__global__ void nothing_kernel() {}

bool says(const std::string& sentence, const std::string& words) { return sentence.find(words) != std::string::npos; }

}  // namespace

int main() {
  testing::require_gpu();
  int major = 0, minor = 0;
  MNIST_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  MNIST_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  cudaFuncAttributes attributes{};
  MNIST_CHECK(cudaFuncGetAttributes(&attributes, nothing_kernel));
  const int gpu = 10 * major + minor, code = attributes.ptxVersion;
  std::printf("GPU %d, machine code for %d, compiled for %d\n", gpu, attributes.binaryVersion, code);

  const auto listed = cuda::code_for(cuda_status().architectures, gpu);
  CHECK(listed.capability == code);
  CHECK(listed.from_ptx || attributes.binaryVersion == code);
  CHECK(cuda::code_lacks(code, 0).empty());
  CHECK(
      says(cuda::code_lacks(code + 1, 0), "it needs compute capability " + cuda::capability_text(code + 1) + " and "));
  CHECK(cuda::gpu_lacks(gpu, 0).empty());
  CHECK(says(cuda::gpu_lacks(gpu + 1, 0), " and GPU 0 has " + cuda::capability_text(gpu)));
  nothing_kernel<<<1, 1>>>();
  MNIST_CHECK_LAUNCH();
  MNIST_CHECK(cudaDeviceSynchronize());
  return testing::finish();
}
