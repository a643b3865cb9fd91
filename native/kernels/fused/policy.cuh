// Arithmetic policies of the fused kernels: what a value is stored as in shared memory, and one warp matrix product.
//
// Everything is addressed in 16-byte chunks. A k-step is two chunks: 16 bf16 values (mma.m16n8k16) or 8 floats
// (mma.m16n8k8). Because ldmatrix moves 16-byte rows whatever they contain, the same addresses feed both, and the
// same registers serve as the A operand (16 rows) or as two B operands (2 x 8 columns).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/device/delays.cuh"
#include "kernels/device/mma_bf16.cuh"
#include "kernels/device/mma_tf32.cuh"
#include "mnist/engine.h"

namespace mnist::fused {

using kernels::device::delay;

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void load_matrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void load_matrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ std::uint32_t load_shared_32(std::uint32_t address) {
  std::uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ float2 load_shared_float2(std::uint32_t address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(address) : "memory");
  return value;
}

// Bytes of `x` chosen by the selector's nibbles; a nibble above 7 repeats that byte's sign bit eight times.
__device__ __forceinline__ std::uint32_t permute_bytes(std::uint32_t x, std::uint32_t selector) {
  std::uint32_t result;
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(result) : "r"(x), "r"(selector));
  return result;
}

// Transposes an 8x8 matrix: lane (g, t) has columns 2t and 2t + 1 of row g, and gets rows 2t and 2t + 1 of column g.
template <class Pair>
__device__ __forceinline__ Pair transposed(Pair pair) {
  std::uint32_t turned;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
      : "=r"(turned)
      : "r"(*reinterpret_cast<const std::uint32_t*>(&pair)));
  return *reinterpret_cast<const Pair*>(&turned);
}

__device__ __forceinline__ void copy_async_16(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
  delay();
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  delay();
}

// Named barriers, for kCount of a block's threads. Who only arrives does not wait, but what it wrote is visible to
// those that do.
template <int kCount>
__device__ __forceinline__ void barrier_sync(int id) {
  delay();
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kCount) : "memory");
  delay();
}
template <int kCount>
__device__ __forceinline__ void barrier_arrive(int id) {
  delay();
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kCount) : "memory");
  delay();
}

// A barrier in shared memory, which copies may arrive at.
__device__ __forceinline__ void mbarrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");  // for the copy engine
#endif
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// The one arrival at a barrier, and how many bytes copy_bulk() has to bring, of which some may have arrived before.
__device__ __forceinline__ void mbarrier_expect(std::uint64_t* barrier, int bytes) {
  delay();
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
  delay();
}
// From global to shared memory by the copy engine, which announces itself at the barrier; multiples of 16 bytes.
__device__ __forceinline__ void copy_bulk(std::uint32_t shared, const void* global, int bytes, std::uint64_t* arrived) {
  delay();
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(shared_address(arrived))
               : "memory");
}
// From shared to global memory by the copy engine; multiples of 16 bytes. One thread starts and awaits them.
__device__ __forceinline__ void store_bulk(void* global, std::uint32_t shared, int bytes) {
  delay();
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void store_bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void store_bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  delay();
}
__device__ __forceinline__ void store_bulk_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  delay();
}
#endif
__device__ __forceinline__ void mbarrier_arrive(std::uint64_t* barrier) {
  delay();
  asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared.b64 state, [%0];\n\t}" ::"r"(shared_address(barrier))
               : "memory");
  delay();
}
__device__ __forceinline__ void mbarrier_wait(std::uint64_t* barrier, int parity) {
  std::uint32_t done;
  do {
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\t"  // sleeps for a while
#else
        "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\t"
#endif
        "selp.b32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (!done);
  delay();
}

// Programmatic dependent launch (Hopper and newer): a phase starts while its predecessor still runs, does what does not
// depend on it, and waits here for all of its results. Every phase lets its successor start only after its own wait,
// so what earlier phases wrote is complete even before the wait. Elsewhere launches are serial and these are empty.
__device__ __forceinline__ void wait_for_predecessor() {
  delay();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
  delay();
}

__device__ __forceinline__ void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  kernels::device::mma_bf16(c, a, {b0, b1});
}

__device__ __forceinline__ void mma_fp16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_tf32(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  kernels::device::mma_tf32(c, a, {b0, b1});
}

// A float as two values of tf32: big is rounded to the nearest, so that small, exactly what it leaves, has either sign
// and what the tensor cores cut off small is no bias. (Where images are flat dz2 is the same everywhere, and sums that
// cancel show a bias of 2^-23.)
__device__ __forceinline__ std::uint32_t big_part(std::uint32_t x) { return (x + 0x1000u) & 0xffffe000u; }
__device__ __forceinline__ std::uint32_t small_part(std::uint32_t x) {
  return __float_as_uint(__uint_as_float(x) - __uint_as_float(big_part(x)));
}

template <Precision kPrecision>
struct Policy;

