// B2: from g2 back to the weights of both convolutions. For each image: dz2, its dgrad through conv2 to conv1's pooled
// cells, and the two weight gradients.
//
// With D the gradient routed to each window's maximum, batch norm's backward is dz2 = s D + alpha + kappa z2 by
// channel; alpha and kappa come from B1's sums. conv1's layer needs no dense gradient at all: its weight gradient
// follows in closed form from G[c] = sum over windows of the gradient times the 9 pixels under the winning position
// and from the batch's pixel moments (see update.cuh), so only G leaves this kernel.
//
// A unit is kImages whole images (kRows = 14) or, so that small batches fill the GPU, half of one (kRows = 7 image
// rows, and the neighbouring row on either side). Row r of the shared images is image row y0 + r - 1.
#pragma once

#include "kernels/fused/forward1.cuh"

namespace mnist::fused {

template <class P, int kImages, int kRows>
struct Backward2Shared {
  static constexpr int kA1Pitch = kSlotPitch<P, kConv1Channels>, kDzPitch = kSlotPitch<P, kConv2Channels>;
  static constexpr int kA1Bytes = ((kRows + 2) * kSlots + 1) * kA1Pitch;
  static constexpr int kDzBytes = ((kRows + 2) * kSlots + 1) * kDzPitch;
  static constexpr int kFilter = 0;
  static constexpr int kA1 = kFilter + 32 * kFilterPitch<P, kConv2Channels>;
  static constexpr int kDz = kA1 + kImages * kA1Bytes;
  static constexpr int kRoute = kDz + kImages * kDzBytes;
  static constexpr int kImage = kRoute + kImages * kRoute1Words * 4;
  static constexpr int kBytes = kImage + kImages * kImageBytes;
};

// bn2's backward by channel, in shared memory: dz2 = scale * D + alpha + kappa * z2.
struct Bn2Backward {
  float scale[kConv2Channels], shift[kConv2Channels], alpha[kConv2Channels], kappa[kConv2Channels];
};

__device__ __forceinline__ void load_bn2_backward(const State& s, Bn2Backward& bn,
                                                  double (&partial)[kConvThreads / 64][2][kConv2Channels]) {
  constexpr int kGroups = kConvThreads / 64;
  const int tid = threadIdx.x, channel = tid & 63, group = tid >> 6;
  double sum = 0, sum_xhat = 0;
#pragma unroll
  for (int k = 0; k < (kCells2 + kGroups - 1) / kGroups; ++k) {
    const int cell = group + k * kGroups;
    if (cell < kCells2) {
      sum += s.g2_sums[cell * 64 + channel];
      sum_xhat += s.g2_sums[(kCells2 + cell) * 64 + channel];
    }
  }
  partial[group][0][channel] = sum;
  partial[group][1][channel] = sum_xhat;
  __syncthreads();
  if (tid < kConv2Channels) {
    double dbeta = 0, dgamma = 0;
    for (int k = 0; k < kGroups; ++k) dbeta += partial[k][0][tid], dgamma += partial[k][1][tid];
    const double scale = s.bn2[tid], mean = s.bn2[128 + tid], inv_sigma = s.bn2[192 + tid];
    const double kappa = -scale * dgamma * inv_sigma * s.inv_n2;
    bn.scale[tid] = float(scale);
    bn.shift[tid] = s.bn2[64 + tid];
    bn.kappa[tid] = float(kappa);
    bn.alpha[tid] = float(-scale * dbeta * s.inv_n2 - kappa * mean);
    if (blockIdx.x == 0) {  // nobody else reads bn2's parameters in this phase
      constexpr auto gamma_at = kParameters[kBn2Weight].offset, beta_at = kParameters[kBn2Bias].offset;
      const float gamma = s.parameters[gamma_at + tid], sign = gamma < 0 ? -1.f : 1.f, learning_rate = s.scalars[0];
      s.dbn2[tid] = sign;  // of the step that is ending: U folds it out of conv2's gradient
      s.parameters[gamma_at + tid] = gamma - learning_rate * float(sign * dgamma);
      s.parameters[beta_at + tid] -= learning_rate * float(dbeta);
      if (s.gradients) {
        s.gradients[gamma_at + tid] = float(sign * dgamma);
        s.gradients[beta_at + tid] = float(dbeta);
      }
    }
  }
  __syncthreads();
}

// G of one image row and 16 channels: gradient `da1` (rows = channels, columns = slots of a plane) times the pixels
// under the position that `route` names: one product a position, with the other windows' gradients masked to 0. Bit 7 -
// p of byte i of route[plane] says that value i goes to position p; shifted to the top of its byte it becomes a mask in
// one instruction. Column 9 of the result is the plain sum, bn1's d beta.
template <class P>
__device__ __forceinline__ void accumulate_g1(float (&g1)[2][4], const float (&da1)[2][4],
                                              const std::uint32_t (&route)[2], std::uint32_t image, int cy, int lane) {
  using Pixel = typename P::Pixel;
  const int g = lane >> 2, t = lane & 3;
  const std::uint32_t tap = ((g / 3) * kImagePitch + g % 3) * 2, last_tap = (2 * kImagePitch + 2) * 2;
  const std::uint32_t one = std::is_same_v<Pixel, __half> ? 0x3c00u : 0x3f80u;
  std::uint32_t corner[2][2];  // of the window of slot 2t + e in each plane
#pragma unroll
  for (int plane = 0; plane < 2; ++plane)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int j = 2 * t + e, cx = plane == 0 ? (j == 0 ? 1 : 2 * j - 1) : (j == 7 ? 12 : 2 * j);
      corner[plane][e] = image + (2 * cy * kImagePitch + 2 * cx) * 2;
    }
  std::uint32_t packed[2][2];  // pairs of neighbouring slots in bf16
#pragma unroll
  for (int plane = 0; plane < 2; ++plane)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(da1[plane][2 * half], da1[plane][2 * half + 1]);
      packed[plane][half] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
#pragma unroll
  for (int position = 0; position < 4; ++position) {
    const std::uint32_t shift = ((position >> 1) * kImagePitch + (position & 1)) * 2;
    std::uint32_t b[2][2][2];  // [columns 0-7 or 8-15][plane][slot], 16-bit pixels
#pragma unroll
    for (int plane = 0; plane < 2; ++plane)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        b[0][plane][e] = load_shared_16(corner[plane][e] + shift + tap);
        const std::uint32_t last = load_shared_16(corner[plane][e] + shift + last_tap);
        b[1][plane][e] = g == 0 ? last : g == 1 ? one : 0u;
      }
    const std::uint32_t flags[2] = {route[0] << position, route[1] << position};
    if constexpr (sizeof(typename P::T) == 2) {
      const std::uint32_t a[4] = {
          packed[0][0] & permute_bytes(flags[0], 0x9988), packed[0][1] & permute_bytes(flags[0], 0xbbaa),
          packed[1][0] & permute_bytes(flags[1], 0x9988), packed[1][1] & permute_bytes(flags[1], 0xbbaa)};
#pragma unroll
      for (int n = 0; n < 2; ++n) mma_bf16(g1[n], a, b[n][0][0] | b[n][0][1] << 16, b[n][1][0] | b[n][1][1] << 16);
    } else {
      const auto pixel = [](std::uint32_t bits) {
        return __float_as_uint(__half2float(__ushort_as_half(std::uint16_t(bits))));
      };
#pragma unroll
      for (int plane = 0; plane < 2; ++plane) {
        const auto masked = [&](int i) {
          return __float_as_uint(da1[plane][i]) & permute_bytes(flags[plane], 0x8888 + i * 0x1111);
        };
        // k = t is slot 2t and k = t + 4 slot 2t + 1, the order in which a product's result lies in the registers.
        std::uint32_t a[4] = {masked(0), masked(2), masked(1), masked(3)};
        if constexpr (P::kDrainAccumulators) {
          const std::uint32_t small[4] = {small_part(a[0]), small_part(a[1]), small_part(a[2]), small_part(a[3])};
#pragma unroll
          for (int n = 0; n < 2; ++n) mma_tf32(g1[n], small, pixel(b[n][plane][0]), pixel(b[n][plane][1]));
#pragma unroll
          for (auto& x : a) x = big_part(x);
        } else {
#pragma unroll
          for (auto& x : a) x = __float_as_uint(P::store(__uint_as_float(x)));
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_tf32(g1[n], a, pixel(b[n][plane][0]), pixel(b[n][plane][1]));
      }
    }
  }
}

