// The cuts of a batch, by the rows of its kernels.
#include "kernels/fused/plan.h"

#include <limits>
#include <ranges>

#include "mnist/thresholds.h"

namespace mnist::fused {
namespace {

constexpr int kCells = kPool2Side * kPool2Side;  // of an image of fc1's inputs
constexpr int kLeastCells = 2;                   // of a slice of them

constexpr int ceil_div(int a, int b) { return (a - 1) / b + 1; }  // a >= 1

}  // namespace

std::optional<Plan> plan_for(std::span<const KernelRow> rows, const Limits& gpu, int batch) {
  const int sms = gpu.multiprocessors;
  Plan plan{};
  bool complete = true;
  // The first row of a phase that fits and suits.
  const auto take = [&](Phase phase, auto suits) -> const KernelRow& {
    const auto found = std::ranges::find_if(
        rows, [&](const KernelRow& row) { return row.phase == phase && row.shared() <= gpu.shared && suits(row); });
    if (found == rows.end())
      complete = false;
    else
      plan.rows[std::size_t(phase)] = *found;
    return plan[phase];
  };
  const auto any = [](const KernelRow&) { return true; };
  const auto& conv_forward = take(Phase::kConvForward, [&](const KernelRow& row) {
    return row.wgmma == gpu.wgmma && (row.persistent || batch <= sms / row.pieces());
  });
  const auto& conv2_backward = take(Phase::kConv2Backward, [&](const KernelRow& row) {
    return row.pieces() <= sms && row.layout == conv_forward.layout && (row.wgmma || row.rows <= conv_forward.rows);
  });
  const auto of_fc1 = [&](const KernelRow& row) {
    const bool many = batch >= row.min_batch || sms < row.below_sms_per_16_samples * ceil_div(batch, 16);
    return many && (gpu.wgmma || !row.wgmma);
  };
  const auto& fc1_forward = take(Phase::kFc1Forward, of_fc1);
  take(Phase::kFc1Backward, of_fc1);
  const auto& head = take(Phase::kHead, any);
  take(Phase::kUpdate, any);
  if (!complete) return {};
  // fc is for one model. share_for() gives so few samples fewer multiprocessors than fc has blocks.
  const auto fc_blocks = [&](const KernelRow& row) {
    return std::max(row.blocks, row.cluster * ceil_div(batch, row.rows));
  };
  const auto& fc = take(Phase::kFc, [&](const KernelRow& row) {
    return gpu.wgmma && sms <= row.other_rows && batch <= row.max_batch && fc_blocks(row) <= sms;
  });
  take(Phase::kUpdateWithFc1, any);
  plan.with_fc = complete;
  if (complete) plan.fc_blocks = fc_blocks(fc);

  // Pieces of all images, as far as the multiprocessors go; a block takes whole images' worth of them.
  const auto blocks = [&](const KernelRow& row) { return row.pieces() * std::min(batch, sms / row.pieces()); };
  plan.conv_forward_blocks = blocks(conv_forward);
  plan.conv2_backward_blocks = blocks(conv2_backward);
  // A pair of slices, one a half of the channels, for every few cells; a single one where there are many samples. Hence
  // fc1_slices * tiles_of_samples is at most sms or fc1_slices is 1.
  const int tiles_of_samples = ceil_div(batch, fc1_forward.rows), pairs = sms / (2 * tiles_of_samples);
  plan.fc1_slices = pairs == 0 ? 1 : 2 * ceil_div(kCells, std::max(kLeastCells, ceil_div(kCells, pairs)));
  // A sample a warp; fewer than a block has warps where fc1 leaves multiprocessors free, on which these blocks start
  // early.
  const int free = sms - tiles_of_samples * plan.fc1_slices;
  plan.head_blocks = std::min(sms, std::max(ceil_div(batch, head.rows), std::min(ceil_div(batch, 2), free)));
  return plan;
}

int share_for(std::int64_t batch) {
  constexpr int kSamples = 16;  // for each multiprocessor
  if (batch < 1 || batch > kLargestOfPack) return 0;
  const int share = std::max(2, ceil_div(int(batch), kSamples));
  return share < batch ? share : 0;
}

std::vector<std::int64_t> course_of(const Plan& plan, int batch) {
  std::vector<std::int64_t> course{plan.fc1_slices};
  for (const KernelRow& row : plan.rows) {
    course.push_back(std::int64_t(reinterpret_cast<std::intptr_t>(row.one.kernel)));
    course.push_back(row.rows);
  }
  const auto turns = [&](std::int64_t items, int at_once) { course.push_back(rounds(items, at_once)); };
  const KernelRow &head = plan[Phase::kHead], &update = plan[Phase::kUpdate];
  turns(std::int64_t(plan[Phase::kConvForward].pieces()) * batch, plan.conv_forward_blocks);
  turns(batch, plan.head_blocks * head.rows);
  turns(batch, plan.head_blocks * head.other_rows);
  turns(batch, plan[Phase::kFc1Backward].rows);
  turns(std::int64_t(plan[Phase::kConv2Backward].pieces()) * batch, plan.conv2_backward_blocks);
  turns(plan.conv2_backward_blocks, update.rows);
  turns(plan.with_fc ? plan.fc_blocks : plan.head_blocks, update.other_rows);
  if (plan.with_fc) turns(batch, plan.fc_blocks), course.push_back(plan.fc_blocks);
  return course;
}

int shared_needed(std::span<const KernelRow> rows, Limits gpu) {
  // Of images more than multiprocessors, and of as many samples as any row is for, all rows are chosen that ever are.
  int most = gpu.multiprocessors + 1;
  std::vector<int> sizes;
  for (const KernelRow& row : rows) {
    most = std::max(most, row.min_batch);
    sizes.push_back(row.shared());
  }
  std::ranges::sort(sizes);
  const auto batches = std::views::iota(1, most + 1);
  const auto enough = std::ranges::find_if(sizes, [&](int size) {
    gpu.shared = size;
    return std::ranges::all_of(batches, [&](int batch) { return plan_for(rows, gpu, batch).has_value(); });
  });
  return enough == sizes.end() ? std::numeric_limits<int>::max() : *enough;
}

std::string why_it_does_not_fit(std::span<const KernelRow> rows, const Limits& gpu) {
  const int needed = shared_needed(rows, gpu);
  if (needed <= gpu.shared) return "";
  return "it needs " + std::to_string((needed + 1023) / 1024) + " KiB of shared memory a block and this GPU has " +
         std::to_string(gpu.shared / 1024) + " KiB; engine cudnn does with less";
}

}  // namespace mnist::fused
