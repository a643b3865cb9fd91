// What each fused kernel needs of a thread block, as the plan of a batch has it and as the driver says.
#include "gpu_testing.h"
#include "kernels/fused/kernels.h"

using namespace mnist;
using namespace testing;

namespace {

void test_rows(Precision precision) {
  int limit = 0, reserved = 0;
  MNIST_CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  MNIST_CHECK(cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, 0));
  const bool wgmma = fused::runs_wgmma();
  for (const auto& row : fused::kernel_rows(precision)) {
    const auto what = std::string(to_string(precision)) + ", phase " + std::to_string(int(row.phase)) + ", rows " +
                      std::to_string(row.rows) + ", " + std::to_string(row.shared()) + " bytes";
    cudaFuncAttributes attributes{};
    MNIST_CHECK(cudaFuncGetAttributes(&attributes, row.one.kernel));
    const bool empty = (row.wgmma || row.layout != fused::Layout::kPixels) && !wgmma;  // code without wgmma
    const int said = int(attributes.sharedSizeBytes), declared = row.shared() - row.dynamic;
    // With what the system reserves or without, and up to where the dynamic begins or not.
    const bool right = said == declared || said == row.fixed || said == declared + reserved;
    report(empty || right,
           what + ": the driver says " + std::to_string(said) + " static ones, the row " + std::to_string(declared),
           __FILE__, __LINE__);
    if (row.shared() > limit) continue;
    MNIST_CHECK(cudaFuncSetAttribute(row.one.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, row.dynamic));
    int blocks = 0;
    MNIST_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, row.one.kernel, attributes.maxThreadsPerBlock,
                                                              std::size_t(row.dynamic)));
    report(blocks >= 1, what + ": a multiprocessor has no room for a block", __FILE__, __LINE__);
  }
}

}  // namespace

int main() {
  require_gpu();
  require_code(cuda::kTensorCapability);
  test_rows(Precision::kBf16);
  test_rows(Precision::kTf32);
  test_rows(Precision::kFp32);
  return finish();
}
