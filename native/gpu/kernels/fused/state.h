// What the fused kernels share in device memory, and the launchers of what surrounds a step.
//
// One step is conv_forward -> fc1_forward -> head -> fc1_backward -> conv2_backward -> update, each a launch; in small
// batches fc takes the place of the three in the middle (fc.cuh). A boundary between launches is a barrier of the whole
// grid, and there is one where every batch-wide sum is needed. docs/fused.md has the derivation.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/fused/plan.h"
#include "mnist/engine.h"

namespace mnist::fused {

inline constexpr int kMoments = 54;  // of an image: 9 sums of taps, 45 sums of products of two taps
inline constexpr int kCells1 = 196;  // 14 x 14 outputs of pool1 = pixels of conv2
inline constexpr int kCells2 = 49;   // 7 x 7 outputs of pool2
inline constexpr int kConv2Values = kConv2Channels * kConv1Channels * kTaps;  // 18432
inline constexpr int kHeadValues =
    kClasses * kHidden + kHidden + kClasses + 2;  // d fc2.weight, fc1.bias, fc2.bias, loss, hits
inline constexpr int kRoute1Words = kPool1Side * 2 * 2 * 32;
inline constexpr int kRoutedTapColumns = 16;    // of a channel's routed sums: 9 taps, their total, 6 unused
inline constexpr int kConv1Blocks = 4;          // of update, for conv1's channels
inline constexpr int kSamplesPerDhTile = 128;   // samples of a tile of fc1_backward by wgmma
inline constexpr int kGradientWarps = 8;        // of a block of fc1_backward, which make dy2
inline constexpr int kFc1Columns = 32;          // of fc1.weight, that a block of fc1_backward owns:
inline constexpr int kFc1Groups = 2 * kCells2;  // half of the channels of a cell

// fc, which takes the place of fc1_forward, head and half of fc1_backward in small batches: clusters at least, blocks
// of one and threads of these, samples that a cluster takes at most; and samples of all at most. (With so many, a step
// is 1 us faster than by six kernels. With more, images fill the GPU during conv2_backward, and update's weight
// gradient has to wait.)
inline constexpr int kFcLeastClusters = 8, kFcRanks = 8, kFcThreads = 256, kFcRows = 16;
inline constexpr int kFcMostSamples = 13 * kFcRows;

// State::trace is (steps, kTracePhases, kTracePoints, kTraceBlocks): x is the time in ns, or 0 where no block came by;
// y the clock of a multiprocessor, and its number above kClockBits.
inline constexpr int kTracePhases = 6, kTracePoints = 64, kTraceBlocks = 264, kClockBits = 48;

// Where conv2_backward works by wgmma, a1 and z2 lie as its shared memory has them: (B, chunk of 8
// channels, 14, 16 slots, 8), slots as in layout.cuh, those of padding 0. And update leaves conv2.weight for its
// dgrad: for each filter row and chunk of conv2's channels a piece of zeros, column taps 2, 1 and 0 (32 of conv1's
// channels by 8 each), and zeros behind the last.
inline constexpr int kChunkedRow = 16 * 16, kChunkedImage = kPool1Side * kChunkedRow;  // bytes, of a chunk
struct DgradFilter {
  static constexpr int kTapBytes = kConv1Channels * 16, kZeroBytes = kTapBytes + 16;  // pieces in different banks
  static constexpr int kPieceBytes = kZeroBytes + 3 * kTapBytes, kChunks = kConv2Channels / 8;
  static constexpr int kBytes = 3 * kChunks * kPieceBytes + kTapBytes;
};

// In fp32 a chunk of z2 has 4 channels, and a1 comes as fp16 terms (see scales.cuh): (B, term, chunk of 8 channels,
// 14, 16 columns, 8), columns from -1 on, divided by a1_scale(). For mma.sync its 32 T are 32 big terms and 32 small
// ones; so are each 32 T of conv2.weight there.

// State::scales, of what is divided by a scale: the operands of fp32's terms, and in tf32 all of scales.cuh. A
// step's weights get theirs from the weights before: a phase chooses it, and update puts it in force.
enum Scale {
  kConv2Scale,
  kNextConv2Scale,
  kZ2Scale,
  kLargestConv2,  // weight
  kA2Scale,
  kFc1Scale,
  kNextFc1Scale,
  kLargestFc1,  // weight
  kDhScale,
  kDy2Scale,
  kScales,
};

// The least power of two of which `largest` holds fewer than 2^kBits, but at least 2^kAtLeast.
template <int kBits, int kAtLeast = -100>
constexpr float power_of_two_scale(float largest) {
  const int exponent = int(std::bit_cast<std::uint32_t>(largest) >> 23 & 255) - 126 - kBits;
  return std::bit_cast<float>((127 + std::clamp(exponent, kAtLeast, 120)) << 23);
}
// For weights, from the largest before their last update; for those that are set, from their own largest.
constexpr float weight_scale(float largest) { return power_of_two_scale<7, -12>(largest); }

// Where a step's samples come from: image b of step k of a graph is images[order[k * batch + b]].
struct Samples {
  const std::uint8_t* images;
  const std::uint8_t* labels;
  const double* moments;  // kMoments of each image
  const std::int32_t* order;
};

// What the kernels know of a batch norm, y = scale x + shift, by channel, as one array of several rows.
struct Bn1Operand {
  static constexpr int kRows = 4;
  float* values;                                             // (kRows, kConv1Channels)
  constexpr float& scale(int c) const { return values[c]; }  // of conv1's output in pixel units
  constexpr float& shift(int c) const { return values[kConv1Channels + c]; }
  constexpr float& largest_a1(int c) const { return values[2 * kConv1Channels + c]; }    // possible; for fp16 terms
  constexpr float& filter_scale(int c) const { return values[3 * kConv1Channels + c]; }  // what divided the filter
};
struct Bn2Operand {  // of z2 as it is stored; but with bn2_given of z2 itself
  static constexpr int kRows = 5;
  float* values;                                             // (kRows, kConv2Channels)
  constexpr float& scale(int c) const { return values[c]; }  // of z2
  constexpr float& shift(int c) const { return values[kConv2Channels + c]; }
  constexpr float& mean(int c) const { return values[2 * kConv2Channels + c]; }  // of z2
  constexpr float& inv_sigma(int c) const { return values[3 * kConv2Channels + c]; }
  constexpr float& mean_rest(int c) const { return values[4 * kConv2Channels + c]; }  // what mean lost when rounded
};

// The arrays of a model in device memory: pointers and nothing else, so that state_of_block() finds those of another
// model in one loop. T is the policy's storage type, hidden as void here.
struct Arrays {
  float* parameters;           // model.h's slab, fc1.weight in the engine's order (hidden, cell, channel)
  const float* learning_rate;  // of this step
  StepResult* results;         // one for each step of a graph

