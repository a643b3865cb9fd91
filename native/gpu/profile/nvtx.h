// MNIST_RANGE("conv2 forward"): a named span on the time line of Nsight Systems, until the end of the scope.
//
// Domain `mnist-cuda`, one range a layer and phase. Without a profiler a range costs a few nanoseconds; without
// NVTX's headers it is nothing. In a captured step it marks the recording, not the replays.
#pragma once

#if __has_include(<nvtx3/nvtx3.hpp>)
#include <nvtx3/nvtx3.hpp>

namespace mnist::cuda {
struct NvtxDomain {
  static constexpr const char* name = "mnist-cuda";
};
}  // namespace mnist::cuda
#define MNIST_RANGE(name) \
  const ::nvtx3::scoped_range_in<::mnist::cuda::NvtxDomain> mnist_range { name }
#else
#define MNIST_RANGE(name) static_assert(sizeof(name) > 1, "a range needs a name")
#endif
