// The sums of a step over ranks: what each leaves to the others, and what comes of it.
//
// A rank computes its share of the batch by the kernels of one GPU. After conv_forward, after fc1_backward and after
// conv2_backward it adds up what its thread blocks left, gives that to all ranks, and adds up what these gave, in their
// order. The next phases read the totals where otherwise they read a row for each block: here there are one or two.
#pragma once

#include "kernels/fused/state.h"

namespace mnist::fused {

inline constexpr int kMostPeers = 16;            // ranks that write to each other's memory
inline constexpr int kMostExchangeBlocks = 256;  // of a launch
inline constexpr int kRoutedTapValues = kConv1Channels * kRoutedTapColumns;

// What a rank gives. Of z2 sums of z and of its squares by channel, of dy2 sums of dy2 and of dy2 * xhat.
struct Z2Sums {
  double sums[2 * kConv2Channels];
};
struct Dy2Sums {
  double sums[2 * kConv2Channels];
  double moments[kMoments];  // of the next batch's pixels
  float head[kHeadValues];
};
struct alignas(16) GradientSums {
  float conv2[kConv2Values];
  float routed_taps[kRoutedTapValues];
  float fc1[kHidden * kFeatures];
};

// What comes of the parts of all ranks, as the phases read it; a double is two floats, the second what the first lost.
struct Totals {
  static constexpr int kZ2Rows = 2;
  alignas(16) float z2_sums[kZ2Rows * 2 * kConv2Channels];
  alignas(16) float dy2_sums[2 * kFeatures];  // in the first two cells; the others stay 0
  alignas(16) double moment_sums[kMoments];
  alignas(16) float head_sums[kHeadValues];
  alignas(16) float conv2_sums[kConv2Values];
  alignas(16) float routed_tap_sums[kRoutedTapValues];
  float zero;
};

// Where the parts of a launch lie. Either each block writes its piece of this rank's part to the memory of all ranks
// and waits for their same blocks; or the part is left in one place, someone else brings those of all ranks, and a
// second launch adds them up.
struct RankSums {
  int rank = 0, size = 0;
  bool counts = true;  // false: this rank has no image of the batch, and its part is 0
  bool gives = true, takes = true;
  int targets = 0;
  void* to[kMostPeers] = {};
  const void* all = nullptr;               // (size) parts, in this rank's memory
  std::uint32_t* rounds[kMostPeers] = {};  // of each rank (kMostExchangeBlocks, kMostPeers): how often a block has been
                                           // given that rank's piece; null: nobody is waited for
};

void begin_exchanges();  // before the first one, outside of a graph
// `from` as the phases have left it: z2_sums; dy2_sums, moment_sums and head_sums.
void exchange_z2(Totals* to, const State& from, const RankSums& parts, cudaStream_t stream);
void exchange_dy2(Totals* to, const State& from, const RankSums& parts, cudaStream_t stream);
// conv2_sums, routed_tap_sums, and fc1.weight's gradient in `gradients`; then SGD of fc1.weight and its copy.
void exchange_gradients(Precision precision, Totals* to, const State& from, const RankSums& parts, cudaStream_t stream);

}  // namespace mnist::fused
