// THE list of engines. A new engine is one file and one row here; the CLI, the tests and the tables follow.
#include "engines/engines.h"

namespace mnist {
namespace {

// A factory that only a build with CUDA has; null elsewhere, where `unavailable` says so.
#ifdef MNIST_WITH_CUDA
#define MNIST_IF_CUDA(factory) factory
#else
#define MNIST_IF_CUDA(factory) nullptr
#endif

std::string always_available() { return ""; }

std::string needs_gpu() { return cuda_status().reason; }

std::string needs_libraries() {
#ifdef MNIST_WITH_CUDA
  return cudnn_unavailable();
#else
  return needs_gpu();
#endif
}

std::string needs_shared_memory() {
#ifdef MNIST_WITH_CUDA
  return fused_unavailable(0);
#else
  return needs_gpu();
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
       needs_shared_memory,
       MNIST_IF_CUDA(create_fused)},
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
    const std::string reason = row.unavailable();
    if (!reason.empty()) throw UnavailableError("engine '" + name + "' cannot run here: " + reason);
    return row.create(row.info, options);
  }
  throw ArgumentError("engine '" + name + "' is unknown, expected one of " + names);
}

}  // namespace mnist
