// The cuts of a batch, by the sizes in which the kernels come.
#include "kernels/fused/plan.h"

#include <algorithm>
#include <limits>
#include <ranges>
#include <vector>

#include "mnist/model.h"

namespace mnist::fused {
namespace {

constexpr int kCells = kPool2Side * kPool2Side;  // of an image of fc1's inputs
constexpr int kLeastCells = 2;                   // of a slice of them

constexpr int ceil_div(int a, int b) { return (a - 1) / b + 1; }  // a >= 1

}  // namespace

std::optional<Plan> plan_for(std::span<const Tile> tiles, const Limits& gpu, int batch) {
  const int sms = gpu.multiprocessors;
  const auto first = [&](Phase phase, auto suits) {
    return std::ranges::find_if(
        tiles, [&](const Tile& tile) { return tile.phase == phase && tile.shared() <= gpu.shared && suits(tile); });
  };
  const auto any = [](const Tile&) { return true; };
  for (const Phase phase : {Phase::kHead, Phase::kUpdate})
    if (first(phase, any) == tiles.end()) return {};

  // Pieces of all images, as far as the multiprocessors go; a block takes whole images' worth of them.
  const auto pieces = [](const Tile& tile) { return kPool1Side / tile.rows * tile.parts; };
  const auto blocks = [&](const Tile& tile) { return pieces(tile) * std::min(batch, sms / pieces(tile)); };

  const auto conv_forward = first(Phase::kConvForward, [&](const Tile& tile) {
    return tile.wgmma == gpu.wgmma && (tile.many || batch <= sms / pieces(tile));
  });
  if (conv_forward == tiles.end()) return {};
  const auto conv2_backward = first(Phase::kConv2Backward, [&](const Tile& tile) {
    return pieces(tile) <= sms && tile.layout == conv_forward->layout && tile.rows <= conv_forward->rows;
  });
  const auto of_fc1 = [&](const Tile& tile) {
    return (gpu.wgmma || !tile.wgmma) && (batch > tile.more_than || sms < tile.fewer_than * ceil_div(batch, 16));
  };
  const auto fc1_forward = first(Phase::kFc1Forward, of_fc1), fc1_backward = first(Phase::kFc1Backward, of_fc1);
  for (const auto& found : {conv2_backward, fc1_forward, fc1_backward})
    if (found == tiles.end()) return {};

  Plan plan{*conv_forward,   *fc1_forward,          *fc1_backward,
            *conv2_backward, blocks(*conv_forward), blocks(*conv2_backward)};
  // A pair of slices, one a half of the channels, for every few cells; a single one where there are many samples. Hence
  // fc1_slices * tiles_of_samples is at most sms or fc1_slices is 1.
  const int tiles_of_samples = ceil_div(batch, plan.fc1_forward.rows), pairs = sms / (2 * tiles_of_samples);
  plan.fc1_slices = pairs == 0 ? 1 : 2 * ceil_div(kCells, std::max(kLeastCells, ceil_div(kCells, pairs)));
  // Eight samples a block, a warp each; fewer where fc1 leaves multiprocessors free, on which these blocks start early.
  const int free = sms - tiles_of_samples * plan.fc1_slices;
  plan.head_blocks = std::min(sms, std::max(ceil_div(batch, 8), std::min(ceil_div(batch, 2), free)));
  return plan;
}

int shared_needed(std::span<const Tile> tiles, Limits gpu) {
  // Of images more than multiprocessors, and of more samples than a row wants, all rows are chosen that ever are.
  int most = gpu.multiprocessors + 1;
  std::vector<int> sizes;
  for (const Tile& tile : tiles) {
    most = std::max(most, tile.more_than + 1);
    sizes.push_back(tile.shared());
  }
  std::ranges::sort(sizes);
  const auto batches = std::views::iota(1, most + 1);
  const auto enough = std::ranges::find_if(sizes, [&](int size) {
    gpu.shared = size;
    return std::ranges::all_of(batches, [&](int batch) { return plan_for(tiles, gpu, batch).has_value(); });
  });
  return enough == sizes.end() ? std::numeric_limits<int>::max() : *enough;
}

std::string why_it_does_not_fit(std::span<const Tile> tiles, const Limits& gpu) {
  const int needed = shared_needed(tiles, gpu);
  if (needed <= gpu.shared) return "";
  return "it needs " + std::to_string((needed + 1023) / 1024) + " KiB of shared memory a block and this GPU has " +
         std::to_string(gpu.shared / 1024) + " KiB; engine cudnn does with less";
}

}  // namespace mnist::fused
