// The pixels of an image in the orders in which the routed taps read them: for mma.sync, and for wgmma.
#pragma once

#include "kernels/fused/shared/image.cuh"
#include "kernels/fused/shared/layout.cuh"

namespace mnist::fused {

// The pixels for mma.sync: 6 lists of 8 for each row of the padded image, whose columns are x'' = x + 1. The cells of a
// plane are 4 pixels apart, so list l holds every fourth column, and neighbouring slots j find neighbouring pixels:
//
//   list          0     1     2     3     4     5
//   x'' at j   4j-2  4j-1    4j  4j+1  4j+2  4j+3
//   plane 0    [-- 4 columns of pixels --]                 tap v of window position (dy, dx) is in list dx + v
//   plane 1                [-- 4 columns of pixels --]     ... in list 2 + dx + v
//
// Tap row u is dy + u rows below the first row of the window. Columns 4j + 2 and 4j + 3 occur twice, because lists 0
// and 1 hold them, too, at index j + 1. Lists are 35 rows apart, which keeps the 8 taps of a load in different banks.
template <class P>
struct PixelLists {
  using T = typename P::T;
  static constexpr int kRowBytes = 8 * sizeof(T), kListBytes = 35 * kRowBytes, kBytes = 6 * kListBytes;
  // Word j of a row holds x'' = 4j + 1 to 4j + 4. Calls store(list, i, value) for every place that one of these pixels
  // has: index j + i of the list.
  template <class Store>
  static __device__ __forceinline__ void spread(std::uint32_t word, Store store) {
    const auto pixel = [&](int k) { return T(float(Pixels<P>::of(word >> 8 * k & 255))); };
    store(3, 0, pixel(0));
    const T second = pixel(1);
    store(0, 1, second);
    store(4, 0, second);
    const T third = pixel(2);
    store(1, 1, third);
    store(5, 0, third);
    store(2, 1, pixel(3));
  }
  // Word j of row y of the padded image.
  static __device__ __forceinline__ void store_word(unsigned char* pixel_lists, int y, int j, std::uint32_t word) {
    auto* lists = reinterpret_cast<T*>(pixel_lists + y * kRowBytes) + j;
    spread(word, [&](int list, int at, T v) { lists[list * (kListBytes / int(sizeof(T))) + at] = v; });
  }
  static __device__ __forceinline__ void clear(unsigned char* pixel_lists, int tid) {
    for (int i = tid; i < kBytes / int(sizeof(T)); i += kConvThreads)
      reinterpret_cast<T*>(pixel_lists)[i] = T(float(Pixels<P>::kZero));
  }
};

// The same lists as the right operand of wgmma, which takes 24 successive rows of 16 bytes as its columns. A row is 8
// pixels of 16 bits: the k of a product, the slots of a plane. Each of kCellRows rows of cells has the 4 image rows
// that its windows see:
//
//   rows                0-3     4-7     8-11   12-15   16-19   20-23   24-27   28-31
//   hold                ones  list 0  list 1  list 2  list 3  list 4  list 5  ones of the next row of cells
//   columns at dx = 0  [ones  list 0  list 1  list 2  list 3  list 4]
//   columns at dx = 1                [list 1  list 2  list 3  list 4  list 5  ones]
//
// The product for window position (dy, dx) starts dy rows later. So column 4 n + u is tap row u of the n-th list in the
// brackets; u = 3 means nothing, and for the last list it lies behind the end. The ones yield the plain sum. Another
// four rows of ones stand behind the last row of cells.
template <class P, int kCellRows>
struct PixelListRows {
  static constexpr int kRowBytes = 16, kListBytes = 4 * kRowBytes, kCellsBytes = 7 * kListBytes;
  static constexpr int kBytes = kCellRows * kCellsBytes + kListBytes;

  // Where the columns of window position (dy, dx) begin, from the first byte of a row of cells.
  static __device__ constexpr int columns_at(int dy, int dx) { return dx * 2 * kListBytes + dy * kRowBytes; }

  // Word j of row y of the padded image, counted from the first row that a window sees. Windows of two rows of cells
  // see most rows.
  static __device__ __forceinline__ void store_word(unsigned char* rows, int y, int j, std::uint32_t word) {
    auto* here = reinterpret_cast<typename P::T*>(rows + (y >> 1) * kCellsBytes + kListBytes + (y & 1) * kRowBytes) + j;
    PixelLists<P>::spread(word, [&](int list, int at, typename P::T v) {
      auto* to = here + list * (kListBytes / 2) + at;
      if (y < 2 * kCellRows) *to = v;
      if (y >= 2) to[(2 * kRowBytes - kCellsBytes) / 2] = v;
    });
  }
  static __device__ __forceinline__ void clear(unsigned char* rows, int tid) {
    using T = typename P::T;
    const std::uint32_t ones = two_of(T(1.f)), padding = two_of(T(float(Pixels<P>::kZero)));
    for (int i = tid; i < kBytes / kRowBytes; i += kConvThreads) {
      const std::uint32_t two = i % (kCellsBytes / kRowBytes) < 4 ? ones : padding;
      reinterpret_cast<uint4*>(rows)[i] = make_uint4(two, two, two, two);
    }
  }
};

}  // namespace mnist::fused
