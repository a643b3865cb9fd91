// The kernels compiled for AVX2 and FMA.
#include "cpu/simd/table.h"

namespace mnist::cpu {

extern const Kernels kAvx2Kernels;
constinit const Kernels kAvx2Kernels = kernel_table("avx2");

}  // namespace mnist::cpu