// dw[tap] += dz2^T a1 over the rows of one image: 16 of conv2's channels by 8 of conv1's.
template <class P, int kRows>
__device__ __forceinline__ void weight_gradient(float (&dw)[kTaps][4], std::uint32_t dz, std::uint32_t a1, int lane) {
  constexpr int kDzPitch = kSlotPitch<P, kConv2Channels>, kA1Pitch = kSlotPitch<P, kConv1Channels>;
  constexpr bool kHalf = sizeof(typename P::T) == 2;
  constexpr int kPlaneRegs = kHalf ? 1 : 2;
  const int g = lane >> 2, t = lane & 3;
  // Operands of the last three a1 rows, by column tap; row r lives at r % 3.
  std::uint32_t b[3][3][2][kPlaneRegs];
  const auto load_row = [&](std::uint32_t (&to)[3][2][kPlaneRegs], int row) {
#pragma unroll
    for (int v = 0; v < 3; ++v) {
      if constexpr (kHalf) {
        const int plane = lane >> 3 & 1;
        const int slot = (plane == 0 ? AlignedShift::at(0, v) : AlignedShift::at(1, v)) + (lane & 7);
        std::uint32_t r[2];
        load_matrix_x2_trans(r, a1 + (row * kSlots + slot) * kA1Pitch);
        to[v][0][0] = r[0];
        to[v][1][0] = r[1];
      } else {
#pragma unroll
        for (int plane = 0; plane < 2; ++plane)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            to[v][plane][e] =
                load_shared_32(a1 + (row * kSlots + AlignedShift::at(plane, v) + 2 * t + e) * kA1Pitch + g * 4);
      }
    }
  };
  load_row(b[0], 0);
  load_row(b[1], 1);
#pragma unroll 1
  for (int base = 0; base < kRows; base += 3) {
    float part[kTaps][4] = {};
    auto& sum = P::kDrainAccumulators ? part : dw;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      const int row = base + k + 1;  // of dz2
      if (row > kRows) break;
      load_row(b[(k + 2) % 3], row + 1);
      if constexpr (kHalf) {
        std::uint32_t a[4];
        load_matrix_x4_trans(a, dz + (row * kSlots + (lane & 7) + (lane >> 4) * 8) * kDzPitch + (lane >> 3 & 1) * 16);
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) {
          const auto& x = b[(k + tap / 3) % 3][tap % 3];
          P::mma(sum[tap], a, x[0][0], x[1][0]);
        }
      } else {
#pragma unroll
        for (int plane = 0; plane < 2; ++plane) {
          const std::uint32_t at = dz + (row * kSlots + plane * 8 + 2 * t) * kDzPitch + g * 4;
          const std::uint32_t a[4] = {load_shared_32(at), load_shared_32(at + 32), load_shared_32(at + kDzPitch),
                                      load_shared_32(at + kDzPitch + 32)};
#pragma unroll
          for (int tap = 0; tap < kTaps; ++tap) {
            const auto& x = b[(k + tap / 3) % 3][tap % 3];
            P::mma(sum[tap], a, x[plane][0], x[plane][kPlaneRegs - 1]);
          }
        }
      }
    }
    if constexpr (P::kDrainAccumulators)
