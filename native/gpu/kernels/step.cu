// step: gathering a batch by index, and the mean loss and number of right answers of a step.
#include "cuda/check.h"
#include "kernels/step.h"

namespace mnist::kernels {
namespace {

constexpr int kPieces = kImagePixels / int(sizeof(uint4));  // 16-byte pieces of an image
static_assert(kPieces * sizeof(uint4) == kImagePixels);

__global__ void gather_batch_kernel(std::uint8_t* __restrict__ images, std::uint8_t* __restrict__ labels,
                                    const std::uint8_t* __restrict__ dataset_images,
                                    const std::uint8_t* __restrict__ dataset_labels,
                                    const std::int32_t* __restrict__ order, const StepState* __restrict__ state) {
  const std::int64_t b = blockIdx.x, from = order[state->cursor + b];
  const int t = int(threadIdx.x);
  if (t < kPieces)
    reinterpret_cast<uint4*>(images)[b * kPieces + t] =
        reinterpret_cast<const uint4*>(dataset_images)[from * kPieces + t];
  if (t == kPieces) labels[b] = dataset_labels[from];
}

constexpr int kRecordBlock = 256;

template <class T>
__global__ void record_step_kernel(StepResult* __restrict__ results, StepState* __restrict__ state,
                                   const T* __restrict__ log_p, const T* __restrict__ logits,
                                   const std::uint8_t* __restrict__ labels, std::int64_t batch,
                                   T* __restrict__ learning_rate, const T* __restrict__ learning_rates) {
  __shared__ double losses[kRecordBlock];
  __shared__ int corrects[kRecordBlock];
  const int t = int(threadIdx.x);
  double loss = 0;
  int correct = 0;
  for (std::int64_t b = t; b < batch; b += kRecordBlock) {
    const int label = labels[b];
    loss -= log_p[b * kClasses + label];
    int best = 0;
    for (int k = 1; k < kClasses; ++k)
      if (logits[b * kClasses + k] > logits[b * kClasses + best]) best = k;
    correct += best == label;
  }
  losses[t] = loss;
  corrects[t] = correct;
  for (int half = kRecordBlock / 2; half > 0; half /= 2) {
    __syncthreads();  // the upper half is complete before the lower half reads it
    if (t < half) {
      losses[t] += losses[t + half];
      corrects[t] += corrects[t + half];
    }
  }
  if (t == 0) {
    StepResult& result = results[state->step];
    result.loss = losses[0] / double(batch);
    result.correct = corrects[0];
    *learning_rate = learning_rates[state->step];
    state->step += 1;
    state->cursor += batch;
  }
}

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % sizeof(uint4) == 0; }

}  // namespace

void gather_batch(std::uint8_t* images, std::uint8_t* labels, const std::uint8_t* dataset_images,
                  const std::uint8_t* dataset_labels, const std::int32_t* order, const StepState* state,
                  std::int64_t batch, cudaStream_t stream) {
  MNIST_REQUIRE(batch > 0, "gather_batch: batch is " << batch << ", expected at least 1");
  MNIST_REQUIRE(aligned(images) && aligned(dataset_images), "gather_batch: images must be aligned to 16 bytes");
  gather_batch_kernel<<<unsigned(batch), 64, 0, stream>>>(images, labels, dataset_images, dataset_labels, order, state);
  MNIST_CHECK_LAUNCH();
}

template <class T>
void record_step(StepResult* results, StepState* state, const T* log_p, const T* logits, const std::uint8_t* labels,
                 std::int64_t batch, T* learning_rate, const T* learning_rates, cudaStream_t stream) {
  MNIST_REQUIRE(batch > 0, "record_step: batch is " << batch << ", expected at least 1");
  record_step_kernel<<<1, kRecordBlock, 0, stream>>>(results, state, log_p, logits, labels, batch, learning_rate,
                                                     learning_rates);
  MNIST_CHECK_LAUNCH();
}

template void record_step(StepResult*, StepState*, const float*, const float*, const std::uint8_t*, std::int64_t,
                          float*, const float*, cudaStream_t);
template void record_step(StepResult*, StepState*, const double*, const double*, const std::uint8_t*, std::int64_t,
                          double*, const double*, cudaStream_t);

}  // namespace mnist::kernels
