// The part of CUDA's headers that our kernels and launchers use, for g++: declarations that end in the emulator.
//
// A `.cu` file that rewrite.py has gone through includes this in the place of NVIDIA's header. The built-in variables
// are function calls, so that each fiber sees its own; vector types are copied by one access of their full width, as a
// GPU does it, and the hooks of -fsanitize=thread see that access.
#pragma once

#include <math.h>

#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __grid_constant__

// ---- vector types ---------------------------------------------------------------------------------------------------
namespace emulator {
// An integer or vector as wide as the type, which g++ loads and stores by one instruction, aligned or not.
template <std::size_t kBytes>
struct Whole;
template <>
struct Whole<1> {
  typedef std::uint8_t type __attribute__((may_alias));
};
template <>
struct Whole<2> {
  typedef std::uint16_t type __attribute__((may_alias, aligned(1)));
};
template <>
struct Whole<4> {
  typedef std::uint32_t type __attribute__((may_alias, aligned(1)));
};
template <>
struct Whole<8> {
  typedef std::uint64_t type __attribute__((may_alias, aligned(1)));
};
template <>
struct Whole<16> {
  typedef std::uint64_t type __attribute__((vector_size(16), may_alias, aligned(1)));
};
template <class T>
inline __attribute__((always_inline)) void copy_whole(T* to, const T* from) {
  using Type = typename Whole<sizeof(T)>::type;
  *reinterpret_cast<Type*>(to) = *reinterpret_cast<const Type*>(from);
}
}  // namespace emulator

#define EMULATOR_VECTOR(Vector, Member, kAlignment, PARAMETERS, LIST, ...)                             \
  struct alignas(kAlignment) Vector {                                                                  \
    Member __VA_ARGS__;                                                                                \
    Vector() = default;                                                                                \
    __attribute__((always_inline)) Vector PARAMETERS : LIST {}                                         \
    __attribute__((always_inline)) Vector(const Vector& other) { emulator::copy_whole(this, &other); } \
    __attribute__((always_inline)) Vector& operator=(const Vector& other) {                            \
      emulator::copy_whole(this, &other);                                                              \
      return *this;                                                                                    \
    }                                                                                                  \
  };                                                                                                   \
  template <class... Values>                                                                           \
  inline __attribute__((always_inline)) Vector make_##Vector(Values... values) {                       \
    return Vector(static_cast<Member>(values)...);                                                     \
  }
#define EMULATOR_LIST2 x(a), y(b)
#define EMULATOR_LIST4 x(a), y(b), z(c), w(d)
#define EMULATOR_VECTOR2(Vector, Member) \
  EMULATOR_VECTOR(Vector, Member, 2 * sizeof(Member), (Member a, Member b), EMULATOR_LIST2, x, y)
#define EMULATOR_VECTOR4(Vector, Member)                                                                              \
  EMULATOR_VECTOR(Vector, Member, 4 * sizeof(Member), (Member a, Member b, Member c, Member d), EMULATOR_LIST4, x, y, \
                  z, w)
EMULATOR_VECTOR2(float2, float)
EMULATOR_VECTOR4(float4, float)
EMULATOR_VECTOR2(double2, double)
EMULATOR_VECTOR2(int2, int)
EMULATOR_VECTOR4(int4, int)
EMULATOR_VECTOR2(uint2, unsigned)
EMULATOR_VECTOR4(uint4, unsigned)
EMULATOR_VECTOR2(uchar2, unsigned char)
EMULATOR_VECTOR4(uchar4, unsigned char)

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

// ---- what the runtime is asked for ----------------------------------------------------------------------------------
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorLaunchFailure = 719
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
inline constexpr unsigned cudaEventRecordDefault = 0, cudaEventRecordExternal = 1;
inline constexpr unsigned cudaEventDefault = 0, cudaEventDisableTiming = 2, cudaStreamDefault = 0,
                          cudaStreamNonBlocking = 1, cudaHostAllocDefault = 0;

