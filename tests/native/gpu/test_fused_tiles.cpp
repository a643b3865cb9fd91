// What each size of each fused kernel needs of a thread block, as the plan of a batch has it and as the driver says.
#include "gpu_testing.h"
#include "kernels/fused/state.h"

using namespace mnist;
using namespace testing;

namespace {

template <Precision kPrecision>
void test_tiles() {
  int limit = 0, reserved = 0;
  MNIST_CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  MNIST_CHECK(cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, 0));
  const bool wgmma = fused::runs_wgmma();
  for (const auto& tile : fused::Launch<kPrecision>::tiles()) {
    const auto what = std::string(to_string(kPrecision)) + ", phase " + std::to_string(int(tile.phase)) + ", rows " +
                      std::to_string(tile.rows) + ", " + std::to_string(tile.shared()) + " bytes";
    cudaFuncAttributes attributes{};
    MNIST_CHECK(cudaFuncGetAttributes(&attributes, tile.kernel));
    const bool empty = (tile.wgmma || tile.layout != fused::Layout::kPixels) && !wgmma;  // code without wgmma
    const int said = int(attributes.sharedSizeBytes), declared = tile.shared() - tile.dynamic;
    // With what the system reserves or without, and up to where the dynamic begins or not.
    const bool right = said == declared || said == tile.declared || said == declared + reserved;
    report(empty || right,
           what + ": the driver says " + std::to_string(said) + " static ones, the row " + std::to_string(declared),
           __FILE__, __LINE__);
    if (tile.shared() > limit) continue;
    MNIST_CHECK(cudaFuncSetAttribute(tile.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, tile.dynamic));
    int blocks = 0;
    MNIST_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, tile.kernel, attributes.maxThreadsPerBlock,
                                                              std::size_t(tile.dynamic)));
    report(blocks >= 1, what + ": a multiprocessor has no room for a block", __FILE__, __LINE__);
  }
}

}  // namespace

int main() {
  require_gpu();
  require_code(cuda::kTensorCapability);
  test_tiles<Precision::kBf16>();
  test_tiles<Precision::kTf32>();
  test_tiles<Precision::kFp32>();
  return finish();
}
