// layerwise, update: blocks with roles, each of which ends the sums of some gradients and makes the step with them.
#include "cuda/check.h"
#include "kernels/conv_bn_relu_pool/moments.cuh"
#include "kernels/layerwise/layerwise.h"
#include "mnist/model.h"

namespace mnist::kernels::layerwise {
namespace {

constexpr int kBlock = 256, kLanes = 32, kParts = kBlock / kLanes;  // of sums by 8 threads an output
constexpr int kConv2Filters = kConv1Channels * kConv2Channels, kConv2Weights = kConv2Filters * kTaps;
constexpr int kFc1Weights = kHidden * kFeatures;

// Blocks of each role, in the order of blockIdx.x: those that take longest first.
constexpr int kConv1Blocks = kConv1Channels;
constexpr int kHiddenBlocks = kHidden / kLanes;                              // of a row of fc2.weight, and of fc1.bias
constexpr int kColumnBlocks = kClasses * kHiddenBlocks + kHiddenBlocks + 1;  // and one of fc2.bias
constexpr int kConv2Blocks = kConv2Weights / kLanes;
constexpr int kFc1Blocks = kFc1Weights / 4 / kBlock;
constexpr int kBlocks = kConv1Blocks + kColumnBlocks + kConv2Blocks + kFc1Blocks + 1;
static_assert(kConv2Weights % kLanes == 0 && kFc1Weights % (4 * kBlock) == 0 && 2 * kConv2Channels <= kBlock);

constexpr std::int64_t at(ParameterIndex index) { return kParameters[index].offset; }

__device__ void apply(const Update& of, std::int64_t n, float gradient) {
  if (of.learning_rate)
    of.parameters[n] -= *of.learning_rate * gradient;
  else
    of.gradients[n] = gradient;
}

__device__ void update_conv1(const Update& of, int c, std::int64_t batch) {
  constexpr std::int64_t kWeight = at(kConv1Weight), kGamma = at(kBn1Weight), kBeta = at(kBn1Bias);
  const auto gradient =
      layer1_gradient<kBlock>(of.taps, of.moments, c, kConv1Channels, batch, of.parameters + kWeight + c * kTaps,
                              of.parameters[kGamma + c], of.var1[c], ByteImages::kScale);
  if (threadIdx.x < kTaps) apply(of, kWeight + c * kTaps + threadIdx.x, gradient.dw);
  if (threadIdx.x > 0) return;
  apply(of, kGamma + c, gradient.dgamma);
  apply(of, kBeta + c, gradient.dbeta);
}

// The sum over the parts of a lane, in part 0.
__device__ float add_parts(float sum, int lane, int part) {
  __shared__ float sums[kParts][kLanes];
  sums[part][lane] = sum;
  __syncthreads();  // all parts are there
  if (part == 0)
    for (int k = 1; k < kParts; ++k) sum += sums[k][lane];
  return sum;
}

// Sums over the batch of what head left: fc2.weight (10,128), fc1.bias (128), fc2.bias (10).
__device__ void update_columns(const Update& of, int block, std::int64_t batch, int lane, int part) {
  constexpr std::int64_t kFc2W = at(kFc2Weight), kFc1B = at(kFc1Bias), kFc2B = at(kFc2Bias);
  const int row = block / kHiddenBlocks, unit = block % kHiddenBlocks * kLanes + lane;
  const bool weight = row < kClasses, bias1 = row == kClasses;
  float sum = 0;
  if (weight || bias1) {
    const float* right = weight ? of.h : of.dh;
#pragma unroll 8
    for (std::int64_t b = part; b < batch; b += kParts)
      sum += (weight ? of.dlogits[b * kClasses + row] : 1.0f) * right[b * kHidden + unit];
  } else if (lane < kClasses) {
#pragma unroll 8
    for (std::int64_t b = part; b < batch; b += kParts) sum += of.dlogits[b * kClasses + lane];
  }
  sum = add_parts(sum, lane, part);
  if (part > 0) return;
  if (weight)
    apply(of, kFc2W + row * kHidden + unit, sum);
  else if (bias1)
    apply(of, kFc1B + unit, sum);
  else if (lane < kClasses)
    apply(of, kFc2B + lane, sum);
}

__device__ void update_conv2(const Update& of, int block, int lane, int part) {
  constexpr std::int64_t kWeight = at(kConv2Weight);
  const int n = block * kLanes + lane, chunks = of.conv2_chunks;
  float sum = 0;
#pragma unroll 16
  for (int chunk = part * chunks / kParts; chunk < (part + 1) * chunks / kParts; ++chunk)
    sum += of.conv2_partial[std::int64_t(chunk) * kConv2Weights + n];
  sum = add_parts(sum, lane, part);
  if (part == 0) apply(of, kWeight + n % kConv2Filters * kTaps + n / kConv2Filters, sum);
}

__device__ void update_fc1(const Update& of, int block) {
  constexpr std::int64_t kWeight = at(kFc1Weight);
  const int n = block * kBlock + int(threadIdx.x);  // which four weights
  const float4* from = reinterpret_cast<const float4*>(of.fc1_partial) + n;
  float4 sum = from[0];
  for (int slice = 1; slice < of.fc1_slices; ++slice) {
    const float4 more = from[std::int64_t(slice) * (kFc1Weights / 4)];
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
  }
  float4* to = reinterpret_cast<float4*>((of.learning_rate ? of.parameters : of.gradients) + kWeight) + n;
  if (of.learning_rate) {
    const float rate = *of.learning_rate;
    const float4 w = *to;
    sum = make_float4(w.x - rate * sum.x, w.y - rate * sum.y, w.z - rate * sum.z, w.w - rate * sum.w);
  }
  *to = sum;
}

__global__ void __launch_bounds__(kBlock) update_kernel(Update of, std::int64_t batch) {
  const int t = int(threadIdx.x), lane = t % kLanes, part = t / kLanes;
  int block = int(blockIdx.x);
  if (block < kConv1Blocks) return update_conv1(of, block, batch);
  if ((block -= kConv1Blocks) < kColumnBlocks) return update_columns(of, block, batch, lane, part);
  if ((block -= kColumnBlocks) < kConv2Blocks) return update_conv2(of, block, lane, part);
  if ((block -= kConv2Blocks) < kFc1Blocks) return update_fc1(of, block);
  constexpr std::int64_t kGamma = at(kBn2Weight);
  static_assert(at(kBn2Bias) == kGamma + kConv2Channels);
  if (of.learning_rate && t < 2 * kConv2Channels) apply(of, kGamma + t, of.gradients[kGamma + t]);
}

}  // namespace

void update(const Update& of, std::int64_t batch, cudaStream_t stream) {
  update_kernel<<<kBlocks, kBlock, 0, stream>>>(of, batch);
  MNIST_CHECK_LAUNCH();
}

}  // namespace mnist::kernels::layerwise
