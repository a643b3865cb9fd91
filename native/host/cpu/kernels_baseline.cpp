// The kernels compiled for whatever every machine of the architecture has (SSE2 on x86-64).
#include "cpu/simd/table.h"

namespace mnist::cpu {

extern const Kernels kBaselineKernels;
constinit const Kernels kBaselineKernels = kernel_table("baseline");

}  // namespace mnist::cpu
