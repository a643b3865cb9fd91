// What engine `layerwise` has beyond the rows of the ladders: both linear layers, and the update.
//
// The sizes are the network's. Everything sets its outputs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/step.h"

namespace mnist::kernels::layerwise {

// head: all that follows fc1's product, an image at a time: adds its slices and its bias, relu, fc2, log_softmax; and
// with `labels` the way back to fc1: dlogits = scale * (exp(log_p) - 1 at the label), dh through fc2 and relu.
//   shapes   h, dh (B,128), logits, log_p, dlogits (B,10) <- partial (slices,B,128), labels (B) or null
//   launch   one block of 128 threads an image; a thread a hidden unit, a warp every fourth class
//   numerics slices first to last; a class by shuffles
//   why      seven launches of `tiled` in one: 128 + 10 numbers of an image fit into a block, so none is stored between
struct Head {
  float *h, *logits, *log_p, *dlogits, *dh;
  const float* partial;
  int slices;
  const float *fc1_bias, *fc2_weight, *fc2_bias;
  const std::uint8_t* labels;
  float scale;
  StepRecord<float> record;  // of the step, with labels: by the last block to end (last_block.cuh)
  unsigned* finished;        // 0, and left so
};
void head(const Head& of, std::int64_t batch, cudaStream_t stream);

// fc1_backward: da2 (B,3136) = dh fc1.weight, and slices of dh^T a2: partial (slices,128,3136); returns their number.
//   launch   one block of 128 threads a 128x64 tile of either (linear/product.cuh); they run side by side
//   why      two products with too few tiles to fill a GPU each
int fc1_backward(float* da2, float* partial, const float* dh, const float* a2, const float* weight, std::int64_t batch,
                 cudaStream_t stream);
std::int64_t fc1_partial_size(std::int64_t batch);

// update: the last sum of every gradient, and one step of SGD with it: the gradient itself is not stored. With
// learning_rate null it is stored, and there is no step.
//   launch   blocks of 256 threads, by role: a channel of conv1; columns of fc2.weight and of both linear biases; 32
//            weights of conv2; 1024 weights of fc1; bn2, whose gradients are there already
//   numerics slices and chunks in a fixed order; those of layer 1 in float64
//   why      it writes the weights where `tiled` writes the gradients, and reads them no second time
struct Update {
  float *parameters, *gradients;  // slabs (mnist/model.h)
  const float* learning_rate;
  const float *fc1_partial, *conv2_partial;  // (slices,128,3136), (chunks,9,64,32)
  int fc1_slices, conv2_chunks;
  const float* taps;  // (B,32,10), moments.cuh
  const double* moments;
  const float* var1;
  const float *h, *dh, *dlogits;
};
void update(const Update& of, std::int64_t batch, cudaStream_t stream);

}  // namespace mnist::kernels::layerwise
