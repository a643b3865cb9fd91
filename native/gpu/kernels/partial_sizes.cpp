// How much scratch the ops take, by their sizes; apart from the kernels, so that a judged file needs none of ours.
#include <algorithm>

#include "kernels/batch_norm/naive_ops.h"
#include "kernels/chunks.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/conv2d/naive_ops.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/slices.h"
#include "mnist/ceil_div.h"
#include "mnist/model.h"

namespace mnist::kernels {
namespace {

constexpr std::int64_t kWantedBlocks = 256;  // two on every multiprocessor: one wave, so no tail effect
constexpr std::int64_t kMaxSlices = 64;      // each is written and read once more

}  // namespace

LinearSlices linear_slices(const LinearTile& tile, std::int64_t rows, std::int64_t columns, std::int64_t terms) {
  const std::int64_t wanted = kWantedBlocks / (ceil_div(rows, tile.rows) * ceil_div(columns, tile.columns));
  const std::int64_t depth =
      ceil_div(ceil_div(terms, kLinearSliceUnit), std::clamp(wanted, std::int64_t(1), kMaxSlices));
  return {int(ceil_div(terms, depth * kLinearSliceUnit)), int(depth * kLinearSliceUnit)};
}

std::int64_t linear_partial_size(std::int64_t batch, int in, int out) {
  int count = 1;
  for (const auto& tile : {kLinearTile, kLinearRegisterTile, kLinearProductTile})
    count = std::max(count, linear_slices(tile, batch, out, in).count);
  return count * batch * out;
}

std::int64_t linear_backward_partial_size(std::int64_t batch, int in, int out) {
  return std::int64_t(linear_slices(kLinearProductTile, out, in, batch).count) * in * out;
}

std::int64_t conv2d_backward_weight_partial_size(std::int64_t batch, int in, int out) {
  const std::int64_t count = std::int64_t(in) * out * kTaps;
  return std::max(naive::conv2d_partial_size(batch, in, out),
                  std::max(std::min({batch * count, kBackwardWeightBlocks * count, kBackwardWeightPartial}), count));
}

namespace naive {

std::int64_t conv2d_partial_size(std::int64_t batch, int in, int out) { return chunk_count(batch) * in * out * kTaps; }

std::int64_t batch_norm_partial_size(std::int64_t batch, int channels) { return 2 * chunk_count(batch) * channels; }

}  // namespace naive

}  // namespace mnist::kernels
