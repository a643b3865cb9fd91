// multiprocessor: how many threads it holds at a time, for launch bounds.
#pragma once

namespace mnist::kernels::device {

// CUDA C++ Programming Guide, "Compute Capabilities": 2048 of 8.0, 9.0 and 10.x, 1024 of 7.5, 1536 of the others.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 800 || __CUDA_ARCH__ / 100 == 9 || __CUDA_ARCH__ / 100 == 10
inline constexpr int kResidentThreads = 2048;
#elif __CUDA_ARCH__ == 750
inline constexpr int kResidentThreads = 1024;
#else
inline constexpr int kResidentThreads = 1536;
#endif

}  // namespace mnist::kernels::device
