// The ladders of a whole layer: conv2d 3x3, batch norm by the batch's statistics, relu, 2x2 max pool; forward and
// backward, float32; but for the row `tensor_cores`, with no tensor cores and at most 48 KiB of shared memory per
// block; they set.
//
//   shapes   a, route (B,O,S/2,S/2) <- x (B,I,S,S), w (O,I,3,3), bias, gamma, beta (O); statistics (2,O): mean, var
//   cost     conv_bn_relu_pool_cost, conv_bn_relu_pool_backward_cost (profile/cost.h)
// Every row merges more than the one before it, and its arithmetic stays: what it gains are the bytes between two
// launches, and the launches. Bytes are those of float in memory, n = B O S S values of z, m = n / 4 of a; `memory`
// says which of them a row no longer carries. The step of engine `layerwise` is made of the last rows in float32.
//
//   forward            launches  memory
//   separate                  5  z written, read for the statistics, read for y; y written, read: 20n
//   apply_pool                4  y stays in registers:                     8n less
//   conv_statistics           2  z is not read for the statistics:         4n less; what is left is 8n + 2 B O floats
//   moments (I = 1)           2  z does not exist:                         8n less; 54 sums of pixels instead
//   backward           launches  memory
//   separate                  6  dy written, read twice; z read twice; dz written, read twice: 32n
//   pooled_sums               5  dy, three quarters of it zeros, is not written; the sums read a quarter: 15n less,
//                                5m more
//   gradient_in_conv          4  dz does not exist: what read it reads z, da and route:  8n less, 5m more
//   moments (I = 1)           2  neither z nor dz exists; x is read once
// Without dx, backward has one launch less. Forward's `moments` clears a counter before its first launch.
// `tensor_cores` has the launches and the memory of conv_statistics, backward of gradient_in_conv; its products are in
// tf32. Backward takes 62 KiB of shared memory per block.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/step.h"
#include "kernels/variant.h"
#include "mnist/model.h"
#include "mnist/require.h"

