// How a batch is cut up on a GPU of given limits: which kernel runs in each phase, in how many thread blocks.
//
// Host code without CUDA, so that the cuts for every GPU can be tested on a machine without one. A kernel is a row of
// table.cuh, and kernel_rows() of kernels.h gives those of a precision: another variant is another row.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mnist/model.h"

namespace mnist::fused {

// What of a GPU, and of the code that it runs, decides.
struct Limits {
  int multiprocessors = 0;
  int shared = 0;      // bytes of shared memory that a thread block may have
  bool wgmma = false;  // the code was compiled for sm_90a
};

// The six launches of a step, in their order; those in front of a training, which the plan leaves alone; and two more.
enum class Phase {
  kConvForward,
  kFc1Forward,
  kHead,
  kFc1Backward,
  kConv2Backward,
  kUpdate,
  kLargestFc1,      // |fc1.weight|, where weights have scales
  kRepackWeights,   // from the parameters to the kernels' copies of them
  kCopyFc1,         // State::fc1_copy: after steps that did not leave it, too
  kStartBatchNorm,  // bn1 for the first batch
  kFc,              // of small batches, where there are clusters: fc1_forward, head and half of fc1_backward in one
  kUpdateWithFc1,   // and update with the other half
};
inline constexpr std::array kStepPhases = {Phase::kConvForward, Phase::kFc1Forward,    Phase::kHead,
                                           Phase::kFc1Backward, Phase::kConv2Backward, Phase::kUpdate};
inline constexpr std::array kStepPhasesWithFc = {Phase::kConvForward, Phase::kFc, Phase::kConv2Backward,
                                                 Phase::kUpdateWithFc1};

// How conv forward leaves a1 and z2 for conv2's backward; state.h describes each.
enum class Layout { kPixels, kChunks, kFp16Terms };

// A kernel's entry point, and what seeds the random delays of its source file.
struct EntryPoint {
  const void* kernel = nullptr;
  void (*seed_delays)() = nullptr;

  bool operator==(const EntryPoint&) const = default;
};

// A kernel: when a plan takes it, and how it is launched.
struct KernelRow {
  Phase phase;
  int rows = 0;            // that a thread block takes at a time: of conv2's image; samples; or sums of other blocks
  int other_rows = 0;      // the same of a phase's second input: the next batch's moments, head's or z2's sums
  int stages = 0;          // fc1: tiles in shared memory at a time
  int channel_splits = 1;  // conv2 backward: that conv2's channels are cut into, a thread block each
  Layout layout = Layout::kPixels;    // conv forward leaves it, conv2's backward reads it
  bool wgmma = false;                 // conv2 backward: and takes whole images where conv forward took halves
  bool persistent = false;            // conv forward: a thread block may take one piece after the other
  int min_batch = 0;                  // fc1: for batches of at least so many samples,
  int below_sms_per_16_samples = 0;   // or where there are fewer multiprocessors than so many for 16 samples
  int max_batch = 0;                  // fc: for batches of at most so many samples
  bool beside_fc = false;             // leaves shared memory, all of the multiprocessor's, for a block of fc
  int cluster = 0;                    // blocks of a cluster of thread blocks, if there are clusters
  int blocks = 0;                     // thread blocks, where the batch does not decide that; of fc at least
  int threads = 0;                    // of a thread block
  int fixed = 0, dynamic = 0;         // bytes of its shared memory, static and dynamic
  EntryPoint one = {}, several = {};  // for one model, and for several side by side: null if there is no such kernel

  // Of an image, for conv forward and conv2 backward: a thread block each.
  constexpr int pieces() const { return int(kPool1Side) / rows * channel_splits; }
  constexpr int shared() const { return (fixed + 127) / 128 * 128 + dynamic; }  // where the dynamic begins is aligned
  bool operator==(const KernelRow&) const = default;
};

struct Plan {
  std::array<KernelRow, std::size_t(Phase::kUpdateWithFc1) + 1> rows;  // by phase
  bool with_fc = false;  // the batch is one for fc; but what only computes scores takes fc1_forward and head
  int conv_forward_blocks = 0, conv2_backward_blocks = 0;
  int fc1_slices = 0;  // that fc1's inputs are cut into, a thread block each
  int head_blocks = 0, fc_blocks = 0;

  const KernelRow& operator[](Phase phase) const { return rows[std::size_t(phase)]; }
  // The launches of a training step, in their order.
  std::span<const Phase> step() const {
    return with_fc ? std::span<const Phase>(kStepPhasesWithFc) : std::span<const Phase>(kStepPhases);
  }
};

// The plan of a batch: of each phase the first row that suits it and fits; none if a phase has no such row.
// Small batches are cut finer, so that every multiprocessor has work; large ones coarser, so that less is done twice.
std::optional<Plan> plan_for(std::span<const KernelRow> rows, const Limits& gpu, int batch);

// Of a model that trains together with others: how many multiprocessors its steps are planned for. The batch size alone
// decides, so that the bits depend neither on the GPU nor on the other models. 0: it must train alone.
int share_for(std::int64_t batch);
inline constexpr int kLargestOfPack = 2048;  // samples of a batch of such a model

// What decides how the phases go through a batch: kernels, and rounds of their blocks. For Engine::batch_thresholds().
std::vector<std::int64_t> course_of(const Plan& plan, int batch);

// Bytes of shared memory a thread block with which every batch has a plan on a GPU that is otherwise like this one.
int shared_needed(std::span<const KernelRow> rows, Limits gpu);

// Why this GPU cannot run the phases, in a sentence that begins with "it needs"; empty if it can.
std::string why_it_does_not_fit(std::span<const KernelRow> rows, const Limits& gpu);

}  // namespace mnist::fused