cudaError_t cudaMalloc(void** data, std::size_t bytes);
template <class T>
cudaError_t cudaMalloc(T** data, std::size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(data), bytes);
}
cudaError_t cudaMallocManaged(void** data, std::size_t bytes);
template <class T>
cudaError_t cudaMallocManaged(T** data, std::size_t bytes, unsigned = 1) {
  return cudaMallocManaged(reinterpret_cast<void**>(data), bytes);
}
cudaError_t cudaFree(void* data);
cudaError_t cudaMallocHost(void** data, std::size_t bytes);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream = nullptr);
// A symbol is a __device__ or __constant__ variable, which rewrite.py lets be where it is declared.
template <class T>
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const T& symbol, std::size_t bytes, std::size_t offset,
                                      cudaMemcpyKind kind, cudaStream_t stream = nullptr) {
  return cudaMemcpyAsync(to, (const char*)&symbol + offset, bytes, kind, stream);
}
template <class T>
cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, std::size_t bytes, std::size_t offset = 0,
                                 cudaMemcpyKind kind = cudaMemcpyDeviceToHost) {
  return cudaMemcpyFromSymbolAsync(to, symbol, bytes, offset, kind);
}
template <class T>
cudaError_t cudaMemcpyToSymbolAsync(const T& symbol, const void* from, std::size_t bytes, std::size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t stream = nullptr) {
  return cudaMemcpyAsync((char*)&symbol + offset, from, bytes, kind, stream);
}
template <class T>
cudaError_t cudaMemcpyToSymbol(const T& symbol, const void* from, std::size_t bytes, std::size_t offset = 0,
                               cudaMemcpyKind kind = cudaMemcpyHostToDevice) {
  return cudaMemcpyToSymbolAsync(symbol, from, bytes, offset, kind);
}
template <class T>
cudaError_t cudaGetSymbolAddress(void** address, const T& symbol) {
  *address = (void*)&symbol;
  return cudaSuccess;
}
template <class T>
cudaError_t cudaGetSymbolSize(std::size_t* bytes, const T&) {
  *bytes = sizeof(T);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes);
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream = nullptr);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum cudaSharedCarveout { cudaSharedmemCarveoutMaxShared = 100 };
// As an A100 says.
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
struct cudaFuncAttributes {
  int ptxVersion, binaryVersion;
};
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel);
enum cudaLaunchAttributeID {
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
inline cudaError_t cudaIpcCloseMemHandle(void*) { return cudaErrorInvalidValue; }  // there is no other process
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments);
namespace emulator {
cudaError_t set_dynamic_limit(int bytes);
}
template <class Function>
cudaError_t cudaFuncSetAttribute(Function, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  return emulator::set_dynamic_limit(value);
}
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
inline cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t stop);  // 0: nothing here has a time

