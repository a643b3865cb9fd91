// The fused kernels in bf16.
#include "kernels/fused/launch.cuh"

template struct mnist::fused::Launch<mnist::Precision::kBf16>;
