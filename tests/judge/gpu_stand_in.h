// What the judge's program for a GPU calls and the emulator lacks, so that tests run that program without a GPU.
// Included before each of its files by nvcc_stand_in.py.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

constexpr auto cudaDevAttrL2CacheSize = cudaDeviceAttr(38);
constexpr auto cudaStreamCaptureModeRelaxed = cudaStreamCaptureModeGlobal;
enum cudaLimit { cudaLimitPersistingL2CacheSize };
inline cudaError_t cudaDeviceSetLimit(cudaLimit, std::size_t) { return cudaSuccess; }
inline cudaError_t cudaCtxResetPersistingL2Cache() { return cudaSuccess; }

// Long enough that nothing is repeated.
inline cudaError_t stand_in_elapsed(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 2;
  return cudaSuccess;
}
#define cudaEventElapsedTime stand_in_elapsed
