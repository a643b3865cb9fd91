// wgmma: a warpgroup (4 warps) multiplies matrices in shared memory on Hopper's tensor cores, asynchronously and at
// their full rate, which mma.sync does not reach. Only code compiled for sm_90a has it; elsewhere these functions do
// not exist.
//
// Most operands lie in shared memory without swizzling, as PTX's "core matrices": 8 rows of 16 bytes, 128 bytes in one
// piece. With 16-byte chunks of channels kept apart, [chunk][pixel][16 bytes], one image is every operand a convolution
// needs, because its core matrices may begin at any pixel:
//   a sum over channels: pixels are the rows, a k-step is two chunks (K-major)
//   a sum over pixels:   pixels are the k, chunks of channels the rows (MN-major; 16-bit values only)
// and a tap is nothing but another start address.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/device/delays.cuh"
#include "kernels/device/lane.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace mnist::kernels::device {

// The descriptor of an operand at shared address `address`: from a core matrix to the next it is `k_stride` bytes along
// k and `row_stride` across it (PTX ISA, "Matrix Descriptor"; all three are multiples of 16). A warp's lanes agree on
// it. The compiler must see that, or each product first moves its descriptors from ordinary registers (R2UR).
__device__ __forceinline__ std::uint64_t wgmma_operand(std::uint32_t address, int k_stride, int row_stride) {
  address = uniform(address);
  return std::uint64_t(address >> 4) | std::uint64_t(k_stride >> 4) << 16 | std::uint64_t(row_stride >> 4) << 32;
}

// Of a K-major operand with 64 values of 16 bits a row, in rows of 128 bytes that follow each other from a multiple of
// 1024 on. It is swizzled: 16-byte chunk c of row r lies where chunk c ^ r % 8 would. The next k-step begins 32 bytes
// later. Here a row is one line of shared memory, so that cp.async brings it at full rate.
__device__ __forceinline__ std::uint64_t wgmma_swizzled(std::uint32_t address) {
  return wgmma_operand(address, 16, 8 * 128) | std::uint64_t(1) << 62;
}

// What this thread wrote to shared memory, or learnt through a barrier that others wrote, becomes visible to wgmma and
// to the copy engine, for which a barrier alone does not do. It waits for all copies and stores that this thread has
// under way.
__device__ __forceinline__ void wgmma_publish() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  delay();
}

// Before the first product and wherever registers that the next one uses were touched.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until all groups but the last kPending are done; their registers must not be touched before.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  delay();
}