  void* conv2_forward;  // conv2.weight as conv_forward reads it: (64 permuted, 9, 32) T, or
                        // ([term,] 9, chunk of channels, 64, 16 bytes) for wgmma
  void* conv2_dgrad;    // as conv2_backward's dgrad reads it: (32, 9 flipped, 64) T; for wgmma DgradFilter, or
                        // (term, 3, chunk of channels, taps 2 to 0, 32, 8)
  float* scales;        // (kScales)
  float* conv2_max;     // (kConv2Values / 32) the largest |conv2.weight| of each warp of update; in tf32 then
                        // (98, kGradientWarps) the largest |fc1.weight| of each warp of fc1_backward
  void* fc1;            // fc1.weight in T, engine's order
  void* fc1_copy;       // for wgmma, in fp32: (term, 128, 3136) of fp16, every 8 features in the order of
                        // fc1_place(), divided by the scale of their group; else for fc: (8, 49, 128, 8) T, by chunk
                        // of channels, cell and hidden unit
  float* fc1_scales;    // (kFc1Groups)
  void* conv1;  // conv1.weight: (kConv1Terms, 4 positions, 32, 16) of fp16, divided by bn1.filter_scale(channel)
  Bn1Operand bn1;
  Bn2Operand bn2;

  void* a1;  // (B, 196, 32) T, or chunked; in fp32 as terms
  std::uint32_t*
      route1;         // (B, 14, 2, 2, 32): pool1's routing as Conv1::half_row() has it, by row, half, plane and lane
  void* z2;           // (B, 196, 64) T, or chunked: sign-folded conv2 output
  void* pooled_z2;    // (B, 49, 64) T, its maximum in each pooling window
  float* z2_sums;     // (conv_forward blocks, 128): sum[64], sum of squares[64], of z2 as it is stored
  float* h_slices;    // (fc1_forward slices, B, 128)
  float* h;           // (B, 128) after relu
  float* logits;      // (B, 10)
  void* dh;           // (B, 128) T; for fc1_backward by wgmma (tiles of kSamplesPerDhTile samples, [term,] 16 chunks,
                      // kSamplesPerDhTile, 8)
  float* head_sums;   // (head blocks, kHeadValues)
  void* dy2;          // (B, 49, 64) T, gradient of the pooled conv2 output, masked by relu
  float* dy2_sums;    // (2, 49, 64): over the batch, of dy2 and of dy2 * xhat; of fc's samples a row a cluster
  float* dy2_max;     // (98, kGradientWarps) the largest |dy2| of each warp of fc1_backward, or of each block of fc; in
                      // tf32 then (head blocks) the largest |dh| of each
  float* conv2_sums;  // (conv2_backward blocks, 18432), in the order of conv2_backward's stores
  float* routed_tap_sums;  // (conv2_backward blocks, 32, kRoutedTapColumns)
  float* bn2_sign;         // (64): -1 where bn2.weight was negative in the step that is ending, 1 elsewhere
  double* moment_sums;     // (head blocks, kMoments) of the next batch
  double* moments;         // kMoments of the current batch, a copy for each of kConv1Blocks, which alone reads it

