// The pixels of an image in the orders in which the routed taps read them: for mma.sync, and for wgmma.
#pragma once

#include <cstdint>

#include "kernels/fused/shared/image.cuh"
#include "kernels/fused/shared/layout.cuh"

namespace mnist::fused {

// The pixels of an image for the routed taps: one list of 8 for each row and x'' mod 4, x'' = x + 1, because the cells
// of a plane are 4 pixels apart; so the pixels of two neighbouring slots are neighbours. Index j of the lists
// holds x'' = 4j - 2, 4j - 1, 4j, 4j + 1, 4j + 2 and 4j + 3. A window in plane 0 begins at 4j - 2, in plane 1 at 4j.
// Lists are 35 rows apart, which keeps the 8 taps of a load in different banks.
template <class P>
struct PixelLists {
  using T = typename P::T;
  static constexpr int kRowBytes = 8 * sizeof(T), kListBytes = 35 * kRowBytes, kBytes = 6 * kListBytes;
  // Of a word, the j-th of a row: calls store(list, i, value) for each place of its pixels, index j + i of the list.
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

// The lists of PixelLists as wgmma reads them. For each of kCellRows rows of cells: 4 rows of ones, then of each of the
// 6 lists the 4 rows of the image that the cells' windows see; behind the last, ones again. A row is 8 pixels of 16
// bits, the k of a product, and 24 of them are its columns: at position (dy, 0) from row dy of the ones on, which are
// followed by lists 0 to 4; at (dy, 1) from row dy of list 1 on, and the ones come last. So column 4 l + u is tap row u
// of the l-th list there, and u = 3 means nothing; the last such column lies behind the end.
template <class P, int kCellRows>
struct PixelListRows {
  static constexpr int kRowBytes = 16, kListBytes = 4 * kRowBytes, kCellsBytes = 7 * kListBytes;
  static constexpr int kBytes = kCellRows * kCellsBytes + kListBytes;

  // Word j of row y of the padded image, counted from the first that a window sees.
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