// ---- what a thread of a kernel asks for -----------------------------------------------------------------------------
namespace emulator {
uint3 thread_index() __attribute__((const));
uint3 block_index() __attribute__((const));
dim3 block_size() __attribute__((const));
dim3 grid_size() __attribute__((const));
#define EMULATOR_COMPONENTS(name)             \
  unsigned name##_x() __attribute__((const)); \
  unsigned name##_y() __attribute__((const)); \
  unsigned name##_z() __attribute__((const));
EMULATOR_COMPONENTS(threadIdx)
EMULATOR_COMPONENTS(blockIdx)
EMULATOR_COMPONENTS(blockDim)
EMULATOR_COMPONENTS(gridDim)

// Shared memory: a variable is one for each block, made when the block's first thread comes by. `key`: its identity.
void* shared_variable(const void* key, const char* name, std::size_t bytes, std::size_t alignment);
void* dynamic_shared(const char* name, std::size_t alignment);

// A variable of the GPU's memory in the program, between kGuard bytes that nothing may touch. It lasts.
constexpr std::size_t kGuard = 1024;
struct DeviceVariable {
  const char* name;
  const volatile void* data;
  std::size_t bytes, alignment;
  bool managed;  // the host may touch it
  bool known = false;
  DeviceVariable* next = nullptr;
  bool is_known();  // from here on
};

// What the lanes of a warp gave when they met: `values` by lane, of the lanes in `mask`.
struct Met {
  const std::uint64_t* values;
  unsigned mask;
};
// Waits until all lanes of `mask` are here, too. `order`: what they wrote before is visible to all of them behind it.
Met meet(unsigned mask, std::uint64_t value, bool order);
unsigned active_lanes();
int lane();
// Waits for the block; returns how many threads gave true, and in `all` whether each did.
int meet_block(bool value, bool* all);
// One lane's value out of those met; reports a lane that took no part.
std::uint64_t value_of(const Met& met, int lane);

void atomic_access(const void* address, std::size_t bytes);      // what follows on it is one indivisible operation
void atomic_done(const void* address, bool changed);             // a thread that changes nothing again and again waits
void copy_bytes(void* to, const void* from, std::size_t bytes);  // unseen by the hooks
void fence(bool of_block);                                       // of_block: for the thread's own block only
void pause();                                                    // lets other threads run
std::uint64_t cycles();                                          // of this machine's processor

struct Argument {
  const void* pointer;
  std::size_t element;
};
void name_arguments(const char* names, const Argument* arguments, int count);
template <class T>
Argument argument(const T& value) {
  if constexpr (std::is_pointer_v<T>) {
    using Element = std::remove_pointer_t<T>;
    if constexpr (std::is_object_v<Element>) return {value, sizeof(Element)};
  }
  return {nullptr, 0};
}
// Buffers are reported by the names of the arguments that point to them.
template <class... Values>
void arguments(const char* names, const Values&... values) {
  const Argument list[] = {argument(values)..., {nullptr, 0}};
  name_arguments(names, list, int(sizeof...(values)));
}

// Work of a stream: kept for the graph that is being recorded, if one is, or done at once.
void later_or_now(const std::function<void()>& work);

// Kernels that the runtime launches by address: launch_address() calls what kernel_address() remembers of it.
using ByAddress = std::function<void(void** given, dim3 grid, dim3 block, std::size_t dynamic_bytes)>;
void remember(const void* kernel, const ByAddress& launch);
const char* name_of_kernel(const void* kernel);

void launch(const char* kernel, const void* body, std::size_t body_bytes, void (*thread)(const void*), dim3 grid,
            dim3 block, std::size_t dynamic_bytes, std::uint64_t place);
std::uint64_t place_of_launch();  // where it is called; it ends the launch of a kernel that launches another one
// A launch, as rewrite.py writes kernel<<<grid, block, bytes, stream>>>(...): `body` calls the kernel.
template <class Body>
inline __attribute__((always_inline)) void run(const char* kernel, const Body& body, dim3 grid, dim3 block,
                                               std::size_t dynamic_bytes = 0, cudaStream_t = nullptr) {
  const std::uint64_t place = place_of_launch();
  later_or_now([=] {
    launch(
        kernel, &body, sizeof body, [](const void* it) { (*static_cast<const Body*>(it))(); }, grid, block,
        dynamic_bytes, place);
  });
}

template <class... Parameters>
const void* kernel_address(void (*kernel)(Parameters...)) {
  const auto address = reinterpret_cast<const void*>(kernel);
  remember(address, [=](void** given, dim3 grid, dim3 block, std::size_t dynamic_bytes) {
    [&]<std::size_t... k>(std::index_sequence<k...>) {
      const std::tuple<Parameters...> values(*static_cast<Parameters*>(given[k])...);
      run(name_of_kernel(address), [=] { std::apply(kernel, values); }, grid, block, dynamic_bytes);
    }(std::index_sequence_for<Parameters...>());
  });
  return address;
}

template <class T>
std::uint64_t to_bits(T value) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  copy_bytes(&bits, &value, sizeof value);
  return bits;
}
template <class T>
T from_bits(std::uint64_t bits) {
  T value;
  copy_bytes(&value, &bits, sizeof value);
  return value;
}
template <class T, class Change>
inline __attribute__((always_inline)) T atomically(T* address, Change change) {
  atomic_access(address, sizeof(T));
  T old;
  copy_bytes(&old, address, sizeof(T));
  const T next = change(old);
  copy_bytes(address, &next, sizeof(T));
  atomic_done(address, to_bits(old) != to_bits(next));
  return old;
}
}  // namespace emulator

inline constexpr int warpSize = 32;

