// The hot loops of the cpu engine as a table of functions, one table an instruction set.
//
// Everything works on one image, or on a block of images for the linear layers, and touches only memory that stays in
// a core's own caches. All pointers are cache-line aligned and all values float32 unless a comment says otherwise.
// Channels come last, so that a vector register holds neighbouring channels:
//
//   x    (30, 32)      normalised image with its border of zeros; a row has 30 values and 2 of slack
//   a1   (16, 16, 32)  pooled activation of layer 1 with its border of zeros
//   z    (49, 4, 64)   conv2's output, no bias: one 2x2 pool window after the other, positions in scan order
//   e    (49, 64)      that window's extremum, which is all that batch norm, relu and pooling need of it
//   u    (16, 32, 64)  conv2's weight in the Winograd domain, ut the same with the channels swapped (16, 64, 32)
#pragma once

#include <cstdint>
#include <vector>

#include "mnist/model.h"

namespace mnist::cpu {

inline constexpr int kPixelRow = 32;  // floats from one row of x to the next
inline constexpr int kImageSize = (kImageSide + 2) * kPixelRow;
inline constexpr int kA1Side = kPool1Side + 2;
inline constexpr int kA1Row = kA1Side * kConv1Channels;
inline constexpr int kA1Size = kA1Side * kA1Row;
inline constexpr int kCells1 = kPool1Side * kPool1Side;  // pool windows of layer 1
inline constexpr int kTiles = kPool2Side * kPool2Side;   // pool windows of layer 2, each one Winograd tile
inline constexpr int kZ2Size = kTiles * 4 * kConv2Channels;
inline constexpr int kFrequencies = 16;  // of a 4x4 Winograd tile
inline constexpr int kUSize = kFrequencies * kConv1Channels * kConv2Channels;
inline constexpr int kInputTilesSize = kFrequencies * kTiles * kConv1Channels;
inline constexpr int kOutputTilesSize = kFrequencies * kTiles * kConv2Channels;
inline constexpr int kPatchMoments = kTaps + kTaps * (kTaps + 1) / 2;
inline constexpr int kClassLanes = 16;  // kClasses, padded to whole vectors
inline constexpr int kPixelFeatures = kConv2Channels;
inline constexpr int kLinearRows = 64;  // images in a block of the linear layers, at most

// Buffers of one worker; kernels may use them as they like.
struct Scratch {
  float* input_tiles;   // kInputTilesSize
  float* output_tiles;  // kOutputTilesSize
  double* patches;      // kTaps x kImagePixels
};

// Batch norm of layer 2 as an affine map of z, and that of its gradient: arrays of 64.
//   y = scale * z + shift,  dz = scale * (gradient routed to z) + alpha + kappa * z
struct Affine2 {
  float scale[kConv2Channels], shift[kConv2Channels], alpha[kConv2Channels], kappa[kConv2Channels];
  float mean[kConv2Channels];
  // All bits set, or 0 where gamma is 0: then batch norm makes every window a tie, which its first position wins.
  std::int32_t live[kConv2Channels];
};

struct Kernels {
  const char* isa;

  // Adds to sums (54 float64) the sum over the image's 784 positions of its patch p (9) and of p_i * p_j, i <= j.
  void (*patch_moments)(double* sums, const float* x, const Scratch& scratch);

  // a1 = max_pool(relu(conv1)), w (9, 32) and t (32) being conv1's weight and bias with batch norm folded in. Sets the
  // inside of a1. `route` (196, 32), if not null, is set to the window position that won, or Routing::kDead.
  void (*conv1_forward)(float* a1, std::int32_t* route, const float* x, const float* w, const float* t);

  // sums (10, 32): for each channel the sum of the gradients da1 (16,16,32) that reach conv1's output through `route`,
  // times the nine taps there, and (row 9) alone. Sets.
  void (*conv1_backward)(float* sums, const float* da1, const std::int32_t* route, const float* x);

  // One input channel's slice of u and ut, from w (32 in, 9 taps, 64 out) times sign (64).
  void (*conv2_weight)(float* u, float* ut, const float* w, const float* sign, int channel);

  // z, e and sums (2, 64: of z and of z^2 over the image); sets all three. live as in Affine2.
  void (*conv2_forward)(float* z, float* e, float* sums, const float* a1, const float* u, const std::int32_t* live,
                        const Scratch& scratch);

  // da1 (16,16,32; the border is meaningless) and du (16,32,64) from the gradient g (49,64) of e, which is 0 where relu
  // stopped it. Sets da1; adds to du, or sets it if `first`.
  void (*conv2_backward)(float* da1, float* du, bool first, const float* g, const float* z, const float* a1,
                         const Affine2& affine, const float* ut, const Scratch& scratch);

  // dw (9, 64 out) of one input channel: the sum of `count` du, `stride` floats apart, back from the Winograd domain
  // and times sign.
  void (*conv2_weight_gradient)(float* dw, const float* du, std::int64_t stride, int count, const float* sign,
                                int channel);

  // a = relu(scale * e + shift): `rows` rows of `pixels` x 64, `stride` floats apart in e, dense in a.
  void (*bn2_relu)(float* a, const float* e, std::int64_t stride, int rows, int pixels, const Affine2& affine);

  // hidden (rows, 128) = bias + a2 w, a2 = bn2_relu of e (rows, 3136) and w (3136, 128); rows <= kLinearRows.
  void (*fc1_forward)(float* hidden, const float* e, const float* w, const float* bias, int rows, const Affine2& affine,
                      float* scratch);

  // Backward through fc1, relu and pooling for the 64 features of one pixel, over `rows` images whose e (rows, 64) lie
  // kFeatures floats apart: e is replaced by its gradient g; dw (64, 128) and the sums (2, 64) of g and g * (e - mean)
  // are added to. dh (rows, 128); wt (128, 64) is the pixel's part of fc1's weight, transposed. scratch: rows x 64.
  void (*fc1_backward)(float* e, float* dw, float* sums, const float* dh, const float* wt, int rows,
                       const Affine2& affine, float* scratch);

  // wt (128, 64) <- w (64, 128).
  void (*fc1_transpose)(float* wt, const float* w);

  // logits (rows, 16) = bias + h w, w (128, 16).
  void (*fc2_forward)(float* logits, const float* h, const float* w, const float* bias, int rows);
  // dh (rows, 128) = dlogits (rows, 16) w, w (10, 128), and 0 where h is not positive.
  void (*fc2_backward)(float* dh, const float* dlogits, const float* w, const float* h, int rows);
  // dw (10, 128) += dlogits^T h.
  void (*fc2_weight_gradient)(float* dw, const float* dlogits, const float* h, int rows);

  // w -= learning_rate * dw.
  void (*sgd_update)(float* w, const float* dw, float learning_rate, std::int64_t count);
};

// The tables that this build contains and this machine can run, best first; the last one runs everywhere.
std::vector<const Kernels*> supported_kernels();

}  // namespace mnist::cpu
