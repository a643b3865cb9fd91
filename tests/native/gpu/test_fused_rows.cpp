// What each fused kernel needs of a thread block, as the plan of a batch has it and as the driver says.
#include <algorithm>

#include "gpu_testing.h"
#include "kernels/fused/kernels.h"

using namespace mnist;
using namespace testing;

namespace {

// A block of fc finds registers beside one of conv_forward, but another one of conv_forward does not.
void test_registers_beside_fc(Precision precision) {
  const auto of_block = [](const fused::KernelRow& row) {
    cudaFuncAttributes attributes{};
    MNIST_CHECK(cudaFuncGetAttributes(&attributes, row.one.kernel));
    return (attributes.numRegs + 7) / 8 * 8 * row.threads;
  };
  int all = 0;
  MNIST_CHECK(cudaDeviceGetAttribute(&all, cudaDevAttrMaxRegistersPerMultiprocessor, 0));
  const auto rows = fused::kernel_rows(precision);
  const auto fc = std::ranges::find(rows, fused::Phase::kFc, &fused::KernelRow::phase);
  for (const auto& row : rows)
    if (row.phase == fused::Phase::kConvForward && row.beside_fc)
      CHECK(of_block(row) + of_block(*fc) <= all && 2 * of_block(row) > all);
}

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
  if (fused::runs_wgmma()) test_registers_beside_fc(Precision::kBf16), test_registers_beside_fc(Precision::kTf32);
  return finish();
}
