// The kernels compiled for AVX-512 F, which brings FMA.
#include "cpu/simd/table.h"

namespace mnist::cpu {

extern const Kernels kAvx512Kernels;
constinit const Kernels kAvx512Kernels = kernel_table("avx512");

}  // namespace mnist::cpu
