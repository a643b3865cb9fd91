// Picks the kernels at run time; CMakeLists.txt gives each instruction set's translation unit its flags.
#include "cpu/kernels.h"

namespace mnist::cpu {

extern const Kernels kAvx512Kernels, kAvx2Kernels, kBaselineKernels;

std::vector<const Kernels*> supported_kernels() {
  std::vector<const Kernels*> tables;
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) tables.push_back(&kAvx512Kernels);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables.push_back(&kAvx2Kernels);
#endif
  tables.push_back(&kBaselineKernels);
  return tables;
}

}  // namespace mnist::cpu
