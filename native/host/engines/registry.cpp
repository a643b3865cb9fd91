// THE list of engines. A new engine is one folder and one row here; the CLI, the tests and the tables follow.
#include <algorithm>

#include "cuda/architectures.h"
#include "cuda/capability.h"
#include "mnist/engine.h"
#include "mnist/op_bench.h"

namespace mnist {

// What the rows name, defined in each engine's own folder or file: a factory, and for some why they cannot run here.
std::unique_ptr<Engine> create_reference(const EngineInfo& info, const EngineOptions& options);
std::unique_ptr<Engine> create_cpu(const EngineInfo& info, const EngineOptions& options);
std::unique_ptr<Engine> create_naive(const EngineInfo& info, const EngineOptions& options);
std::unique_ptr<Engine> create_tiled(const EngineInfo& info, const EngineOptions& options);
std::unique_ptr<Engine> create_layerwise(const EngineInfo& info, const EngineOptions& options);
std::unique_ptr<Engine> create_cudnn(const EngineInfo& info, const EngineOptions& options);
std::unique_ptr<Engine> create_fused(const EngineInfo& info, const EngineOptions& options);
std::string cudnn_unavailable(Precision precision, int device);
std::string fused_unavailable(Precision precision, int device);
namespace fused {
int share_for(std::int64_t batch);
}

namespace {

// A factory that only a build with CUDA has; null elsewhere, where `unavailable` says so.
#ifdef MNIST_WITH_CUDA
#define MNIST_IF_CUDA(factory) factory
#else
#define MNIST_IF_CUDA(factory) nullptr
#endif

std::string always_available(Precision, int) { return ""; }

std::string needs_gpu(Precision, int device) { return cuda_device_reason(device); }

std::string needs_tensor_cores(Precision precision, int device) {
  const std::string reason = cuda::code_lacks(cuda::kTensorCapability, device);
  return reason.empty() ? fused_unavailable(precision, device) : reason;
}

}  // namespace

std::span<const EngineRow> engines() {
  using enum Precision;
  using enum Summation;
  static const std::vector<EngineRow> table = {
      {{.name = "reference",
        .summary = "plain float64 loops: the specification",
        .device = "cpu",
        .precisions = {kFp64},
        .auto_priority = 6,
        .summation = kPlain,
        .follows_routing = true,
        .host_bytes_per_image = 1'500'000},
       always_available,
       create_reference},
      {{.name = "cpu",
        .summary = "fast host engine, all cores",
        .device = "cpu",
        .precisions = {kFp32},
        .auto_priority = 4,
        .summation = kPartial,
        .shares_batches = true,
        .host_bytes_per_image = 200'000},
       always_available,
       create_cpu},
      {{.name = "naive",
        .summary = "the reference in CUDA: one kernel per op",
        .device = "cuda",
        .precisions = {kFp32, kFp64},
        .auto_priority = 5,
        .summation = kPlain,
        .follows_routing = true},
       needs_gpu,
       MNIST_IF_CUDA(create_naive)},
      {{.name = "tiled",
        .summary = "fast kernels of our own, one op at a time",
        .device = "cuda",
        .precisions = {kFp32},
        .auto_priority = 7,
        .summation = kPlain,
        .follows_routing = true,
        .own_ops = {"conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight", "batch_norm_statistics",
                    "batch_norm_backward", "relu_max_pool2d_forward", "relu_max_pool2d_backward", "relu_forward",
                    "log_softmax_forward", "log_softmax_nll_backward", "linear_forward", "linear_backward"}},
       needs_gpu,
       MNIST_IF_CUDA(create_tiled)},
      {{.name = "layerwise",
        .summary = "kernels of our own, about one per layer and direction",
        .device = "cuda",
        .precisions = {kFp32},
        .auto_priority = 2,
        .summation = kPlain},
       needs_gpu,
       MNIST_IF_CUDA(create_layerwise)},
      {{.name = "cudnn",
        .summary = "cuDNN and cuBLAS, one library call per op",
        .device = "cuda",
        .precisions = {kFp32, kTf32, kBf16},
        .auto_priority = 3,
        .summation = kLibrary,
        .libraries = {"cublasLt", "cudnn"}},
       cudnn_unavailable,
       MNIST_IF_CUDA(create_cudnn)},
      {{.name = "fused",
        .summary = "four or six kernels of our own per step",
        .device = "cuda",
        .precisions = {kFp32, kTf32, kBf16},
        .auto_priority = 1,
        .summation = kPartial,
        .takes_limits = true,
        .shares_batches = true,
        .fleets = true,
        .one_launch_per_phase = true},
       needs_tensor_cores,
       MNIST_IF_SM80(create_fused),
       fused::share_for},
  };
  return table;
}

std::unique_ptr<Engine> create_engine(const std::string& name, const EngineOptions& options,
                                      std::span<const EngineRow> rows) {
  std::string names;
  for (const auto& row : rows) {
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
    for (const OwnOp& own : options.own_ops)
      MNIST_REQUIRE(std::ranges::count(row.info.own_ops, own.op) > 0,
                    "engine '" << name << "' has no place for a launcher of " << own.op);
    MNIST_REQUIRE(row.info.takes_limits || options.limits.multiprocessors == 0,
                  "engine '" << name << "' takes no limits, expected none");
    MNIST_REQUIRE(row.info.takes_limits || options.multiprocessors == 0,
                  "engine '" << name << "' has no share of the multiprocessors, expected 0 for all");
    const std::string reason = row.unavailable(options.precision, options.device);
    if (reason.empty()) return row.create(row.info, options);
    const bool in_another = std::ranges::any_of(
        row.info.precisions, [&](Precision other) { return row.unavailable(other, options.device).empty(); });
    throw UnavailableError("engine '" + name + "' cannot run here" +
                           (in_another ? std::string(" in ") + to_string(options.precision) : "") + ": " + reason);
  }
  throw ArgumentError("engine '" + name + "' is unknown, expected one of " + names);
}

#ifndef MNIST_WITH_CUDA  // what native/gpu has in a build with CUDA
CudaStatus cuda_status() {
  return {.reason = "this build has no CUDA code; install a wheel that has it, or build where nvcc is"};
}
std::string cuda_device_reason(int) { return cuda_status().reason; }
std::vector<Gpu> gpus() { return {}; }
void cuda_warm_up(int) {}
std::string cuda::code_lacks(int, int) { return cuda_status().reason; }
std::string cudnn_unavailable(Precision, int) { return cuda_status().reason; }
Roofs measure_roofs(int) { throw UnavailableError("no GPU to measure: " + cuda_status().reason); }
OpReport bench_ops(const std::string&, const std::string&, std::int64_t, int) {
  throw UnavailableError("bench ops cannot run here: " + cuda_status().reason);
}
#endif
#ifndef MNIST_WITH_SM80  // code_lacks() says so
std::string fused_unavailable(Precision, int) { return ""; }
#endif

}  // namespace mnist