  // Arrays that share an allocation.
  constexpr float* fc1_max() const { return conv2_max + kConv2Values / 32; }
  constexpr float* dh_max() const { return dy2_max + 2 * kCells2 * kGradientWarps; }
};
static_assert(sizeof(Arrays) % sizeof(void*) == 0 && std::is_trivially_copyable_v<Arrays>);

// What a kernel gets: a model's arrays, its samples, and the numbers of a batch.
struct State : Arrays {
  Samples samples;        // of several models each has an order of its own
  float* gradients;       // as parameters, or null: a probe reads them
  std::uint8_t* route2;   // (B, 64, 49) routing of pool2, or null: a probe reads it
  const float* upstream;  // gradient of the objective with respect to the mean loss
#ifdef MNIST_TRACE
  ulonglong2* trace;  // see trace.cuh; or null
#endif
  bool bn2_given;  // population statistics: bn2 is an input of fc1_forward, not a result
  bool overlap;    // the code that runs has programmatic dependent launch
  bool wgmma;      // and wgmma

  int batch;
  double inv_n1, inv_n2;  // 1 / (values a channel is averaged over) in bn1 and bn2: division is slow on the device
  int conv_forward_blocks, fc1_forward_slices, head_blocks, conv2_backward_blocks;
  int conv2_backward_rows;  // of an image, that a block takes at a time
  bool fc1_backward_wgmma;  // it reads dh in tiles
  bool with_fc;             // the step takes fc, and its kernels run side by side with their neighbours

  // That fc or fc1_backward leaves.
  constexpr int dy2_sum_rows() const { return with_fc ? head_blocks / kFcRanks : kCells2; }
  constexpr int dy2_maxima() const { return with_fc ? head_blocks : kFc1Groups * kGradientWarps; }
};

// Several models of equal steps, which train side by side: blockIdx.z of a launch is the model. Each has Arrays and
// an order of its own, at the same distance from those of the one before; all else is the same.
struct Pack {
  State first;
  std::int64_t stride = 0;  // bytes
  int models = 0;
};

bool runs_wgmma();  // whether the code that this GPU runs was compiled for sm_90a

void image_moments(double* moments, const std::uint8_t* images, std::int64_t count, cudaStream_t stream);

// ---- around a training ----------------------------------------------------------------------------------------------

// A slab of kParameterCount values from one order to the other, and the initial values that a stream gives.
void slab_to_engine(float* engine, const float* torch, cudaStream_t stream);
void slab_to_torch(float* torch, const float* engine, cudaStream_t stream);
void initialize_slab(float* torch, const Pcg64& from, cudaStream_t stream);

// sums[kMoments] += the moments of `count` images; `scratch` has sum_moments_scratch() elements.
void sum_moments(double* sums, double* scratch, const double* moments, std::int64_t count, cudaStream_t stream);
std::int64_t sum_moments_scratch();
// sums[2 * kConv2Channels] += what conv_forward's blocks left, a block after the other.
void add_z2_sums(double* sums, const float* z2_sums, int blocks, cudaStream_t stream);

// Loss and hits by class of each of the score_blocks(count) runs of images, losses added in a fixed order: logits
// (count, 10), labels (count). An image whose scores are not finite is wrong.
void score_images(Score* partial, const float* logits, const std::uint8_t* labels, std::int64_t count,
                  cudaStream_t stream);
std::int64_t score_blocks(std::int64_t count);

// What a graph of steps reads at fixed addresses: to_order[i] = order[i], i < samples, and to_rates[k] = rates[k],
// k < steps. One launch for both; the order's arrays aligned to 4 bytes. Of several models each array lies so many
// bytes or elements behind that of the model before.
struct StepInputs {
  std::int32_t* to_order;
  const std::int32_t* order;
  std::int64_t samples;
  float* to_rates;
  const float* rates;
  int steps;
  int models = 1;
  std::int64_t to_stride = 0, order_stride = 0, rates_stride = 0;  // bytes of to_order and to_rates, elements
};
void set_steps(const StepInputs& inputs, cudaStream_t stream);

}  // namespace mnist::fused
