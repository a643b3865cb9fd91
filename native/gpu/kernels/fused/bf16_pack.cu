// The fused kernels in bf16, for several models.
#include "kernels/fused/table.cuh"

template struct mnist::fused::KernelTable<mnist::Precision::kBf16, mnist::fused::Pack>;
