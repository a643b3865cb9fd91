// step: the two ends of a training step that every CUDA engine shares: its batch, and the record of its result.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "mnist/step.h"

namespace mnist::kernels {

// Where a run of steps has got to. It lives in the GPU's memory and the steps themselves move it on, so that queuing
// a step, or replaying a captured one, takes no argument from the host.
struct StepState {
  std::int64_t cursor = 0;  // position in the order at which this step's batch starts
  std::int32_t step = 0;    // where its result goes, and its learning rate comes from
};

// Where a kernel that gathers its batch itself finds it: image b of the batch is images[order[state->cursor + b]].
struct GatherFrom {
  const std::uint8_t *images = nullptr, *labels = nullptr;  // of the data set; null: the batch is in its place
  const std::int32_t* order = nullptr;
  const StepState* state = nullptr;
};

// gather_batch: images[b] = dataset_images[order[cursor + b]], and the labels likewise.
//   shapes   images (B,784), labels (B) <- dataset_images (N,784), dataset_labels (N), order (*), all uint8 but the
//            order's int32; sets
//   launch   one block an image, 64 threads; 49 of them move 16 bytes each
//   needs    images and dataset_images aligned to 16 bytes (checked)
//   cost     bytes 1570 B; memory bound
void gather_batch(std::uint8_t* images, std::uint8_t* labels, const std::uint8_t* dataset_images,
                  const std::uint8_t* dataset_labels, const std::int32_t* order, const StepState* state,
                  std::int64_t batch, cudaStream_t stream);

// Where the results of a run's steps go, and where their learning rates come from.
template <class T>
struct StepRecord {
  StepResult* results;
  StepState* state;
  T* learning_rate;  // of the update
  const T* learning_rates;
};

// record_step: results[step] = mean of -log_p[b,label[b]], and how many rows of logits have their first maximum at
// the label; then *learning_rate = learning_rates[step] for the update, step += 1 and cursor += B.
//   shapes   log_p, logits (B,10), float or double, labels (B)
//   launch   one block of 256 threads, for a sum in a fixed order
//   cost     bytes 81 B in float
//   numerics summed in float64: the loss is as exact as log_p
template <class T>
void record_step(const StepRecord<T>& to, const T* log_p, const T* logits, const std::uint8_t* labels,
                 std::int64_t batch, cudaStream_t stream);

}  // namespace mnist::kernels
