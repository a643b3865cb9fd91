// Which of the kernels' code this GPU runs: that of the newest architecture compiled for it.
#include "cuda/check.h"
#include "kernels/fused/state.h"

namespace mnist::fused {
namespace {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ const int has_wgmma = 1;
#else
__device__ const int has_wgmma = 0;
#endif

}  // namespace

bool runs_wgmma() {
  int value = 0;
  MNIST_CHECK(cudaMemcpyFromSymbol(&value, has_wgmma, sizeof value));
  return value != 0;
}

}  // namespace mnist::fused
