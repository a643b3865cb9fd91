// fp16, alone and in pairs.
#pragma once
#include "cuda_runtime_api.h"

using __half = emulator::Number16<emulator::Fp16>;
using __half2 = emulator::Pair16<emulator::Fp16>;

inline __half __float2half_rn(float x) { return __half(x); }
inline __half __float2half(float x) { return __half(x); }
inline float __half2float(__half x) { return float(x); }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline float2 __half22float2(__half2 pair) { return make_float2(float(pair.x), float(pair.y)); }
inline __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
inline __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }
