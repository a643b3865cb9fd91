// layerwise, head: from fc1's product to the gradient of its output, a block an image.
#include "cuda/check.h"
#include "kernels/conv_bn_relu_pool/last_block.cuh"
#include "kernels/layerwise/layerwise.h"
#include "kernels/step.cuh"
#include "mnist/model.h"

namespace mnist::kernels::layerwise {
namespace {

constexpr int kWarps = kHidden / 32;

// blockIdx.x = b; a thread a hidden unit.
__global__ void __launch_bounds__(kHidden) head_kernel(Head of) {
  __shared__ float units[kHidden], scores[kClasses], gradients[kClasses];
  const std::int64_t b = blockIdx.x, batch = gridDim.x;
  const int t = int(threadIdx.x), warp = t / 32, lane = t % 32;
  float sum = 0;
#pragma unroll 16
  for (int slice = 0; slice < of.slices; ++slice) sum += of.partial[(slice * batch + b) * kHidden + t];
  const float u = sum + of.fc1_bias[t];
  const bool passes = !(u <= 0);  // a NaN passes
  units[t] = passes ? u : 0;
  of.h[b * kHidden + t] = units[t];
  __syncthreads();  // all units are there
  for (int k = warp; k < kClasses; k += kWarps) {
    float score = 0;
#pragma unroll
    for (int n = lane; n < kHidden; n += 32) score += units[n] * of.fc2_weight[k * kHidden + n];
    for (int step = 16; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffff, score, step);
    if (lane == 0) scores[k] = score + of.fc2_bias[k];
  }
  __syncthreads();  // all scores are there
  float top = scores[0], total = 0;
  for (int k = 1; k < kClasses; ++k) top = scores[k] > top ? scores[k] : top;
  for (int k = 0; k < kClasses; ++k) total += expf(scores[k] - top);
  const float shift = logf(total);
  if (t < kClasses) {
    const float log_p = scores[t] - top - shift;
    of.logits[b * kClasses + t] = scores[t];
    of.log_p[b * kClasses + t] = log_p;
    if (of.labels) {
      gradients[t] = of.scale * (expf(log_p) - float(t == of.labels[b]));
      of.dlogits[b * kClasses + t] = gradients[t];
    }
  }
  if (!of.labels) return;
  __syncthreads();  // the gradients of all scores are there
  float d = 0;
#pragma unroll
  for (int k = 0; k < kClasses; ++k) d += gradients[k] * of.fc2_weight[k * kHidden + t];
  of.dh[b * kHidden + t] = passes ? d : 0;
  if (is_last_block(of.finished)) record_by_block<kHidden>(of.record, of.log_p, of.logits, of.labels, batch);
}

}  // namespace

void head(const Head& of, std::int64_t batch, cudaStream_t stream) {
  head_kernel<<<unsigned(batch), kHidden, 0, stream>>>(of);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels::layerwise
