// The kernels of `fused`, a table of rows for each precision, and the launch of any of them.
#pragma once

#include "kernels/fused/state.h"

namespace mnist::fused {

// Of each phase the preferred first.
std::span<const KernelRow> kernel_rows(Precision precision);
// A phase's only row, or its first.
inline const KernelRow& row_of(std::span<const KernelRow> rows, Phase phase) {
  return *std::ranges::find(rows, phase, &KernelRow::phase);
}

// Whether the code that this GPU runs has programmatic dependent launch; code compiled for an older GPU has not.
bool overlaps(std::span<const KernelRow> rows);

// Queues a kernel on one model or on several, in `graph_step` of a graph of steps. Where the state says so it may begin
// before its predecessor has ended: see wait_for_predecessor().
void launch(const KernelRow& row, const State& state, int graph_step, cudaStream_t stream);
void launch(const KernelRow& row, const Pack& models, int graph_step, cudaStream_t stream);

// All kernels' copies of the weights, from the parameters.
void repack_weights(std::span<const KernelRow> rows, const State& state, cudaStream_t stream);

// The rows of one source file, with its entry points, for State or Pack, in KernelRow::one. table.cuh defines it.
template <Precision kPrecision, class Models>
struct KernelTable {
  static std::vector<KernelRow> rows();
};

}  // namespace mnist::fused