// bf16: operands rounded to bf16, sums in float.
template <>
struct Policy<Precision::kBf16> {
  using T = __nv_bfloat16;
  using Pixel = __nv_bfloat16;           // integers up to 256 are exact
  static constexpr int kConv1Terms = 1;  // 16-bit parts a conv1 weight is split into
  static constexpr int kParts = 0;       // of fp16, which wgmma multiplies instead of T's: see parts.cuh
  static constexpr bool kDrainAccumulators = false;
  static __device__ __forceinline__ T store(float x) { return __float2bfloat16_rn(x); }
  static __device__ __forceinline__ float load(T x) { return __bfloat162float(x); }
  // Two values as they are stored; the packed conversion is four times as fast as two single ones.
  using Pair = __nv_bfloat162;
  static __device__ __forceinline__ Pair pack(float x, float y) { return __floats2bfloat162_rn(x, y); }
  static __device__ __forceinline__ float2 unpack(Pair pair) { return __bfloat1622float2(pair); }
  static __device__ __forceinline__ Pair max(Pair x, Pair y) { return __hmax2(x, y); }
  static __device__ __forceinline__ void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    mma_bf16(c, a, b0, b1);
  }
};

// tf32: operands rounded to tf32 when they are stored, sums in float.
template <>
struct Policy<Precision::kTf32> {
  using T = float;
  using Pixel = __half;  // integers up to 2048 are exact
  static constexpr int kConv1Terms = 1;
  static constexpr int kParts = 1;
  static constexpr bool kDrainAccumulators = false;
  static __device__ __forceinline__ T store(float x) { return __uint_as_float(kernels::device::to_tf32(x)); }
  static __device__ __forceinline__ float load(T x) { return x; }
  using Pair = float2;
  static __device__ __forceinline__ Pair pack(float x, float y) { return make_float2(store(x), store(y)); }
  static __device__ __forceinline__ float2 unpack(Pair pair) { return pair; }
  static __device__ __forceinline__ Pair max(Pair x, Pair y) { return make_float2(fmaxf(x.x, y.x), fmaxf(x.y, y.y)); }
  static __device__ __forceinline__ void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    mma_tf32(c, a, b0, b1);
  }
};

// fp32 ("3xtf32"): each product x*y as big*big + big*small + small*big of tf32 parts, which keeps float's accuracy
// (what is dropped is below 2^-20 of a product). Tensor cores truncate as they add, so long sums over
// pixels are moved out of their accumulators every few products (kDrainAccumulators).
template <>
struct Policy<Precision::kFp32> {
  using T = float;
  using Pixel = __half;
  static constexpr int kConv1Terms = 2;
  static constexpr int kParts = 2;
  static constexpr bool kDrainAccumulators = true;
  static __device__ __forceinline__ T store(float x) { return x; }
  static __device__ __forceinline__ float load(T x) { return x; }
  using Pair = float2;
  static __device__ __forceinline__ Pair pack(float x, float y) { return make_float2(x, y); }
  static __device__ __forceinline__ float2 unpack(Pair pair) { return pair; }
  static __device__ __forceinline__ Pair max(Pair x, Pair y) { return make_float2(fmaxf(x.x, y.x), fmaxf(x.y, y.y)); }
  static __device__ __forceinline__ void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    const std::uint32_t a_big[4] = {big_part(a[0]), big_part(a[1]), big_part(a[2]), big_part(a[3])};
    const std::uint32_t a_small[4] = {small_part(a[0]), small_part(a[1]), small_part(a[2]), small_part(a[3])};
    mma_tf32(c, a_small, big_part(b0), big_part(b1));
    mma_tf32(c, a_big, small_part(b0), small_part(b1));
    mma_tf32(c, a_big, big_part(b0), big_part(b1));
  }
};

template <class P>
inline constexpr int kChunk = 16 / sizeof(typename P::T);  // values in 16 bytes
template <class P>
inline constexpr int kStep = 2 * kChunk<P>;  // values of one k-step

// This lane's row address for load_matrix_x4 of 16 rows by one k-step, rows `pitch` bytes apart. The four registers
// come in the order in which mma wants them side by side, so that no moves are needed:
//   as an A operand:  (rows 0-7, chunk 0), (rows 8-15, chunk 0), (rows 0-7, chunk 1), (rows 8-15, chunk 1)
//   as B operands:    (rows 0-7, chunk 0), (rows 0-7, chunk 1), (rows 8-15, chunk 0), (rows 8-15, chunk 1)
__device__ __forceinline__ std::uint32_t a_lane_offset(int lane, int pitch) {
  return ((lane & 7) + (lane >> 3 & 1) * 8) * pitch + (lane >> 4) * 16;
}
__device__ __forceinline__ std::uint32_t b_lane_offset(int lane, int pitch) {
  return ((lane & 7) + (lane >> 4) * 8) * pitch + (lane >> 3 & 1) * 16;
}

__device__ __forceinline__ float relu_keep_nan(float x) { return x <= 0.f ? 0.f : x; }

// add(load(row), k) for rows group, group + kGroups, ... below `rows` in this order, kLoads loads in flight at a time
// whatever the number of rows, the k-th of them with k < kLoads: what lies past the end is read as the last row and
// left out, and __syncwarp() keeps the compiler from adding before it has issued every load. For whole warps.
template <int kGroups, int kLoads, class Load, class Add>
__device__ __forceinline__ void for_rows(int rows, int group, Load load, Add add) {
  for (int first = 0; first < rows; first += kGroups * kLoads) {
    decltype(load(0)) x[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) x[k] = load(min(first + group + kGroups * k, rows - 1));
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kLoads; ++k)
      if (first + group + kGroups * k < rows) add(x[k], k);
  }
}

}  // namespace mnist::fused
