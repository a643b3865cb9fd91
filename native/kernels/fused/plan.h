// How a batch is cut up on a GPU of given limits: which size of each phase's kernel runs, in how many thread blocks.
//
// Host code without CUDA, so that the cuts for every GPU can be tested on a machine without one. The sizes in which the
// kernels come are rows of a table, which Launch<>::tiles() gives for each precision: a smaller size is another row.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace mnist::fused {

// What of a GPU, and of the code that it runs, decides.
struct Limits {
  int multiprocessors = 0;
  int shared = 0;      // bytes of shared memory that a thread block may have
  bool wgmma = false;  // the code was compiled for sm_90a
};

// The six launches of a step, in their order.
enum class Phase { kConvForward, kFc1Forward, kHead, kFc1Backward, kConv2Backward, kUpdate };

// How conv forward leaves a1 and z2 for conv2's backward; state.h describes each.
enum class Layout { kPixels, kChunks, kFp16Terms };

// One size in which a phase comes.
struct Tile {
  Phase phase;
  int rows = 0;                     // that a thread block takes at a time: of conv2's image, or for fc1 samples
  int declared = 0, dynamic = 0;    // bytes of shared memory of a thread block, static and dynamic
  bool wgmma = false;               // of conv forward, whose layout decides conv2 backward's; or of fc1
  Layout layout = Layout::kPixels;  // conv forward leaves it, conv2's backward reads it
  bool many = false;                // conv forward: a thread block may take one piece after the other
  int more_than = 0;                // fc1: for batches of more samples,
  int fewer_than = 0;               // or where there are fewer multiprocessors than so many for 16 samples
  int stages = 0;                   // fc1: tiles in shared memory at a time
  int parts = 1;                    // conv2 backward: that conv2's channels are cut into, a thread block each
  const void* kernel = nullptr;     // for who asks the driver about it

  constexpr int shared() const {
    return (declared + 127) / 128 * 128 + dynamic;
  }  // where the dynamic begins is aligned
};

struct Plan {
  Tile conv_forward, fc1_forward, fc1_backward, conv2_backward;
  int conv_forward_blocks = 0, conv2_backward_blocks = 0;
  int fc1_slices = 0;  // that fc1's inputs are cut into, a thread block each
  int head_blocks = 0;
};

// The plan of a batch: of each phase the first row that suits it and fits; none if a phase has no such row.
// Small batches are cut finer, so that every multiprocessor has work; large ones coarser, so that less is done twice.
std::optional<Plan> plan_for(std::span<const Tile> tiles, const Limits& gpu, int batch);

// Bytes of shared memory a thread block with which every batch has a plan on a GPU that is otherwise like this one.
int shared_needed(std::span<const Tile> tiles, Limits gpu);

// Why this GPU cannot run the phases, in a sentence that begins with "it needs"; empty if it can.
std::string why_it_does_not_fit(std::span<const Tile> tiles, const Limits& gpu);

}  // namespace mnist::fused
