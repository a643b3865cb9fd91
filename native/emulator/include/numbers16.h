// Numbers of 16 bits and pairs of them; a format says how a float is rounded, to nearest even, and which float a number
// is. A part of cuda_runtime_api.h.
#pragma once

namespace emulator {

struct Bf16 {
  static std::uint16_t rounded(float value) {
    const auto whole = std::uint32_t(to_bits(value));
    return value == value ? std::uint16_t((whole + 0x7fff + (whole >> 16 & 1)) >> 16) : 0x7fff;
  }
  static float exact(std::uint16_t bits) { return from_bits<float>(std::uint64_t(bits) << 16); }
};
struct Fp16 {
  static std::uint16_t rounded(float value) {
    const auto whole = std::uint32_t(to_bits(value)), sign = whole >> 16 & 0x8000, size = whole & 0x7fffffff;
    if (size > 0x7f800000) return 0x7fff;
    if (size >= 0x477ff000) return std::uint16_t(sign | 0x7c00);  // what rounds to 2^16
    if (size >= 0x38800000) return std::uint16_t(sign | (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13);
    // Below 2^-14 in units of 2^-24, the last bit of a float near 0.5.
    return std::uint16_t(sign | (std::uint32_t(to_bits(from_bits<float>(size) + 0.5f)) - 0x3f000000));
  }
  static float exact(std::uint16_t bits) {
    const std::uint32_t sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
    if (size < 0x400) return from_bits<float>(sign | std::uint32_t(to_bits(float(size) * 0x1p-24f)));
    return from_bits<float>(sign | (size >= 0x7c00 ? 0x7f800000 | (size & 0x3ff) << 13 : (size << 13) + 0x38000000));
  }
};

}  // namespace emulator

struct __half_raw {
  std::uint16_t x;
};

namespace emulator {

template <class Format>
struct Number16 {
  std::uint16_t bits;

  Number16() = default;
  explicit Number16(float value) : bits(Format::rounded(value)) {}
  explicit Number16(__half_raw raw)
    requires std::is_same_v<Format, Fp16>
      : bits(raw.x) {}
  explicit operator float() const { return Format::exact(bits); }
  static Number16 of_bits(std::uint16_t bits) {
    Number16 number;
    number.bits = bits;
    return number;
  }
};

// Copied by one access of 4 bytes.
template <class Format>
struct alignas(4) Pair16 {
  Number16<Format> x, y;

  Pair16() = default;
  Pair16(Number16<Format> first, Number16<Format> second) : x(first), y(second) {}
  __attribute__((always_inline)) Pair16(const Pair16& other) { copy_whole(this, &other); }
  __attribute__((always_inline)) Pair16& operator=(const Pair16& other) {
    copy_whole(this, &other);
    return *this;
  }
};

// 0xffff in each half where `holds` does.
template <class Format, class Holds>
unsigned mask16(const Pair16<Format>& a, const Pair16<Format>& b, Holds holds) {
  return (holds(float(a.x), float(b.x)) ? 0xffffu : 0u) | (holds(float(a.y), float(b.y)) ? 0xffff0000u : 0u);
}

}  // namespace emulator

// The larger of two; of a number and a NaN the number.
template <class Format>
emulator::Number16<Format> __hmax(emulator::Number16<Format> a, emulator::Number16<Format> b) {
  const float x = float(a), y = float(b);
  if (x != x) return y != y ? emulator::Number16<Format>::of_bits(0x7fff) : b;
  return y > x || (y == x && !std::signbit(y)) ? b : a;
}
template <class Format>
emulator::Pair16<Format> __hmax2(const emulator::Pair16<Format>& a, const emulator::Pair16<Format>& b) {
  return {__hmax(a.x, b.x), __hmax(a.y, b.y)};
}
template <class Format>
unsigned __heq2_mask(const emulator::Pair16<Format>& a, const emulator::Pair16<Format>& b) {
  return emulator::mask16(a, b, [](float x, float y) { return x == y; });
}
template <class Format>
unsigned __hgt2_mask(const emulator::Pair16<Format>& a, const emulator::Pair16<Format>& b) {
  return emulator::mask16(a, b, [](float x, float y) { return x > y; });
}
template <class Format>  // a NaN is unequal
unsigned __hneu2_mask(const emulator::Pair16<Format>& a, const emulator::Pair16<Format>& b) {
  return emulator::mask16(a, b, [](float x, float y) { return x != y; });
}
