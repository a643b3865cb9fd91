// The fused kernels in fp32.
#include "kernels/fused/table.cuh"

template struct mnist::fused::KernelTable<mnist::Precision::kFp32, mnist::fused::State>;
