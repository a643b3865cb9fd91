// The fused kernels in tf32, for several models.
#include "kernels/fused/table.cuh"

template struct mnist::fused::KernelTable<mnist::Precision::kTf32, mnist::fused::Pack>;