#pragma unroll
      for (int i = 0; i < 4 * kTaps; ++i) dw[i >> 2][i & 3] += part[i >> 2][i & 3];
  }
}

template <class P, int kImages, int kRows>
__global__ void __launch_bounds__(kConvThreads, 1) backward2_kernel(State s, int slot) {
  using T = typename P::T;
  using Shared = Backward2Shared<P, kImages, kRows>;
  constexpr bool kHalfImage = kRows == 7;
  constexpr int kWarpsOfImage = kConvWarps / 2 / kImages;  // of each half of conv1's channels
  constexpr int kMaxRows = kHalfImage ? 1 : (kPool1Side + kWarpsOfImage - 1) / kWarpsOfImage;  // of a warp
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Bn2Backward bn;
  __shared__ double partial[kConvThreads / 64][2][kConv2Channels];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int y0 = kHalfImage ? (blockIdx.x & 1) * 7 : 0;  // the grid is even, so a block keeps its half

  load_filter<P, kConv2Channels>(shared + Shared::kFilter, s.conv2_data, 32);
  copy_async_commit();
  for (int i = tid; i < (Shared::kRoute - Shared::kA1) / 4; i += kConvThreads)
    reinterpret_cast<std::uint32_t*>(shared + Shared::kA1)[i] = 0;
  clear_images<P>(shared + Shared::kImage, kImages);
  const int channel0 = (warp & 1) * 16;  // this warp's half of conv1's channels

  // Rows of this warp, 1-based in the shared image. Two warps, one a half of the channels, share a row. An image's 14
  // rows are cut 4,3,4,3 (3,4,3,4 in the second image, so that each scheduler's warps add up to the same) or
  // 2,2,2,2,2,2,1,1.
  const int my_image = (warp >> 1) / kWarpsOfImage, member = (warp >> 1) % kWarpsOfImage;
  int first_row, row_count;
  if constexpr (kHalfImage) {
    first_row = member + 1;
    row_count = member < 7 ? 1 : 0;
  } else if constexpr (kImages == 2) {
    row_count = 4 - ((member + my_image) & 1);
    first_row = 1 + (my_image == 0 ? (7 * member + 1) / 2 : 7 * member / 2);
  } else {
    row_count = member < 6 ? 2 : 1;
    first_row = 1 + (member < 6 ? 2 * member : 6 + member);
  }

  float dw[kTaps][4] = {};  // conv2 channels 16 * (warp & 3) .., conv1 channels 8 * (warp >> 2) ..
  float g1[2][4] = {};
  constexpr int kWords = (kImages * kImageWords + kConvThreads - 1) / kConvThreads;
  constexpr int kCells = kHalfImage ? 28 : kCells2;   // windows to form in an image
  constexpr int kParts = kConv2Channels / kChunk<P>;  // 16-byte chunks of a cell
  constexpr int kCellsAtOnce = kConvThreads / kParts;
  constexpr int kPasses = (kImages * kCells + kCellsAtOnce - 1) / kCellsAtOnce;
  const int part = tid % kParts;
  const int first_cell = kHalfImage && y0 > 0 ? 21 : 0;  // windows 0-3 or 3-6 cover the rows and their halo
  const int first_pixel_row = kHalfImage && y0 > 0 ? 6 : 0, pixel_rows = kHalfImage ? 8 : kPool1Side;

  const int stride = kHalfImage ? gridDim.x / 2 : gridDim.x;
  const int units = (s.batch + kImages - 1) / kImages;
  // The pixels that a unit needs of a (B, 196, C) tensor, each to its slot; a thread copies one chunk of every few
  // pixels.
  const auto fetch_pixels = [&](auto channels, const void* from, int to, int image_bytes, int unit) {
    constexpr int C = channels, kPitch = kSlotPitch<P, C>, kChunks = C / kChunk<P>;
    const std::uint32_t base = shared_address(shared) + to + tid % kChunks * 16;
    const T* source = static_cast<const T*>(from) + tid % kChunks * kChunk<P>;
#pragma unroll
    for (int k = 0; k < kImages; ++k) {
      const int image = unit * kImages + k;
      if (image >= s.batch) break;
      for (int pixel = tid / kChunks; pixel < pixel_rows * kPool1Side; pixel += kConvThreads / kChunks) {
        const int y = pixel / kPool1Side, x = pixel % kPool1Side;
        copy_async_16(base + k * image_bytes + ((first_pixel_row + y - y0 + 1) * kSlots + slot_of(x + 1)) * kPitch,
                      source + (std::size_t(image) * kCells1 + first_pixel_row * kPool1Side + pixel) * C);
      }
    }
  };
  uint4 gradient[kPasses];
  const auto fetch_gradient = [&](int unit) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int i = pass * kCellsAtOnce + tid / kParts, image = unit * kImages + i / kCells;
      gradient[pass] = make_uint4(0, 0, 0, 0);
      if (i < kImages * kCells && image < s.batch)
        gradient[pass] = *reinterpret_cast<const uint4*>(static_cast<const T*>(s.g2) +
                                                         (std::size_t(image) * kCells2 + first_cell + i % kCells) * 64 +
                                                         part * kChunk<P>);
    }
  };
  bool first_unit = true;
  __syncthreads();
  for (int unit = kHalfImage ? blockIdx.x / 2 : blockIdx.x; unit < units; unit += stride) {
    // z2 straight to where dz2 will be, a1 and its routing beside it; g2 and the pixels through registers.
    fetch_pixels(std::integral_constant<int, kConv1Channels>{}, s.a1, Shared::kA1, Shared::kA1Bytes, unit);
    for (int i = tid; i < kImages * kRoute1Words / 4; i += kConvThreads)
      if (unit * kImages + i / (kRoute1Words / 4) < s.batch)
        copy_async_16(shared_address(shared + Shared::kRoute) + i * 16,
                      s.route1 + std::size_t(unit) * kImages * kRoute1Words + i * 4);
    fetch_pixels(std::integral_constant<int, kConv2Channels>{}, s.z2, Shared::kDz, Shared::kDzBytes, unit);
    copy_async_commit();
    if (!first_unit) fetch_gradient(unit);
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      const int i = tid + k * kConvThreads, image = unit * kImages + i / kImageWords;
      if (i < kImages * kImageWords && image < s.batch) {
        const auto index = s.samples.order[std::size_t(slot) * s.batch + image];
        store_image_word<P>(shared + Shared::kImage + i / kImageWords * kImageBytes, i % kImageWords,
                            reinterpret_cast<const std::uint32_t*>(s.samples.images +
                                                                   std::size_t(index) * kImagePixels)[i % kImageWords]);
      }
    }
    if (first_unit) {
      first_unit = false;
      wait_for_predecessor();  // B1: g2 and its sums
      fetch_gradient(unit);
      load_bn2_backward(s, bn, partial);
    }
    copy_async_wait<0>();
    __syncthreads();

