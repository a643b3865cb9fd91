// What the device code of this project takes for granted: the toolkit's headers, C++20, a kernel that links.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <array>
#include <concepts>
#include <span>

template <std::floating_point T>
__global__ void probe(std::span<T> out) {
  constexpr std::array<float, 2> kTerms{1, 2};
  out[threadIdx.x] = kTerms[0] + __half2float(__float2half(kTerms[1]));
}

int main() {
  probe<float><<<1, 1>>>({});
  return cudaGetLastError() == cudaSuccess ? 0 : 1;
}
