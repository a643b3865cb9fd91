// conv_bn_relu_pool, tensor cores: the convolutions of conv_statistics and gradient_in_conv by mma.sync in tf32.
#include "cuda/check.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/conv2d/tap_products.cuh"
#include "kernels/conv_bn_relu_pool/column_conv.cuh"
#include "kernels/conv_bn_relu_pool/conv_bn_relu_pool.h"
#include "mnist/ceil_div.h"

namespace mnist::kernels {
namespace {

constexpr int kRowTiles = 2, kPositionTiles = 4;   // 16x8 products of a warp: 16 channels, 8 positions of a row
constexpr int kChannels = 16 * kRowTiles;          // of a block
constexpr int kWarps = 7, kThreads = 32 * kWarps;  // a warp has two rows of 14 positions, and two idle ones in each
constexpr int kPlanePitch = kConvPlane + 8;  // planes so far apart that a fragment's lanes, (g + 8 t) % 32, fall on 32
                                             // banks; an idle position's window ends behind its plane
template <bool kTurned>
constexpr int kSharedFloats = 2 * (kTapDepth * kPlanePitch + TapFilters<kRowTiles, kTurned>::kFloats);

// Planes first ... of an Input (column_conv.cuh) at one position: fetch() only loads, store() computes, rounds to tf32
// and has zeros for the planes from `count` on.
template <class Input>
__device__ void fetch(typename Input::Element (&elements)[kTapDepth], const Input& input, int first, int count,
                      int position) {
#pragma unroll
  for (int i = 0; i < kTapDepth; ++i)
    if (first + i < count) elements[i] = input.fetch(first + i, position);
}
template <class Input>
__device__ void store(float* to, int pitch, const typename Input::Element (&elements)[kTapDepth], const Input& input,
                      int first, int count) {
#pragma unroll
  for (int i = 0; i < kTapDepth; ++i)
    to[i * pitch] = first + i < count ? __uint_as_float(device::to_tf32(input.value(elements[i], first + i))) : 0.0f;
}

// ColumnConv::run() on the tensor cores: for_each_pair() says which sums a thread has. While a stage of 8 input
// channels is multiplied, the next planes are on their way through registers, as in ColumnConv, and the next filters by
// cp.async. kWidth: weights that are copied at a time.
template <bool kTurned, int kWidth, class Input>
__device__ void convolve(float (&sums)[kRowTiles][kPositionTiles][4], float* shared, const Input& input,
                         const float* __restrict__ w, int in, int out, int first) {
  using Filters = TapFilters<kRowTiles, kTurned>;
  const int thread = int(threadIdx.x), warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
  const int place = (thread / kConvSide + 1) * kConvPitch + thread % kConvSide + 1;  // of position `thread`
  float* const filters = shared + 2 * kTapDepth * kPlanePitch;
  typename Input::Element elements[kTapDepth];
  const auto load = [&](int stage, int i0) {
    if (thread < kConvArea) fetch(elements, input, i0, in, thread);
    Filters::template copy<kWidth, kThreads>(filters + stage * Filters::kFloats, w, i0, first, in, out, thread);
    device::copy_async_commit();
  };

  load(0, 0);
  for (int n = thread; n < 2 * kTapDepth * kPlanePitch; n += kThreads)  // borders stay zeros
    if (inside_border(n % kPlanePitch) < 0) shared[n] = 0;
  int stage = 0;
  for (int i0 = 0; i0 < in; i0 += kTapDepth, stage ^= 1) {
    float* planes = shared + stage * kTapDepth * kPlanePitch;
    if (thread < kConvArea) store(planes + place, kPlanePitch, elements, input, i0, in);
    device::copy_async_wait<0>();
    Filters::template round<kWidth, kThreads>(filters + stage * Filters::kFloats, thread);
    __syncthreads();  // the stage is complete, and everyone is done with the one before the last
    if (i0 + kTapDepth < in) load(stage ^ 1, i0 + kTapDepth);
    const float* corner = planes + t * kPlanePitch + 2 * warp * kConvPitch + g;
    Filters::multiply(sums, filters + stage * Filters::kFloats, g, t, [&](int c, int i, int u, int v) {
      return corner[i * kPlanePitch + (c / 2 + u) * kConvPitch + c % 2 * 8 + v];
    });
  }
}

// Calls visit(j, position, pair) for what this thread has: of channel 8 j + g, `position` and the one after it.
template <class Visit>
__device__ void for_each_pair(const float (&sums)[kRowTiles][kPositionTiles][4], Visit visit) {
  const int warp = int(threadIdx.x) / 32, t = int(threadIdx.x) % 4;
#pragma unroll
  for (int c = 0; c < kPositionTiles; ++c) {
    const int p = 2 * warp + c / 2, q = c % 2 * 8 + 2 * t;
    if (q >= kConvSide) continue;
#pragma unroll
    for (int j = 0; j < kChannels / 8; ++j)
      visit(j, p * kConvSide + q, make_float2(sums[j / 2][c][j % 2 * 2], sums[j / 2][c][j % 2 * 2 + 1]));
  }
}

// blockIdx.x = b, blockIdx.y = which channels; z and of_images as conv_statistics' kernel has them.
template <int kWidth>
__global__ void __launch_bounds__(kThreads, 3)
    tensor_cores_statistics_kernel(float* __restrict__ z, float* __restrict__ of_images, const float* __restrict__ x,
                                   const float* __restrict__ w, const float* __restrict__ bias, int in, int out) {
  __shared__ __align__(16) float shared[kSharedFloats<false>];
  __shared__ float parts[kWarps][kChannels], means[kChannels];
  const std::int64_t b = blockIdx.x, batch = gridDim.x;
  const int first = int(blockIdx.y) * kChannels, thread = int(threadIdx.x), g = thread % 32 / 4, o = first + thread;
  float sums[kRowTiles][kPositionTiles][4] = {};
  convolve<false, kWidth>(sums, shared, PlainInput{x + b * in * kConvArea}, w, in, out, first);

#pragma unroll
  for (int j = 0; j < kChannels / 8; ++j) {
    const float constant = first + 8 * j + g < out ? bias[first + 8 * j + g] : 0;
#pragma unroll
    for (int c = 0; c < kPositionTiles; ++c)
      sums[j / 2][c][j % 2 * 2] += constant, sums[j / 2][c][j % 2 * 2 + 1] += constant;
  }
  for_each_pair(sums, [&](int j, int position, float2 pair) {
    const int channel = first + 8 * j + g;
    if (channel < out) *reinterpret_cast<float2*>(&z[(b * out + channel) * kConvArea + position]) = pair;
  });
  // The sum over the image of what `of` makes of a pair, in thread k that of channel k: the four lanes of a channel by
  // shuffles, then the warps in their order.
  const auto over_image = [&](auto of) {
    float totals[kChannels / 8] = {};
    for_each_pair(sums, [&](int j, int, float2 pair) { totals[j] += of(8 * j + g, pair); });
#pragma unroll
    for (int j = 0; j < kChannels / 8; ++j) {
      totals[j] += __shfl_xor_sync(0xffffffff, totals[j], 1);
      totals[j] += __shfl_xor_sync(0xffffffff, totals[j], 2);
      if (thread % 4 == 0) parts[thread / 32][8 * j + g] = totals[j];
    }
    __syncthreads();  // the sums of all warps are there
    float total = 0;
    if (thread < kChannels)
      for (int warp = 0; warp < kWarps; ++warp) total += parts[warp][thread];
    return total;
  };
  const float sum = over_image([](int, float2 pair) { return pair.x + pair.y; });
  if (thread < kChannels) means[thread] = sum / kConvArea;
  __syncthreads();  // the means are there, and everyone is done with the parts
  const float squares = over_image([&](int k, float2 pair) {
    return (pair.x - means[k]) * (pair.x - means[k]) + (pair.y - means[k]) * (pair.y - means[k]);
  });
  if (thread < kChannels && o < out) {
    of_images[o * batch + b] = means[thread];
    of_images[(out + o) * batch + b] = squares;
  }
}

// blockIdx.x = b, blockIdx.y = which input channels. dx[b,i] = sum over o of dz[b,o] * the turned w[o,i].
template <int kWidth>
__global__ void __launch_bounds__(kThreads, 2)
    tensor_cores_data_kernel(float* __restrict__ dx, PooledGradient of, BatchNormGradient by,
                             const float* __restrict__ w, int in, int out) {
  __shared__ __align__(16) float shared[kSharedFloats<true>];
  __shared__ ChannelGradient channels[kMostGradientChannels];
  const std::int64_t b = blockIdx.x, planes = b * out;
  const int first = int(blockIdx.y) * kChannels;
  for (int o = int(threadIdx.x); o < out; o += kThreads) channels[o] = channel_gradient(by, o);
  __syncthreads();  // the constants of all channels are there
  const GradientInput input{of.z + planes * kConvArea, of.da + planes * kConvWindows, of.route + planes * kConvWindows,
                            channels};
  float sums[kRowTiles][kPositionTiles][4] = {};
  convolve<true, kWidth>(sums, shared, input, w, out, in, first);
  for_each_pair(sums, [&](int j, int position, float2 pair) {
    const int channel = first + 8 * j + int(threadIdx.x) % 32 / 4;
    if (channel < in) *reinterpret_cast<float2*>(&dx[(b * in + channel) * kConvArea + position]) = pair;
  });
}

// ---- by weight: for each tap 32 outputs by positions times positions by 32 inputs; a warp 16 by 8 of all taps ----
constexpr int kWeightThreads = 32 * (kChannels / 16) * (kChannels / 8);
// Planes of dz have zeros in columns 14 and 15, so position n of tap (u,v) is number n + 16 u + v of a plane of x,
// which has a border. Distances by which the lanes of a fragment, (4 g + t) % 32, fall on 32 banks.
constexpr int kGradientPlane = kConvSide * kConvPitch;
constexpr int kGradientPitch = kGradientPlane + 4, kInputPitch = kConvPlane + 4;
constexpr int kWeightFloats = kChannels * (kGradientPitch + kInputPitch);

// partial[chunk,tap,o,i] as gradient_in_conv's kernel has it. blockIdx.x = chunk, blockIdx.y = which 32 outputs,
// blockIdx.z = which 32 inputs.
__global__ void __launch_bounds__(kWeightThreads, 2)
    tensor_cores_weight_kernel(float* __restrict__ partial, PooledGradient of, BatchNormGradient by,
                               const float* __restrict__ x, std::int64_t batch, int in, int out) {
  extern __shared__ float4 shared[];
  __shared__ ChannelGradient channels[kChannels];
  float *dz = reinterpret_cast<float*>(shared), *planes = dz + kChannels * kGradientPitch;
  const int thread = int(threadIdx.x), warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
  const int row = warp / (kChannels / 8) * 16 + g, column = warp % (kChannels / 8) * 8;  // of the warp's sums
  const int o0 = int(blockIdx.y) * kChannels, i0 = int(blockIdx.z) * kChannels;
  const std::int64_t begin = blockIdx.x * batch / gridDim.x, end = (blockIdx.x + 1) * batch / gridDim.x;
  const int p = thread / kConvSide, q = thread % kConvSide;  // a thread loads one position of all planes
  if (thread < kChannels && o0 + thread < out) channels[thread] = channel_gradient(by, o0 + thread);
  for (int n = thread; n < kWeightFloats; n += kWeightThreads) dz[n] = 0;
  __syncthreads();  // the constants are there, and zeros around all planes
  float sums[kTaps][4] = {};

  for (std::int64_t b = begin; b < end; ++b) {
    const auto load = [&](float* to, int pitch, const auto& input, int count) {
#pragma unroll 1
      for (int first = 0; first < kChannels; first += kTapDepth) {
        typename std::remove_cvref_t<decltype(input)>::Element elements[kTapDepth];
        fetch(elements, input, first, count, thread);
        store(to + first * pitch, pitch, elements, input, first, count);
      }
    };
    if (thread < kConvArea) {
      const std::int64_t z0 = b * out + o0;
      load(planes + (p + 1) * kConvPitch + q + 1, kInputPitch, PlainInput{x + (b * in + i0) * kConvArea}, in - i0);
      load(dz + p * kConvPitch + q, kGradientPitch,
           GradientInput{of.z + z0 * kConvArea, of.da + z0 * kConvWindows, of.route + z0 * kConvWindows, channels},
           out - o0);
    }
    __syncthreads();  // dz and x are complete
    const float *from_dz = dz + row * kGradientPitch + t, *from_x = planes + (column + g) * kInputPitch + t;
#pragma unroll 2
    for (int n = 0; n < kGradientPlane; n += 8) {
      std::uint32_t a[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) a[e] = __float_as_uint(from_dz[e % 2 * 8 * kGradientPitch + n + e / 2 * 4]);
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        const float* at = from_x + n + tap / 3 * kConvPitch + tap % 3;
        device::mma_tf32(sums[tap], a, __float_as_uint(at[0]), __float_as_uint(at[4]));
      }
    }
    __syncthreads();  // everyone is done with them
  }
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int o = o0 + row + e / 2 * 8, i = i0 + column + 2 * t + e % 2;
      if (o < out && i < in) partial[((std::int64_t(blockIdx.x) * kTaps + tap) * out + o) * in + i] = sums[tap][e];
    }
}

