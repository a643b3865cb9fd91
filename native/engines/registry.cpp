// THE list of engines. A new engine is one file and one row here; the CLI, the tests and the tables follow.
#include <algorithm>

#include "cuda/architectures.h"
#include "cuda/capability.h"
#include "engines/engines.h"

namespace mnist {
namespace {

// A factory that only a build with CUDA has; null elsewhere, where `unavailable` says so.
#ifdef MNIST_WITH_CUDA
#define MNIST_IF_CUDA(factory) factory
#else
#define MNIST_IF_CUDA(factory) nullptr
#endif

std::string always_available(Precision, int) { return ""; }

std::string needs_gpu(Precision, int device) { return cuda_device_reason(device); }

std::string needs_libraries(Precision precision, int device) {
#ifdef MNIST_WITH_CUDA
  return cudnn_unavailable(precision, device);
#else
  return needs_gpu(precision, device);
#endif
}

std::string needs_tensor_cores([[maybe_unused]] Precision precision, int device) {
#ifdef MNIST_WITH_CUDA
  const std::string reason = cuda::code_lacks(cuda::kTensorCapability, device);
  if (!reason.empty()) return reason;
#endif
#ifdef MNIST_WITH_SM80
  return fused_unavailable(device);
#else
  return needs_gpu(precision, device);
#endif
}

const std::vector<EngineRow>& rows() {
  using enum Precision;
  static const std::vector<EngineRow> table = {
      {{"reference", "float64 host loops: the specification", "cpu", {kFp64}, true},
       always_available,
       create_reference},
      {{"cpu", "fast host engine, all cores", "cpu", {kFp32}, false}, always_available, create_cpu},
      {{"naive", "the reference in CUDA, one kernel an op", "cuda", {kFp32, kFp64}, true},
       needs_gpu,
       MNIST_IF_CUDA(create_naive)},
      {{"cudnn", "cuDNN and cuBLAS, one library call an op", "cuda", {kFp32, kTf32, kBf16}, false},
       needs_libraries,
       MNIST_IF_CUDA(create_cudnn)},
      {{"fused", "our kernels, a handful of launches a step", "cuda", {kFp32, kTf32, kBf16}, false},
       needs_tensor_cores,
       MNIST_IF_SM80(create_fused)},
  };
  return table;
}

}  // namespace

std::span<const EngineRow> engines() { return rows(); }

std::unique_ptr<Engine> create_engine(const std::string& name, const EngineOptions& options) {
  std::string names;
  for (const auto& row : engines()) {
    if (row.info.name != name) {
      names += (names.empty() ? "" : ", ") + row.info.name;
      continue;
    }
    std::string precisions;
    bool offered = false;
    for (const auto precision : row.info.precisions) {
      offered |= precision == options.precision;
      precisions += (precisions.empty() ? "" : ", ") + std::string(to_string(precision));
    }
    MNIST_REQUIRE(offered, "engine '" << name << "' has no precision " << to_string(options.precision) << ", it offers "
                                      << precisions);
    const std::string reason = row.unavailable(options.precision, options.device);
    if (reason.empty()) return row.create(row.info, options);
    const bool in_another = std::ranges::any_of(
        row.info.precisions, [&](Precision other) { return row.unavailable(other, options.device).empty(); });
    throw UnavailableError("engine '" + name + "' cannot run here" +
                           (in_another ? std::string(" in ") + to_string(options.precision) : "") + ": " + reason);
  }
  throw ArgumentError("engine '" + name + "' is unknown, expected one of " + names);
}

}  // namespace mnist