#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int i = pass * kCellsAtOnce + tid / kParts;
      if (i >= kImages * kCells) continue;
      const int k = i / kCells, cell = first_cell + i % kCells, image = unit * kImages + k;
      const int cy = cell / kPool2Side, cx = cell % kPool2Side;
      unsigned char* corner =
          shared + Shared::kDz + k * Shared::kDzBytes + ((2 * cy - y0 + 1) * kSlots) * Shared::kDzPitch + part * 16;
      unsigned char* at[4];
      T z[4][kChunk<P>];
#pragma unroll
      for (int position = 0; position < 4; ++position) {
        at[position] = corner + ((position >> 1) * kSlots + slot_of(2 * cx + 1 + (position & 1))) * Shared::kDzPitch;
        *reinterpret_cast<uint4*>(z[position]) = *reinterpret_cast<const uint4*>(at[position]);
      }
      if (image >= s.batch) {  // the last pair's missing image
#pragma unroll
        for (int position = 0; position < 4; ++position)
          *reinterpret_cast<uint4*>(at[position]) = make_uint4(0, 0, 0, 0);
        continue;
      }
      const T* g2 = reinterpret_cast<const T*>(&gradient[pass]);
#pragma unroll
      for (int c = 0; c < kChunk<P>; ++c) {
        const int channel = part * kChunk<P> + c;
        const float scale = bn.scale[channel], alpha = bn.alpha[channel], kappa = bn.kappa[channel];
        float value[4];
#pragma unroll
        for (int position = 0; position < 4; ++position) value[position] = P::load(z[position][c]);
        const float best = scale == 0.f ? value[0] : fmaxf(fmaxf(value[0], value[1]), fmaxf(value[2], value[3]));
        const bool is0 = value[0] == best, is1 = value[1] == best && !is0, is2 = value[2] == best && !is0 && !is1;
        if (s.route2)
          s.route2[(std::size_t(image) * kConv2Channels + channel) * kCells2 + cell] =
              fmaf(scale, best, bn.shift[channel]) > 0.f ? (is0   ? 0
                                                            : is1 ? 1
                                                            : is2 ? 2
                                                                  : 3)
                                                         : Routing::kDead;
        const float routed = scale * P::load(g2[c]);
#pragma unroll
        for (int position = 0; position < 4; ++position) value[position] = fmaf(kappa, value[position], alpha);
        if (is0) value[0] += routed;
        if (is1) value[1] += routed;
        if (is2) value[2] += routed;
        if (!is0 && !is1 && !is2) value[3] += routed;
#pragma unroll
        for (int position = 0; position < 4; ++position) z[position][c] = P::store(value[position]);
      }
