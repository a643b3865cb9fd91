// Vec: one register of floats of the instruction set this translation unit is compiled for.
//
// GCC's vector extension does the arithmetic, so the kernels are written once. Each instruction set has a translation
// unit of its own, and these headers live in an anonymous namespace and use no inline function of the standard library:
// the linker must never share code between units that assume different machines.
#pragma once

#include "cpu/kernels.h"

#if defined(__clang__)
#define MNIST_UNROLL _Pragma("unroll")
#else
#define MNIST_UNROLL _Pragma("GCC unroll 16")
#endif

namespace mnist::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kRegisters = 32;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kRegisters = 16;
#else
constexpr int kLanes = 4, kRegisters = 16;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef std::int32_t Mask __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef double DoubleVec __attribute__((vector_size(kLanes * 4), aligned(8), may_alias));

inline Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline Mask load(const std::int32_t* p) { return *reinterpret_cast<const Mask*>(p); }
inline DoubleVec load(const double* p) { return *reinterpret_cast<const DoubleVec*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
inline void store(std::int32_t* p, Mask v) { *reinterpret_cast<Mask*>(p) = v; }
inline Vec broadcast(float value) { return value - Vec{}; }  // x - 0 is x for every x, -0 too; x + 0 is not

// Starts to bring the cache lines of p[0..count) near.
inline void prefetch(const float* p, int count) {
  for (int i = 0; i < count; i += 16) __builtin_prefetch(p + i);
}

// NaN stays NaN.
inline Vec relu(Vec v) { return Vec{} > v ? Vec{} : v; }

}  // namespace
}  // namespace mnist::cpu