void require_pairs(const char* what, const float* values) {
  MNIST_REQUIRE(reinterpret_cast<std::uintptr_t>(values) % sizeof(float2) == 0, what << " must be aligned to 8 bytes");
}

}  // namespace

void conv2d_with_statistics_tensor_cores(float* z, float* of_images, const float* x, const float* w, const float* bias,
                                         std::int64_t batch, int in, int out, int side, cudaStream_t stream) {
  require_conv_side("conv2d_with_statistics_tensor_cores", side);
  require_pairs("conv2d_with_statistics_tensor_cores: z", z);
  const dim3 grid(unsigned(batch), unsigned(ceil_div(out, kChannels)));
  const auto kernel = device::is_wide(in, {w}) ? tensor_cores_statistics_kernel<4> : tensor_cores_statistics_kernel<1>;
  kernel<<<grid, kThreads, 0, stream>>>(z, of_images, x, w, bias, in, out);
  MNIST_CHECK_LAUNCH();
}

void gradient_in_conv_data_tensor_cores(float* dx, const PooledGradient& of, const float* w, std::int64_t batch, int in,
                                        int out, int side, cudaStream_t stream) {
  require_conv_side("gradient_in_conv_data_tensor_cores", side);
  require_gradient_channels("gradient_in_conv_data_tensor_cores", out);
  require_pairs("gradient_in_conv_data_tensor_cores: dx", dx);
  const dim3 grid(unsigned(batch), unsigned(ceil_div(in, kChannels)));
  const auto kernel = device::is_wide(in, {w}) ? tensor_cores_data_kernel<4> : tensor_cores_data_kernel<1>;
  kernel<<<grid, kThreads, 0, stream>>>(dx, of, gradient_of(of, batch, kConvSide), w, in, out);
  MNIST_CHECK_LAUNCH();
}