#pragma unroll
      for (int position = 0; position < 4; ++position)
        *reinterpret_cast<uint4*>(at[position]) = *reinterpret_cast<const uint4*>(z[position]);
    }
    __syncthreads();

    const std::uint32_t pixels = shared_address(shared + Shared::kImage + my_image * kImageBytes);
    if (row_count > 0) {
      float acc[kMaxRows][2][4] = {};
      const std::uint32_t dz = shared_address(shared + Shared::kDz + my_image * Shared::kDzBytes) +
                               (first_row - 1) * kSlots * Shared::kDzPitch;
      const std::uint32_t filter =
          shared_address(shared + Shared::kFilter) + channel0 * kFilterPitch<P, kConv2Channels>;
      if (row_count == kMaxRows)
        conv3x3_rows<P, kConv2Channels, kMaxRows, AlignedShift, false>(acc, dz, filter, lane);
      else if constexpr (kMaxRows > 1)
        conv3x3_rows<P, kConv2Channels, kMaxRows - 1, AlignedShift, false>(acc, dz, filter, lane);
#pragma unroll
      for (int r = 0; r < kMaxRows; ++r)
        if (r < row_count) {
          const int cy = y0 + first_row + r - 1;
          const auto* words = reinterpret_cast<const std::uint32_t*>(shared + Shared::kRoute) +
                              my_image * kRoute1Words + (cy * 2 + (warp & 1)) * 64 + lane;
          const std::uint32_t route[2] = {words[0], words[32]};
          if constexpr (P::kDrainAccumulators) {
            float row_g1[2][4] = {};
            accumulate_g1<P>(row_g1, acc[r], route, pixels, cy, lane);
#pragma unroll
            for (int i = 0; i < 8; ++i) g1[i >> 2][i & 3] += row_g1[i >> 2][i & 3];
          } else {
            accumulate_g1<P>(g1, acc[r], route, pixels, cy, lane);
          }
        }
    }

