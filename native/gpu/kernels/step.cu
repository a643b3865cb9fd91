// step: gathering a batch by index, and the mean loss and number of right answers of a step.
#include "cuda/check.h"
#include "kernels/step.cuh"

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
__global__ void record_step_kernel(StepRecord<T> to, const T* __restrict__ log_p, const T* __restrict__ logits,
                                   const std::uint8_t* __restrict__ labels, std::int64_t batch) {
  record_by_block<kRecordBlock>(to, log_p, logits, labels, batch);
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
void record_step(const StepRecord<T>& to, const T* log_p, const T* logits, const std::uint8_t* labels,
                 std::int64_t batch, cudaStream_t stream) {
  MNIST_REQUIRE(batch > 0, "record_step: batch is " << batch << ", expected at least 1");
  record_step_kernel<<<1, kRecordBlock, 0, stream>>>(to, log_p, logits, labels, batch);
  MNIST_CHECK_LAUNCH();
}

template void record_step(const StepRecord<float>&, const float*, const float*, const std::uint8_t*, std::int64_t,
                          cudaStream_t);
template void record_step(const StepRecord<double>&, const double*, const double*, const std::uint8_t*, std::int64_t,
                          cudaStream_t);

}  // namespace mnist::kernels
