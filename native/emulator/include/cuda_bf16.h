// bfloat16 as a storage type: from float to nearest even, to float exactly.
#pragma once
#include "cuda_runtime_api.h"

struct __nv_bfloat16 {
  std::uint16_t bits;

  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float value) {
    const auto whole = std::uint32_t(::emulator::to_bits(value));
    bits = value == value ? std::uint16_t((whole + 0x7fff + (whole >> 16 & 1)) >> 16) : 0x7fff;
  }
  explicit operator float() const { return ::emulator::from_bits<float>(std::uint64_t(bits) << 16); }
};