#define EMULATOR_INLINE inline __attribute__((always_inline))
EMULATOR_INLINE void __syncthreads() { ::emulator::meet_block(false, nullptr); }
EMULATOR_INLINE int __syncthreads_count(int p) { return ::emulator::meet_block(p != 0, nullptr); }
EMULATOR_INLINE int __syncthreads_or(int p) { return ::emulator::meet_block(p != 0, nullptr) > 0; }
EMULATOR_INLINE int __syncthreads_and(int p) {
  bool all = false;
  ::emulator::meet_block(p != 0, &all);
  return all;
}
EMULATOR_INLINE void __syncwarp(unsigned mask = ~0u) { ::emulator::meet(mask, 0, true); }
EMULATOR_INLINE unsigned __activemask() { return ::emulator::active_lanes(); }
EMULATOR_INLINE void __threadfence() { ::emulator::fence(false); }
EMULATOR_INLINE void __threadfence_system() { ::emulator::fence(false); }
EMULATOR_INLINE void __threadfence_block() { ::emulator::fence(true); }
EMULATOR_INLINE void __nanosleep(unsigned) { ::emulator::pause(); }
inline long long clock64() { return (long long)::emulator::cycles(); }

// Shuffles. A lane whose source lies outside its part of `width` lanes keeps its own value.
template <class T>
EMULATOR_INLINE T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const int lane = ::emulator::lane(), first = lane & ~(width - 1);
  return ::emulator::from_bits<T>(
      ::emulator::value_of(::emulator::meet(mask, ::emulator::to_bits(value), false), first + (from & (width - 1))));
}
template <class T>
EMULATOR_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = ::emulator::lane(), last = lane | (width - 1), from = lane + int(by);
  return ::emulator::from_bits<T>(
      ::emulator::value_of(::emulator::meet(mask, ::emulator::to_bits(value), false), from <= last ? from : lane));
}
template <class T>
EMULATOR_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = ::emulator::lane(), first = lane & ~(width - 1), from = lane - int(by);
  return ::emulator::from_bits<T>(
      ::emulator::value_of(::emulator::meet(mask, ::emulator::to_bits(value), false), from >= first ? from : lane));
}
template <class T>
EMULATOR_INLINE T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
  const int lane = ::emulator::lane(), last = lane | (width - 1), from = lane ^ with;
  return ::emulator::from_bits<T>(
      ::emulator::value_of(::emulator::meet(mask, ::emulator::to_bits(value), false), from <= last ? from : lane));
}

namespace emulator {
inline unsigned ballot(const Met& met) {
  unsigned lanes = 0;
  for (int k = 0; k < 32; ++k)
    if (met.mask >> k & 1 && met.values[k]) lanes |= 1u << k;
  return lanes;
}
inline unsigned matching(const Met& met, std::uint64_t value) {
  unsigned lanes = 0;
  for (int k = 0; k < 32; ++k)
    if (met.mask >> k & 1 && met.values[k] == value) lanes |= 1u << k;
  return lanes;
}
template <class T, class Combine>
T reduced(const Met& met, Combine combine) {
  bool first = true;
  T result{};
  for (int k = 0; k < 32; ++k)
    if (met.mask >> k & 1) {
      const T value = T(met.values[k]);
      result = first ? value : combine(result, value);
      first = false;
    }
  return result;
}
}  // namespace emulator
EMULATOR_INLINE unsigned __ballot_sync(unsigned mask, int p) {
  return ::emulator::ballot(::emulator::meet(mask, p != 0, false));
}
EMULATOR_INLINE int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
EMULATOR_INLINE int __all_sync(unsigned mask, int p) {
  const auto met = ::emulator::meet(mask, p != 0, false);
  return ::emulator::ballot(met) == met.mask;
}
template <class T>
EMULATOR_INLINE unsigned __match_any_sync(unsigned mask, T value) {
  const std::uint64_t bits = ::emulator::to_bits(value);
  return ::emulator::matching(::emulator::meet(mask, bits, false), bits);
}
template <class T>
EMULATOR_INLINE unsigned __match_all_sync(unsigned mask, T value, int* all) {
  const std::uint64_t bits = ::emulator::to_bits(value);
  const auto met = ::emulator::meet(mask, bits, false);
  *all = ::emulator::matching(met, bits) == met.mask;
  return *all ? met.mask : 0;
}
#define EMULATOR_REDUCE(NAME, T, EXPRESSION)                                                 \
  EMULATOR_INLINE T __reduce_##NAME##_sync(unsigned mask, T value) {                         \
    return ::emulator::reduced<T>(::emulator::meet(mask, ::emulator::to_bits(value), false), \
                                  [](T a, T b) { return T(EXPRESSION); });                   \
  }
