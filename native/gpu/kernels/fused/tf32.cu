// The fused kernels in tf32.
#include "kernels/fused/table.cuh"

template struct mnist::fused::KernelTable<mnist::Precision::kTf32, mnist::fused::State>;