// Stands behind the wait for the products that made `d`: keeps the compiler from moving what uses them ahead of it.
template <int kCount>
__device__ __forceinline__ void wgmma_results(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void wgmma_results(std::uint32_t (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// d = a b, or d += a b where `add`: 64 rows by kColumns, one k-step of 32 bytes, both operands K-major. Warp w holds
// rows 16 w ..; with g = lane / 4 and t = lane % 4, d[4 n + i] is row g + i / 2 * 8, column 8 n + 2 t + i % 2.
#define MNIST_F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MNIST_F16(d, i) MNIST_F4(d, i), MNIST_F4(d, i + 4), MNIST_F4(d, i + 8), MNIST_F4(d, i + 12)
#define MNIST_REGISTERS_0_11 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11"
#define MNIST_REGISTERS_0_15 MNIST_REGISTERS_0_11 ",%12,%13,%14,%15"
#define MNIST_REGISTERS_16_27 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27"
#define MNIST_REGISTERS_28_31 ",%28,%29,%30,%31"
#define MNIST_REGISTERS_32_55 \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55"
#define MNIST_REGISTERS_56_63 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define MNIST_WGMMA(shape_and_types, registers, a, b, add, flags) \
  "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " add                     \
  ", 0;\n\t"                                                      \
  "wgmma.mma_async.sync.aligned." shape_and_types " {" registers "}, " a ", " b ", p, 1, 1" flags ";\n\t}"

#define MNIST_DEFINE_WGMMA(name, types, flags)                                                                        \
  __device__ __forceinline__ void name(float (&d)[28], std::uint64_t a, std::uint64_t b, bool add) {                  \
    asm volatile(MNIST_WGMMA("m64n56" types, MNIST_REGISTERS_0_15 MNIST_REGISTERS_16_27, "%28", "%29", "%30", flags)  \
                 : MNIST_F16(d, 0), MNIST_F4(d, 16), MNIST_F4(d, 20), MNIST_F4(d, 24)                                 \
                 : "l"(a), "l"(b), "r"(int(add)));                                                                    \
  }                                                                                                                   \
  __device__ __forceinline__ void name(float (&d)[32], std::uint64_t a, std::uint64_t b, bool add) {                  \
    asm volatile(MNIST_WGMMA("m64n64" types, MNIST_REGISTERS_0_15 MNIST_REGISTERS_16_27 MNIST_REGISTERS_28_31, "%32", \
                             "%33", "%34", flags)                                                                     \
                 : MNIST_F16(d, 0), MNIST_F16(d, 16)                                                                  \
                 : "l"(a), "l"(b), "r"(int(add)));                                                                    \
  }                                                                                                                   \
  __device__ __forceinline__ void name(float (&d)[56], std::uint64_t a, std::uint64_t b, bool add) {                  \
    asm volatile(MNIST_WGMMA("m64n112" types,                                                                         \
                             MNIST_REGISTERS_0_15 MNIST_REGISTERS_16_27 MNIST_REGISTERS_28_31 MNIST_REGISTERS_32_55,  \
                             "%56", "%57", "%58", flags)                                                              \
                 : MNIST_F16(d, 0), MNIST_F16(d, 16), MNIST_F16(d, 32), MNIST_F4(d, 48), MNIST_F4(d, 52)              \
                 : "l"(a), "l"(b), "r"(int(add)));                                                                    \
  }
MNIST_DEFINE_WGMMA(wgmma_bf16, "k16.f32.bf16.bf16", ", 0, 0")
MNIST_DEFINE_WGMMA(wgmma_fp16, "k16.f32.f16.f16", ", 0, 0")
#undef MNIST_DEFINE_WGMMA

// 32 columns of T, two bytes each: d += a b, or d = a b, k = 16 and b MN-major; `a` is MN-major, too, or K-major.
template <class T, bool kMnMajorA>
__device__ __forceinline__ void wgmma_columns(float (&d)[16], std::uint64_t a, std::uint64_t b, bool add) {
  if constexpr (std::is_same_v<T, __half>)
    asm volatile(MNIST_WGMMA("m64n32k16.f32.f16.f16", MNIST_REGISTERS_0_15, "%16", "%17", "%18", ", %19, 1")
                 : MNIST_F16(d, 0)
                 : "l"(a), "l"(b), "r"(int(add)), "n"(int(kMnMajorA)));
  else
    asm volatile(MNIST_WGMMA("m64n32k16.f32.bf16.bf16", MNIST_REGISTERS_0_15, "%16", "%17", "%18", ", %19, 1")
                 : MNIST_F16(d, 0)
                 : "l"(a), "l"(b), "r"(int(add)), "n"(int(kMnMajorA)));
}

// As above with k = 16; `a` in registers, as mma.m16n8k16 has it in each warp. With 128, 56, 32 or 24 columns b is
// K-major, of name##_columns it is MN-major.
#define MNIST_A(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
#define MNIST_DEFINE_WGMMA(name, types)                                                                               \
  __device__ __forceinline__ void name(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {      \
    asm volatile(MNIST_WGMMA("m64n128k16.f32." types,                                                                 \
                             MNIST_REGISTERS_0_15 MNIST_REGISTERS_16_27 MNIST_REGISTERS_28_31 MNIST_REGISTERS_32_55   \
                                 MNIST_REGISTERS_56_63,                                                               \
                             "{%64,%65,%66,%67}", "%68", "%69", ", 0")                                                \
                 : MNIST_F16(d, 0), MNIST_F16(d, 16), MNIST_F16(d, 32), MNIST_F16(d, 48)                              \
                 : MNIST_A(a), "l"(b), "r"(int(add)));                                                                \
  }                                                                                                                   \
  __device__ __forceinline__ void name(float (&d)[28], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {      \
    asm volatile(MNIST_WGMMA("m64n56k16.f32." types, MNIST_REGISTERS_0_15 MNIST_REGISTERS_16_27, "{%28,%29,%30,%31}", \
                             "%32", "%33", ", 0")                                                                     \
                 : MNIST_F16(d, 0), MNIST_F4(d, 16), MNIST_F4(d, 20), MNIST_F4(d, 24)                                 \
                 : MNIST_A(a), "l"(b), "r"(int(add)));                                                                \
  }                                                                                                                   \
  __device__ __forceinline__ void name(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {      \
    asm volatile(MNIST_WGMMA("m64n32k16.f32." types, MNIST_REGISTERS_0_15, "{%16,%17,%18,%19}", "%20", "%21", ", 0")  \
                 : MNIST_F16(d, 0)                                                                                    \
                 : MNIST_A(a), "l"(b), "r"(int(add)));                                                                \
  }                                                                                                                   \
  __device__ __forceinline__ void name(float (&d)[12], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {      \
    asm volatile(MNIST_WGMMA("m64n24k16.f32." types, MNIST_REGISTERS_0_11, "{%12,%13,%14,%15}", "%16", "%17", ", 0")  \
                 : MNIST_F4(d, 0), MNIST_F4(d, 4), MNIST_F4(d, 8)                                                     \
                 : MNIST_A(a), "l"(b), "r"(int(add)));                                                                \
  }                                                                                                                   \
  __device__ __forceinline__ void name##_columns(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b,        \
                                                 bool add) {                                                          \
    asm volatile(MNIST_WGMMA("m64n32k16.f32." types, MNIST_REGISTERS_0_15, "{%16,%17,%18,%19}", "%20", "%21", ", 1")  \
                 : MNIST_F16(d, 0)                                                                                    \
                 : MNIST_A(a), "l"(b), "r"(int(add)));                                                                \
  }
MNIST_DEFINE_WGMMA(wgmma_bf16, "bf16.bf16")
MNIST_DEFINE_WGMMA(wgmma_fp16, "f16.f16")
#undef MNIST_DEFINE_WGMMA

// d = a b with sums of fp16, in pairs: d[2 n + i] is row g + 8 i, columns 8 n + 2 t and the next.
#define MNIST_R4(d, i) "=r"(d[i]), "=r"(d[i + 1]), "=r"(d[i + 2]), "=r"(d[i + 3])
__device__ __forceinline__ void wgmma_fp16_sums(std::uint32_t (&d)[28], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n112k16.f16.f16.f16 {" MNIST_REGISTERS_0_15 MNIST_REGISTERS_16_27
               "}, {%28,%29,%30,%31}, %32, 0, 1, 1, 0;"
               : MNIST_R4(d, 0), MNIST_R4(d, 4), MNIST_R4(d, 8), MNIST_R4(d, 12), MNIST_R4(d, 16), MNIST_R4(d, 20),
                 MNIST_R4(d, 24)
               : MNIST_A(a), "l"(b));
}
#undef MNIST_R4
#undef MNIST_A

// The same of T, bf16 or fp16.
template <class T, class A, int kCount>
__device__ __forceinline__ void wgmma(float (&d)[kCount], const A& a, std::uint64_t b, bool add) {
  if constexpr (std::is_same_v<T, __half>)
    wgmma_fp16(d, a, b, add);
  else
    wgmma_bf16(d, a, b, add);
}
template <class T>
__device__ __forceinline__ void wgmma_columns(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
  if constexpr (std::is_same_v<T, __half>)
    wgmma_fp16_columns(d, a, b, add);
  else
    wgmma_bf16_columns(d, a, b, add);
}

#undef MNIST_WGMMA
#undef MNIST_REGISTERS_56_63
#undef MNIST_REGISTERS_32_55
#undef MNIST_REGISTERS_28_31
#undef MNIST_REGISTERS_16_27
#undef MNIST_REGISTERS_0_15
#undef MNIST_REGISTERS_0_11
#undef MNIST_F16
#undef MNIST_F4

}  // namespace mnist::kernels::device

#endif