EMULATOR_REDUCE(add, int, a + b)
EMULATOR_REDUCE(add, unsigned, a + b)
EMULATOR_REDUCE(min, int, a < b ? a : b)
EMULATOR_REDUCE(min, unsigned, a < b ? a : b)
EMULATOR_REDUCE(max, int, a < b ? b : a)
EMULATOR_REDUCE(max, unsigned, a < b ? b : a)
EMULATOR_REDUCE(and, unsigned, a& b)
EMULATOR_REDUCE(or, unsigned, a | b)
EMULATOR_REDUCE(xor, unsigned, a ^ b)

#define EMULATOR_ATOMIC(NAME, EXPRESSION)                                             \
  template <class T>                                                                  \
  EMULATOR_INLINE T atomic##NAME(T* address, std::type_identity_t<T> value) {         \
    return ::emulator::atomically(address, [value](T old) { return T(EXPRESSION); }); \
  }
EMULATOR_ATOMIC(Add, old + value)
EMULATOR_ATOMIC(Sub, old - value)
EMULATOR_ATOMIC(Min, value < old ? value : old)
EMULATOR_ATOMIC(Max, old < value ? value : old)
EMULATOR_ATOMIC(And, old& value)
EMULATOR_ATOMIC(Or, old | value)
EMULATOR_ATOMIC(Xor, old ^ value)
EMULATOR_ATOMIC(Inc, old >= value ? 0 : old + 1)
EMULATOR_ATOMIC(Dec, old == 0 || old > value ? value : old - 1)
EMULATOR_INLINE float atomicExch(float* address, float value) {
  return ::emulator::atomically(address, [value](float) { return value; });
}
template <class T>
EMULATOR_INLINE T atomicExch(T* address, std::type_identity_t<T> value) {
  return ::emulator::atomically(address, [value](T) { return value; });
}
template <class T>
EMULATOR_INLINE T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return ::emulator::atomically(address, [expected, value](T old) { return old == expected ? value : old; });
}

namespace emulator {
std::size_t shared_address(const void* pointer);
const void* shared_data(std::uint32_t address);
}  // namespace emulator
EMULATOR_INLINE std::size_t __cvta_generic_to_shared(const void* pointer) {
  return ::emulator::shared_address(pointer);
}

template <class T>
EMULATOR_INLINE T __ldg(const T* address) {
  return *address;
}

template <class T>
EMULATOR_INLINE T __ldcg(const T* address) {
  return *address;
}
template <class T>
EMULATOR_INLINE void __stwb(T* address, std::type_identity_t<T> value) {
  *address = value;
}

// ---- arithmetic -----------------------------------------------------------------------------------------------------
template <class A, class B>
  requires(std::is_arithmetic_v<A> && std::is_arithmetic_v<B>)
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B>
  requires(std::is_arithmetic_v<A> && std::is_arithmetic_v<B>)
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return T(a) < T(b) ? T(b) : T(a);
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t(b) << 32 | a;
  unsigned result = 0;
  for (int k = 0; k < 4; ++k) {
    const unsigned which = selector >> 4 * k & 15, byte = unsigned(bytes >> (which & 7) * 8) & 255;
    result |= (which & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * k;
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return unsigned((std::uint64_t(high) << 32 | low) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return unsigned((std::uint64_t(high) << 32 | low) >> (by & 31));
}
template <class T>
  requires(std::is_same_v<T, int> || std::is_same_v<T, unsigned>)
inline T __dp4a(T a, T b, T sum) {
  using Byte = std::conditional_t<std::is_signed_v<T>, std::int8_t, std::uint8_t>;
  for (int k = 0; k < 4; ++k) sum += T(Byte(a >> 8 * k)) * T(Byte(b >> 8 * k));
  return sum;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __float_as_uint(float x) { return ::emulator::from_bits<unsigned>(::emulator::to_bits(x)); }
inline float __uint_as_float(unsigned x) { return ::emulator::from_bits<float>(::emulator::to_bits(x)); }
inline int __float_as_int(float x) { return int(__float_as_uint(x)); }
inline float __int_as_float(int x) { return __uint_as_float(unsigned(x)); }
#include "numbers16.h"
#include "ptx.h"