void gradient_in_conv_weight_tensor_cores(float* partial, const PooledGradient& of, const float* x, std::int64_t batch,
                                          int in, int out, int side, cudaStream_t stream) {
  require_conv_side("gradient_in_conv_weight_tensor_cores", side);
  constexpr int kBytes = kWeightFloats * int(sizeof(float));
  const dim3 grid(unsigned(gradient_in_conv_chunks(batch)), unsigned(ceil_div(out, kChannels)),
                  unsigned(ceil_div(in, kChannels)));
  MNIST_CHECK(cudaFuncSetAttribute(tensor_cores_weight_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  tensor_cores_weight_kernel<<<grid, kWeightThreads, kBytes, stream>>>(partial, of, gradient_of(of, batch, kConvSide),
                                                                       x, batch, in, out);
  MNIST_CHECK_LAUNCH();
}

void conv_bn_relu_pool_forward_tensor_cores(float* a, std::uint8_t* route, float* z, float* statistics, float* scratch,
                                            const float* x, const float* w, const float* bias, const float* gamma,
                                            const float* beta, std::int64_t batch, int in, int out, int side,
                                            cudaStream_t stream) {
  conv2d_with_statistics_tensor_cores(z, scratch, x, w, bias, batch, in, out, side, stream);
  merge_apply_pool(a, route, statistics, statistics + out, z, scratch, gamma, beta, batch, out, side, stream);
}

void conv_bn_relu_pool_backward_tensor_cores(float* dx, float* dw, float* dgamma, float* dbeta, float* scratch,
                                             const float* da, const float* x, const float* z, const float* statistics,
                                             const std::uint8_t* route, const float* w, const float* gamma,
                                             std::int64_t batch, int in, int out, int side, cudaStream_t stream) {
  const float *mean = statistics, *var = statistics + out;
  const PooledGradient of{da, z, route, gamma, mean, var, dgamma, dbeta};
  pooled_sums(dgamma, dbeta, da, z, route, mean, var, batch, out, side, stream);
  gradient_in_conv_weight_tensor_cores(scratch, of, x, batch, in, out, side, stream);
  conv2d_add_chunks(dw, scratch, in, out, int(gradient_in_conv_chunks(batch)), stream);
  if (dx) gradient_in_conv_data_tensor_cores(dx, of, w, batch, in, out, side, stream);
}

}  // namespace mnist::kernels