#pragma unroll 1
    for (int k = 0; k < kImages; ++k) {
      const std::uint32_t dz =
          shared_address(shared + Shared::kDz + k * Shared::kDzBytes) + (warp & 3) * 16 * sizeof(T);
      const std::uint32_t a1_image =
          shared_address(shared + Shared::kA1 + k * Shared::kA1Bytes) + (warp >> 2) * 8 * sizeof(T);
      weight_gradient<P, kRows>(dw, dz, a1_image, lane);
    }
    __syncthreads();
  }

  const int g = lane >> 2, t = lane & 3;
  // Thread by thread, so that the stores are whole; update_conv2() knows which value lies where.
  auto* conv2_out = reinterpret_cast<float4*>(s.conv2_sums + std::size_t(blockIdx.x) * kConv2Values);
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap)
    conv2_out[tap * kConvThreads + tid] = make_float4(dw[tap][0], dw[tap][1], dw[tap][2], dw[tap][3]);

  auto* warp_g1 = reinterpret_cast<float*>(shared + Shared::kA1);  // [8 warps of each half][32][16]
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int n = k >> 2, i = k & 3;
    warp_g1[(warp >> 1) * 512 + (channel0 + (i >> 1) * 8 + g) * kG1Columns + n * 8 + 2 * t + (i & 1)] = g1[n][i];
  }
  __syncthreads();
  {
    float total = 0;
#pragma unroll
    for (int w = 0; w < 8; ++w) total += warp_g1[w * 512 + tid];
    s.g1_sums[std::size_t(blockIdx.x) * 512 + tid] = total;
  }
}

}  // namespace mnist::fused
