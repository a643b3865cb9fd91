// The fused kernels in fp32.
#include "kernels/fused/launch.cuh"

template struct mnist::fused::Launch<mnist::Precision::kFp32>;
