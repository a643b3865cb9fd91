// What the driver says of a GPU, narrowed by the engine's options.
#include "engines/fused/gpu.h"

#include "cuda/check.h"

namespace mnist {
namespace fused {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  MNIST_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

Limits limits_of(int device) {
  return {.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device),
          .shared = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device)};
}

// With the limits of the options.
Gpu limited_gpu(const EngineOptions& options, std::span<const KernelRow> rows) {
  const Limits own = limits_of(options.device);
  const GpuLimits& asked = options.limits;
  if (asked.multiprocessors == 0) {
    Gpu gpu{.limits = own,
            .overlap = overlaps(rows),
            .hopper = attribute(cudaDevAttrComputeCapabilityMajor, options.device) == 9};
    gpu.limits.wgmma = runs_wgmma();
    return gpu;
  }
  const int needed = shared_needed(rows, own);
  const auto between = [](int value, int low, int high) { return low <= value && value <= high; };
  MNIST_REQUIRE(
      between(asked.multiprocessors, 2, own.multiprocessors) && between(asked.shared_bytes, needed, own.shared),
      "limits are " << asked.multiprocessors << " multiprocessors and " << asked.shared_bytes
                    << " bytes of shared memory a block, expected on this GPU 2 to " << own.multiprocessors << " and "
                    << needed << " to " << own.shared);
  return {.limits = {asked.multiprocessors, asked.shared_bytes}, .limited = true};
}

}  // namespace

Limits limits_for_model(const Limits& limits, int multiprocessors, std::span<const KernelRow> rows) {
  Limits share = limits;
  const auto fits = [&](int count) {
    share.multiprocessors = count;
    return why_it_does_not_fit(rows, share).empty();
  };
  int least = 2;
  while (least < limits.multiprocessors && !fits(least)) ++least;
  MNIST_REQUIRE(least <= multiprocessors && multiprocessors <= limits.multiprocessors,
                "multiprocessors is " << multiprocessors << ", expected on this GPU " << least << " to "
                                      << limits.multiprocessors);
  share.multiprocessors = multiprocessors;
  return share;
}

Gpu gpu_of(const EngineOptions& options, std::span<const KernelRow> rows) {
  Gpu gpu = limited_gpu(options, rows);
  gpu.step = options.multiprocessors == 0 ? gpu.limits : limits_for_model(gpu.limits, options.multiprocessors, rows);
  return gpu;
}

std::vector<std::string> notes_for_user(const Gpu& gpu) {
  if (gpu.hopper && !gpu.limits.wgmma)
    return {"without wgmma, which this GPU has: the code was compiled for sm_90, not for sm_90a"};
  if (!gpu.limited) return {};
  return {"as if this GPU had " + std::to_string(gpu.limits.multiprocessors) + " multiprocessors, " +
          std::to_string(gpu.limits.shared) +
          " bytes of shared memory a block and neither wgmma nor overlapping launches"};
}

}  // namespace fused

std::string fused_unavailable(Precision precision, int device) {
  const std::string reason = cuda_device_reason(device);
  return reason.empty() ? why_it_does_not_fit(fused::kernel_rows(precision), fused::limits_of(device)) : reason;
}

}  // namespace mnist
