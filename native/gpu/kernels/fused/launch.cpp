// The one launch of the fused kernels, and the tables of their source files put together.

#include "cuda/check.h"
#include "cuda/delays.h"
#include "kernels/fused/kernels.h"

namespace mnist::fused {
namespace {

template <Precision kPrecision>
std::span<const KernelRow> rows_of_precision() {
  static const std::vector<KernelRow> rows = [] {
    auto all = KernelTable<kPrecision, State>::rows();
    for (KernelRow other : KernelTable<kPrecision, Pack>::rows()) {
      const EntryPoint several = other.one;
      for (KernelRow& row : all) {
        other.one = row.one;
        if (row == other) row.several = several;
      }
    }
    return all;
  }();
  return rows;
}

dim3 grid_of(const KernelRow& row, const State& s) {
  switch (row.phase) {
    case Phase::kConvForward:
      return unsigned(s.conv_forward_blocks);
    case Phase::kFc1Forward:
      return {unsigned((s.batch + row.rows - 1) / row.rows), unsigned(s.fc1_forward_slices)};
    case Phase::kHead:
    case Phase::kFc:
      return unsigned(s.head_blocks);
    case Phase::kConv2Backward:
      return unsigned(s.conv2_backward_blocks);
    default:
      return unsigned(row.blocks);
  }
}

// `models`: what the kernel takes, State or Pack; `graph_step` goes to those kernels that take it.
void launch(const EntryPoint& entry, const KernelRow& row, dim3 grid, const State& any, const void* models,
            int graph_step, cudaStream_t stream) {
  MNIST_REQUIRE(entry.kernel, "launch: a kernel of phase " << int(row.phase) << " is not for so many models");
  if (row.dynamic > 0)
    MNIST_CHECK(cudaFuncSetAttribute(entry.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, row.dynamic));
  if (row.beside_fc)
    MNIST_CHECK(cudaFuncSetAttribute(entry.kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared));
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(unsigned(row.threads));
  config.dynamicSmemBytes = std::size_t(row.dynamic);
  config.stream = stream;
  cudaLaunchAttribute attributes[2]{};
  config.attrs = attributes;
  if (any.overlap) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (row.cluster > 0) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {unsigned(row.cluster), 1, 1};
  }
  entry.seed_delays();
  cuda::random_delay();
  void* arguments[] = {const_cast<void*>(models), &graph_step};
  MNIST_CHECK(cudaLaunchKernelExC(&config, entry.kernel, arguments));
}

}  // namespace

std::span<const KernelRow> kernel_rows(Precision precision) {
  return precision == Precision::kBf16   ? rows_of_precision<Precision::kBf16>()
         : precision == Precision::kTf32 ? rows_of_precision<Precision::kTf32>()
                                         : rows_of_precision<Precision::kFp32>();
}

bool overlaps(std::span<const KernelRow> rows) {
  cudaFuncAttributes attributes{};
  MNIST_CHECK(cudaFuncGetAttributes(&attributes, row_of(rows, Phase::kUpdate).one.kernel));
  return attributes.ptxVersion >= 90;
}

void launch(const KernelRow& row, const State& state, int graph_step, cudaStream_t stream) {
  launch(row.one, row, grid_of(row, state), state, &state, graph_step, stream);
}

void launch(const KernelRow& row, const Pack& models, int graph_step, cudaStream_t stream) {
  dim3 grid = grid_of(row, models.first);
  grid.z = unsigned(models.models);
  launch(row.several, row, grid, models.first, &models, graph_step, stream);
}

void repack_weights(std::span<const KernelRow> rows, const State& state, cudaStream_t stream) {
  for (const KernelRow& row : rows)
    if (row.phase == Phase::kLargestFc1 || row.phase == Phase::kRepackWeights ||
        (row.phase == Phase::kCopyFc1 && state.wgmma))
      launch(row, state, 0, stream);
}

}  // namespace mnist::fused
