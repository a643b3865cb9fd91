// The fused kernels in fp32, for several models.
#include "kernels/fused/table.cuh"

template struct mnist::fused::KernelTable<mnist::Precision::kFp32, mnist::fused::Pack>;