namespace mnist::kernels {

// `kept`, of conv_bn_relu_pool_kept_size floats, is what backward needs of forward: z, and of `moments`, for `moments`,
// those of the pixels. `scratch`: conv_bn_relu_pool_scratch_size floats, aligned to 16 bytes.
using ConvBnReluPoolForward = void (*)(float* a, std::uint8_t* route, float* kept, float* statistics, float* scratch,
                                       const float* x, const float* w, const float* bias, const float* gamma,
                                       const float* beta, std::int64_t batch, int in, int out, int side,
                                       cudaStream_t stream);
// dx may be null: nobody asks for the gradient of an image. The gradient of bias is 0.
using ConvBnReluPoolBackward = void (*)(float* dx, float* dw, float* dgamma, float* dbeta, float* scratch,
                                        const float* da, const float* x, const float* kept, const float* statistics,
                                        const std::uint8_t* route, const float* w, const float* gamma,
                                        std::int64_t batch, int in, int out, int side, cudaStream_t stream);

// Of any layer with an even side up to 46; conv_statistics, gradient_in_conv and tensor_cores of side 14.
std::span<const Variant<ConvBnReluPoolForward>> conv_bn_relu_pool_forward_variants();
std::span<const Variant<ConvBnReluPoolBackward>> conv_bn_relu_pool_backward_variants();
// Of a first layer, with I = 1, whose dx is null: the rows that take it, and `moments`.
std::span<const Variant<ConvBnReluPoolForward>> conv_bn_relu_pool_layer1_forward_variants();
std::span<const Variant<ConvBnReluPoolBackward>> conv_bn_relu_pool_layer1_backward_variants();
std::int64_t conv_bn_relu_pool_kept_size(std::int64_t batch, int out, int side);
std::int64_t conv_bn_relu_pool_scratch_size(std::int64_t batch, int in, int out, int side);

// What follows so many floats, or doubles, is aligned as they are, for loads of four.
constexpr std::int64_t aligned_floats(std::int64_t count) { return (count + 3) / 4 * 4; }

// ---- the rows: functions of these two types ----
std::remove_pointer_t<ConvBnReluPoolForward> conv_bn_relu_pool_forward_separate, conv_bn_relu_pool_forward_apply_pool,
    conv_bn_relu_pool_forward_conv_statistics, conv_bn_relu_pool_forward_tensor_cores,
    conv_bn_relu_pool_forward_moments;
std::remove_pointer_t<ConvBnReluPoolBackward> conv_bn_relu_pool_backward_separate,
    conv_bn_relu_pool_backward_pooled_sums, conv_bn_relu_pool_backward_gradient_in_conv,
    conv_bn_relu_pool_backward_tensor_cores, conv_bn_relu_pool_backward_moments;

// ---- the launches that rows, and engine layerwise, are made of ----
inline constexpr int kSmallBatch = 128;  // up to here blocks make half as many channels, so that there are two an image

inline void require_conv_side(const char* what, int side) {
  MNIST_REQUIRE(side == kPool1Side, what << ": side is " << side << ", expected " << kPool1Side);
}

// conv2d_with_statistics: z, and of every image its mean and its sum of squared distances from it by channel.
//   shapes   z (B,O,14,14), of_images (2,O,B), null for none
//   launch   one block of 8 warps an image and 64 channels (up to 128 images: 32); a warp all positions of 8 (4)
//   numerics 9 I terms added one after the other; the statistics by shuffles, in two passes over registers
//   why      what the convolution has in registers need not be read again; the next planes and filters are on their way
//            while these are multiplied, and every place in a plane is known when the kernel is compiled
void conv2d_with_statistics(float* z, float* of_images, const float* x, const float* w, const float* bias,
                            std::int64_t batch, int in, int out, int side, cudaStream_t stream);

// apply_pool: a = max(0, max over the window of gamma (z - mean) / sigma + beta), and route.
//   launch   one block of 256 threads a channel and a chunk of images (chunks.h); a thread a window
//   needs    z aligned to 8 bytes (checked)
//   numerics as batch_norm's float4 and relu_max_pool2d's float2 after it: the same bits
void apply_pool(float* a, std::uint8_t* route, const float* z, const float* gamma, const float* beta, const float* mean,
                const float* var, std::int64_t batch, int channels, int side, cudaStream_t stream);

// merge_apply_pool: the same, behind the merging of the images' statistics of conv2d_with_statistics, which sets mean
// and var. Every block merges those of its channel: 2 B numbers, where another launch would cost more.
void merge_apply_pool(float* a, std::uint8_t* route, float* mean, float* var, const float* z, const float* of_images,
                      const float* gamma, const float* beta, std::int64_t batch, int channels, int side,
                      cudaStream_t stream);

// pooled_sums: dgamma and dbeta from pooled values alone: dy is da at the routed positions and 0 elsewhere.
//   launch   one block of 1024 threads a channel
//   numerics fixed order
void pooled_sums(float* dgamma, float* dbeta, const float* da, const float* z, const std::uint8_t* route,
                 const float* mean, const float* var, std::int64_t batch, int channels, int side, cudaStream_t stream);

// dz_of_pooled: the gradient of z from da; dgamma and dbeta are given.
//   launch   as apply_pool
void dz_of_pooled(float* dz, const float* da, const float* z, const std::uint8_t* route, const float* gamma,
                  const float* mean, const float* var, const float* dgamma, const float* dbeta, std::int64_t batch,
                  int channels, int side, cudaStream_t stream);

// What dz is made of, value by value.
struct PooledGradient {
  const float *da, *z;
  const std::uint8_t* route;
  const float *gamma, *mean, *var, *dgamma, *dbeta;
};

inline constexpr int kMostGradientChannels = 128;  // of z, whose constants have a place in shared memory

inline void require_gradient_channels(const char* what, int channels) {
  MNIST_REQUIRE(channels <= kMostGradientChannels,
                what << ": " << channels << " channels, expected at most " << kMostGradientChannels);
}

// gradient_in_conv_data: dx (B,I,14,14), as conv2d_with_statistics with the filters turned; O at most 128 (checked).
//   launch   one block of 4 warps an image and 32 channels (up to 128 images: 16); a warp all positions of 8 (4)
//   numerics 9 O terms added one after the other
void gradient_in_conv_data(float* dx, const PooledGradient& of, const float* w, std::int64_t batch, int in, int out,
                           int side, cudaStream_t stream);

// gradient_in_conv_weight: partial[chunk,tap,o,i], the gradient of w over chunks of images (conv2d_add_chunks).
//   launch   one block of 8 warps a chunk, 32 outputs and 32 inputs; two warps, one for each half of the columns, share
//            8 outputs
//   numerics positions of a half one after the other, then the halves
//   why      conv2d's register_tiled with twice the warps for the same partial sums, which hide the loads
void gradient_in_conv_weight(float* partial, const PooledGradient& of, const float* x, std::int64_t batch, int in,
                             int out, int side, cudaStream_t stream);
std::int64_t gradient_in_conv_chunks(std::int64_t batch);

// ---- the same by mma.sync m16n8k8 in tf32, from compute capability 8.0 on: inputs rounded to 11 bits, sums in float32
// conv2d_with_statistics_tensor_cores: of_images, not null, are the statistics of the z that is written.
//   launch   one block of 7 warps an image and 32 channels; a warp two rows of 14 positions as four tiles of 8
//   needs    z aligned to 8 bytes (checked)
//   why      two blocks an image at any batch size; all else as conv2d's tensor_cores, whose products these are
void conv2d_with_statistics_tensor_cores(float* z, float* of_images, const float* x, const float* w, const float* bias,
                                         std::int64_t batch, int in, int out, int side, cudaStream_t stream);

// gradient_in_conv_data_tensor_cores: dx by the same code with the filters turned; O at most 128, dx aligned to 8 bytes
// (checked).
void gradient_in_conv_data_tensor_cores(float* dx, const PooledGradient& of, const float* w, std::int64_t batch, int in,
                                        int out, int side, cudaStream_t stream);

// gradient_in_conv_weight_tensor_cores: partial as gradient_in_conv_weight; 62 KiB of shared memory a block.
//   launch   one block of 8 warps a chunk, 32 outputs and 32 inputs; a warp 16 outputs and 8 inputs of all taps
//   why      positions are the depth of the products: dz serves nine taps from registers, and a tap is a distance in x
void gradient_in_conv_weight_tensor_cores(float* partial, const PooledGradient& of, const float* x, std::int64_t batch,
                                          int in, int out, int side, cudaStream_t stream);

// ---- layer 1: moments.cuh has the formulas ----
inline constexpr int kMoments = kTaps + kTaps * (kTaps + 1) / 2;  // means of 9 pixels, covariances of 45 pairs
constexpr int moment_of(int j, int k) { return j <= k ? kTaps + j * kTaps - j * (j - 1) / 2 + k - j : moment_of(k, j); }

// The convolution whose output's statistics pixel_moments sets, too: w (O,1,3,3); null for none.
struct MomentStatistics {
  float *mean, *var;
  const float *w, *bias;
  int out;
};

// pixel_moments: moments (54) of the 9 pixels under a filter, over all positions of all images; and statistics.
//   launch   one block of 4 warps a chunk of images, up to 256 chunks; the last block to end adds them (last_block.cuh)
//   needs    *finished == 0, and leaves it so; partial of pixel_moments_partial_size doubles
//   numerics products of bytes are exact; images and chunks are added in float64 in a fixed order
//   cost     54 multiply-adds a pixel, where conv1 has 288
void pixel_moments(double* moments, double* partial, unsigned* finished, const float* x, std::int64_t batch, int side,
                   const MomentStatistics& of, cudaStream_t stream);
std::int64_t pixel_moments_partial_size(std::int64_t batch);
// The same of bytes; with from.images set it also gathers images and labels to their places in the batch.
void pixel_moments_of_bytes(double* moments, double* partial, unsigned* finished, std::uint8_t* images,
                            std::uint8_t* labels, const GatherFrom& from, std::int64_t batch,
                            const MomentStatistics& of, cudaStream_t stream);

// layer_of_one_channel: a and route from x (B,1,S,S), by given statistics: a whole layer, z in registers.
//   launch   one block of 7 warps an image and 16 channels; a thread a window, 4 outputs of every channel
//   numerics pooled before batch norm, which is monotonous: y is one rounding from that of apply_pool
void layer_of_one_channel(float* a, std::uint8_t* route, const float* x, const float* w, const float* bias,
                          const float* gamma, const float* beta, const float* mean, const float* var,
                          std::int64_t batch, int out, int side, cudaStream_t stream);
void layer_of_bytes(float* a, std::uint8_t* route, const std::uint8_t* images, const float* w, const float* bias,
                    const float* gamma, const float* beta, const float* mean, const float* var, std::int64_t batch,
                    int out, cudaStream_t stream);

// layer_gradient_from_moments: dw, dgamma, dbeta of such a layer from da. `taps` is scratch of 10 B O floats.
//   launch   one block an image and 32 channels, 8 threads a channel; then one block a channel
//   numerics an image in float32, the batch in float64, both in a fixed order
void layer_gradient_from_moments(float* dw, float* dgamma, float* dbeta, float* taps, const float* da, const float* x,
                                 const std::uint8_t* route, const double* moments, const float* w, const float* gamma,
                                 const float* var, std::int64_t batch, int out, int side, cudaStream_t stream);

// gradient_in_conv_taps: gradient_in_conv_data of the network's conv2 whose dx, da of layer 1, never leaves the block:
// taps (B,32,10) are what layer 1's gradients need of it. `images` are bytes, `route` is layer 1's.
//   numerics as gradient_in_conv_data, each image times a scale of its own (gradient.cuh says why)
struct Layer1Taps {
  float* taps;
  const std::uint8_t *images, *route;
};
void gradient_in_conv_taps(const Layer1Taps& layer1, const PooledGradient& of, const float* w, std::int64_t batch,
                           cudaStream_t stream);

}  // namespace mnist::kernels
