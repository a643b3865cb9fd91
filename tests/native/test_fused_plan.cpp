// How `fused` cuts up a batch on GPUs that are not here: H200, A100, a GPU without enough shared memory, odd ones.
#include <algorithm>

#include "kernels/fused/plan.h"
#include "mnist/model.h"
#include "testing.h"
#ifdef MNIST_WITH_SM80
#include "kernels/fused/kernels.h"
#endif

using namespace mnist;
using namespace mnist::fused;
using namespace testing;

namespace {

using Rows = std::span<const KernelRow>;

// Whether a plan is `rows` of conv forward (more than one piece a block: `many`), fc1 forward and conv2 backward in
// that layout, and its blocks: of conv forward, slices of fc1, head, conv2 backward.
struct Want {
  int batch, conv_rows;
  bool many;
  int fc1_rows, conv2_rows;
  Layout layout;
  int conv_blocks, fc1_slices, head_blocks, conv2_blocks;
};
void check_plan(const Rows& rows, const Limits& gpu, const Want& want, const std::string& what) {
  const auto plan = plan_for(rows, gpu, want.batch);
  const bool right =
      plan && (*plan)[Phase::kConvForward].wgmma == gpu.wgmma && (*plan)[Phase::kConvForward].rows == want.conv_rows &&
      (*plan)[Phase::kConvForward].persistent == want.many && (*plan)[Phase::kFc1Forward].rows == want.fc1_rows &&
      (*plan)[Phase::kConv2Backward].rows == want.conv2_rows && (*plan)[Phase::kConv2Backward].layout == want.layout &&
      plan->conv_forward_blocks == want.conv_blocks && plan->fc1_slices == want.fc1_slices &&
      plan->head_blocks == want.head_blocks && plan->conv2_backward_blocks == want.conv2_blocks;
  report(right, what + ", batch " + std::to_string(want.batch) + ": another plan", __FILE__, __LINE__);
}

// By hand from the rules, for rows that no kernel has: for builds without CUDA.
void test_rules() {
  const KernelRow rows[] = {
      {.phase = Phase::kConvForward, .rows = 7, .dynamic = 100},
      {.phase = Phase::kConvForward, .rows = 14, .dynamic = 100},
      {.phase = Phase::kConvForward, .rows = 14, .persistent = true, .dynamic = 200},
      {.phase = Phase::kFc1Forward, .rows = 64, .min_batch = 129, .dynamic = 300},
      {.phase = Phase::kFc1Forward, .rows = 16, .dynamic = 100},
      {.phase = Phase::kFc1Backward, .rows = 64, .dynamic = 100},
      {.phase = Phase::kConv2Backward, .rows = 14, .dynamic = 300},
      {.phase = Phase::kConv2Backward, .rows = 7, .dynamic = 100},
      {.phase = Phase::kHead, .rows = 8, .other_rows = 4},
      {.phase = Phase::kUpdate, .rows = 20, .other_rows = 40},
  };
  using enum Layout;
  const Limits gpu{10, 300};
  check_plan(rows, gpu, {5, 7, false, 16, 7, kPixels, 10, 10, 1, 10}, "half images");
  check_plan(rows, gpu, {6, 14, false, 16, 14, kPixels, 6, 10, 1, 6}, "whole images");
  check_plan(rows, gpu, {11, 14, true, 16, 14, kPixels, 10, 10, 2, 10}, "one image after the other");
  check_plan(rows, gpu, {128, 14, true, 16, 14, kPixels, 10, 1, 10, 10}, "many samples");
  check_plan(rows, gpu, {129, 14, true, 64, 14, kPixels, 10, 2, 10, 10}, "more samples");
  check_plan(rows, {10, 299}, {6, 14, false, 16, 7, kPixels, 6, 10, 1, 10}, "a byte too few");
  CHECK(shared_needed(rows, gpu) == 200 && !plan_for(rows, {10, 199}, 11));
  CHECK(course_of(*plan_for(rows, gpu, 300), 300) == course_of(*plan_for(rows, gpu, 301), 301));
  CHECK(course_of(*plan_for(rows, gpu, 10), 10) != course_of(*plan_for(rows, gpu, 11), 11));
}

#ifdef MNIST_WITH_SM80

// Bytes of shared memory a thread block: of RTX 30, 40 and 50, A10, L4 and L40S; of an A100; of an H200.
constexpr int kSmall = 99 * 1024, kA100 = 163 * 1024, kHopper = 227 * 1024;
const Rows kBf16 = kernel_rows(Precision::kBf16), kTf32 = kernel_rows(Precision::kTf32),
           kFp32 = kernel_rows(Precision::kFp32);
const struct {
  Precision precision;
  Rows rows;
} kAll[] = {{Precision::kBf16, kBf16}, {Precision::kTf32, kTf32}, {Precision::kFp32, kFp32}};

// By hand from the rules: half an image a block up to half as many images as multiprocessors, whole ones up to as many.
void test_h200() {
  const Limits h200{132, kHopper, true};
  using enum Layout;
  check_plan(kBf16, h200, {1, 7, false, 16, 14, kChunks, 2, 50, 1, 1}, "bf16");
  check_plan(kBf16, h200, {2, 7, false, 16, 14, kChunks, 4, 50, 1, 2}, "bf16");
  check_plan(kBf16, h200, {66, 7, false, 16, 14, kChunks, 132, 26, 9, 66}, "bf16");
  check_plan(kBf16, h200, {67, 14, false, 16, 14, kChunks, 67, 26, 9, 67}, "bf16");
  check_plan(kBf16, h200, {128, 14, false, 16, 14, kChunks, 128, 14, 20, 128}, "bf16");
  check_plan(kBf16, h200, {129, 14, false, 64, 14, kChunks, 129, 34, 30, 129}, "bf16");
  check_plan(kBf16, h200, {132, 14, false, 64, 14, kChunks, 132, 34, 30, 132}, "bf16");
  check_plan(kBf16, h200, {133, 14, true, 64, 14, kChunks, 132, 34, 30, 132}, "bf16");
  check_plan(kBf16, h200, {1024, 14, true, 64, 14, kChunks, 132, 8, 128, 132}, "bf16");
  check_plan(kBf16, h200, {2048, 14, true, 64, 14, kChunks, 132, 4, 132, 132}, "bf16");
  check_plan(kBf16, h200, {2049, 14, true, 128, 14, kChunks, 132, 6, 132, 132}, "bf16");
  check_plan(kBf16, h200, {8448, 14, true, 128, 14, kChunks, 132, 2, 132, 132}, "bf16");
  check_plan(kBf16, h200, {8449, 14, true, 128, 14, kChunks, 132, 1, 132, 132}, "bf16");
  for (const Rows& rows : {kBf16, kTf32, kFp32})
    for (const int batch : {256, 257, 4096})
      CHECK((*plan_for(rows, h200, batch))[Phase::kFc1Forward].wgmma == (batch > 256));
  check_plan(kFp32, h200, {66, 7, false, 16, 7, kFp16Terms, 132, 26, 9, 132}, "parts");
  check_plan(kFp32, h200, {1024, 14, true, 64, 14, kFp16Terms, 132, 8, 128, 132}, "parts");
}

void test_fc1_backward() {
  const auto by_wgmma = [](const Rows& rows, const Limits& gpu, int batch) {
    return plan_for(rows, gpu, batch).value()[Phase::kFc1Backward].wgmma;
  };
  for (const Rows& rows : {kBf16, kTf32, kFp32}) {
    CHECK(!by_wgmma(rows, {132, kHopper, true}, 128) && by_wgmma(rows, {132, kHopper, true}, 129));
    CHECK(!by_wgmma(rows, {132, kHopper, false}, 129));
  }
}

// Its 64 blocks, or as many more as the batch needs, run at the same time, each with two samples at most. share_for()
// gives a model of several fewer multiprocessors than that.
void test_fc() {
  const auto with_fc = [](const Rows& rows, const Limits& gpu, int batch) {
    return plan_for(rows, gpu, batch).value().with_fc;
  };
  for (const Rows& rows : {kBf16, kTf32}) {
    CHECK(with_fc(rows, {132, kHopper, true}, 1) && with_fc(rows, {132, kHopper, true}, 208));
    CHECK(!with_fc(rows, {132, kHopper, true}, 209) && !with_fc(rows, {63, kHopper, true}, 1));
    CHECK(with_fc(rows, {64, kHopper, true}, 128) && !with_fc(rows, {64, kHopper, true}, 129));
    for (const auto& [batch, blocks] : {std::pair{1, 64}, {128, 64}, {129, 72}, {145, 80}, {208, 104}})
      CHECK(plan_for(rows, {132, kHopper, true}, batch).value().fc_blocks == blocks);
    CHECK(with_fc(rows, {192, kHopper, true}, 64) && !with_fc(rows, {193, kHopper, true}, 64));
    CHECK(!with_fc(rows, {132, kHopper, false}, 64));
    // A block beside one of conv_forward has to find room in a multiprocessor's 228 KiB, 1 of which each takes, too.
    const int fc = std::ranges::find(rows, Phase::kFc, &KernelRow::phase)->shared();
    for (const KernelRow& row : rows)
      CHECK(row.phase != Phase::kConvForward || !row.beside_fc || row.shared() + fc + 2 * 1024 <= 228 * 1024);
  }
  CHECK(!with_fc(kFp32, {132, kHopper, true}, 64));
}

// A share of an H200, for one of several models.
void test_share() {
  using enum Layout;
  const auto share = [](int multiprocessors) { return Limits{multiprocessors, kHopper, true}; };
  check_plan(kBf16, share(8), {64, 14, true, 64, 14, kChunks, 8, 8, 8, 8}, "a share of 8");
  check_plan(kBf16, share(15), {64, 14, true, 64, 14, kChunks, 15, 14, 8, 15}, "a share of 15");
  check_plan(kBf16, share(16), {64, 14, true, 16, 14, kChunks, 16, 4, 8, 16}, "a share of 16");
  check_plan(kBf16, share(33), {256, 14, true, 64, 14, kChunks, 33, 8, 32, 33}, "a share of 33");
  check_plan(kFp32, share(8), {64, 14, true, 64, 14, kFp16Terms, 8, 8, 8, 8}, "a share of 8");
}

// Whole images of conv2's backward fit there in 16 bits; of floats a block has half an image and half of conv2's
// channels.
void test_a100() {
  const Limits a100{108, kA100, false};
  for (const auto& [precision, rows] : kAll) {
    const std::string what = to_string(precision);
    const bool fp32 = precision == Precision::kFp32;
    const int of_image = fp32 ? 7 : 14;
    check_plan(rows, a100, {54, 7, false, 16, 7, Layout::kPixels, 108, 26, 7, 108}, what);
    check_plan(rows, a100, {55, 14, false, 16, of_image, Layout::kPixels, 55, 26, 7, fp32 ? 108 : 55}, what);
    check_plan(rows, a100, {109, 14, true, 16, of_image, Layout::kPixels, 108, 14, 14, 108}, what);
    check_plan(rows, a100, {4096, 14, true, 64, of_image, Layout::kPixels, 108, 1, 108, 108}, what);
  }
}

// There fc1 has fewer stages. In 16 bits the rest fits as it is; of floats a block of conv forward takes half an image
// after the other, and one of conv2 backward half of an image and of conv2's channels.
void test_small_gpus() {
  using enum Layout;
  const auto check = [](const Rows& rows, int sms, const Want& want, int parts) {
    const Limits gpu{sms, kSmall, false};
    check_plan(rows, gpu, want, "99 KiB, " + std::to_string(sms) + " multiprocessors");
    const auto plan = plan_for(rows, gpu, want.batch), roomy = plan_for(rows, {sms, kA100, false}, want.batch);
    CHECK(plan && (*plan)[Phase::kFc1Forward].stages == (want.fc1_rows == 16 ? 4 : 3) &&
          (*plan)[Phase::kFc1Backward].stages == 2);
    CHECK(plan && (*plan)[Phase::kConv2Backward].channel_splits == parts);
    CHECK(roomy && (*roomy)[Phase::kFc1Forward].stages == 5 && (*roomy)[Phase::kFc1Backward].stages == 3);
    CHECK(roomy && (*roomy)[Phase::kConv2Backward].channel_splits == parts);
  };
  const auto bf16 = [&](int sms, const Want& want) { check(kBf16, sms, want, 1); };
  bf16(24, {12, 7, false, 16, 7, kPixels, 24, 20, 4, 24});
  bf16(24, {13, 14, false, 16, 7, kPixels, 13, 20, 4, 24});
  bf16(24, {25, 14, true, 16, 7, kPixels, 24, 12, 4, 24});
  bf16(24, {256, 14, true, 64, 7, kPixels, 24, 6, 24, 24});
  bf16(128, {64, 7, false, 16, 7, kPixels, 128, 26, 24, 128});
  bf16(128, {1024, 14, true, 64, 7, kPixels, 128, 8, 128, 128});
  bf16(142, {71, 7, false, 16, 7, kPixels, 142, 26, 12, 142});
  bf16(170, {170, 14, false, 64, 7, kPixels, 170, 50, 22, 170});
  const auto fp32 = [&](int sms, const Want& want) { check(kFp32, sms, want, 2); };
  fp32(24, {1, 7, true, 16, 7, kPixels, 2, 20, 1, 4});
  fp32(24, {256, 7, true, 64, 7, kPixels, 24, 6, 24, 24});
  fp32(58, {58, 7, true, 16, 7, kPixels, 58, 14, 8, 56});  // 58 is no multiple of 4
  fp32(170, {170, 7, true, 64, 7, kPixels, 170, 50, 22, 168});
}

// Every batch on every GPU that has room: blocks enough for the grid that the kernels' loops take, and no more.
void test_any_gpu() {
  for (const auto& [precision, rows] : kAll)
    for (const auto& [shared, wgmma] : {std::pair{kSmall, false}, {kA100, false}, {kHopper, false}, {kHopper, true}})
      for (const int sms : {2, 3, 4, 24, 28, 58, 64, 72, 108, 132, 142, 148, 170})
        for (int batch = 1; batch < 700; ++batch) {
          if (shared == kSmall && sms < 4) continue;  // of floats an image is cut into four there
          const auto plan = plan_for(rows, {sms, shared, wgmma}, batch);
          const std::string what = std::string(to_string(precision)) + ", " + std::to_string(shared) + " bytes, " +
                                   std::to_string(sms) + " multiprocessors, batch " + std::to_string(batch);
          if (!plan) {
            report(false, what + ": no plan", __FILE__, __LINE__);
            continue;
          }
          const KernelRow &forward = (*plan)[Phase::kConvForward], &backward = (*plan)[Phase::kConv2Backward];
          const int of_image = kPool1Side / forward.rows, pieces = of_image * batch;
          const bool covered = forward.persistent
                                   ? plan->conv_forward_blocks == of_image * std::min(batch, sms / of_image)
                                   : plan->conv_forward_blocks == pieces && pieces <= sms;
          const bool alike = forward.layout == backward.layout && (backward.wgmma || backward.rows <= forward.rows);
          const int back = plan->conv2_backward_blocks;
          const bool even =
              back % (kPool1Side / backward.rows * backward.channel_splits) == 0 && 0 < back && back <= sms;
          const int tiles_of_samples =
              (batch + (*plan)[Phase::kFc1Forward].rows - 1) / (*plan)[Phase::kFc1Forward].rows;
          const bool compiled = wgmma || !(*plan)[Phase::kFc1Forward].wgmma;
          const bool sliced = plan->fc1_slices == 1 || tiles_of_samples * plan->fc1_slices <= sms;
          const bool head = 1 <= plan->head_blocks && plan->head_blocks <= sms;
          const bool models = batch > sms && batch <= kLargestOfPack && !plan->with_fc;  // a fleet's
          const auto can_run = [&](Phase phase) {
            const KernelRow& row = (*plan)[phase];
            return row.threads > 0 && row.one.kernel && (row.several.kernel || !models);
          };
          const bool launched = std::ranges::all_of(kStepPhases, can_run) && std::ranges::all_of(plan->step(), can_run);
          const int fc = plan->fc_blocks;  // each takes two samples at most
          const bool clusters =
              !plan->with_fc || (batch <= 2 * fc && fc <= sms && fc % (*plan)[Phase::kFc].cluster == 0);
          if (!(covered && alike && even && compiled && sliced && head && clusters && launched))
            report(false, what, __FILE__, __LINE__);
        }
  CHECK(checks > 0);
}

void test_what_does_not_fit() {
  for (const auto& [precision, rows] : kAll) {
    for (const int sms : {4, 24, 28, 58, 128, 142, 170}) CHECK(why_it_does_not_fit(rows, {sms, kSmall}).empty());
    CHECK(why_it_does_not_fit(rows, {108, kA100}).empty());
    CHECK(why_it_does_not_fit(rows, {132, kHopper, true}).empty());
    const int needed = shared_needed(rows, {108, 0});
    for (int batch = 1; batch < 300; ++batch) CHECK(plan_for(rows, {108, needed}, batch).has_value());
    CHECK(!why_it_does_not_fit(rows, {108, needed - 1}).empty());
  }
  CHECK(why_it_does_not_fit(kBf16, {40, 64 * 1024}) ==
        "it needs 99 KiB of shared memory a block and this GPU has 64 KiB; engine cudnn does with less");
  CHECK(why_it_does_not_fit(kFp32, {40, 64 * 1024}) ==
        "it needs 98 KiB of shared memory a block and this GPU has 64 KiB; engine cudnn does with less");
  CHECK(why_it_does_not_fit(kFp32, {3, kSmall}) ==
        "it needs 144 KiB of shared memory a block and this GPU has 99 KiB; engine cudnn does with less");
  CHECK(!plan_for(kBf16, {40, 64 * 1024}, 1));
  for (const int sms : {132, 5000}) {  // by batches of more images than multiprocessors, or of more than a row is for
    CHECK(shared_needed(kBf16, {sms, 0, true}) == 128 + 201216);
    CHECK(shared_needed(kFp32, {sms, 0, true}) == 1280 + 222976);
  }
}

#endif

}  // namespace

int main() {
  test_rules();
#ifdef MNIST_WITH_SM80
  test_h200();
  test_fc1_backward();
  test_fc();
  test_share();
  test_a100();
  test_small_gpus();
  test_any_gpu();
  test_what_does_not_fit();
#endif
  return finish();
}
